// Tokens drawn on the device against those that SampleTokens draws on the CPU, token for token.
#include <limits>

#include "tests/workers/ops/cuda/kernel_testing.h"
#include "workers/ops/sampling/sampling.h"

namespace switchyard::ops {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// One row: what the CPU takes, from which the device's arrays are made.
struct Draw {
  batching::SamplingParams params;
  uint32_t index = 0;
};

std::vector<int32_t> OnCpu(const TensorView& logits, const std::vector<Draw>& draws) {
  ThreadPool pool(1);
  std::vector<TokenHistory> histories(draws.size());
  std::vector<SampleRequest> requests;
  for (size_t i = 0; i < draws.size(); ++i) {
    for (uint32_t t = 0; t < draws[i].index; ++t) histories[i].AppendOutput(0);
    requests.push_back({.params = &draws[i].params, .history = &histories[i]});
  }
  std::vector<SampleOutcome> outcomes(draws.size());
  EXPECT_TRUE(SampleTokens(Stream::OnCpu(&pool), logits, requests, absl::MakeSpan(outcomes)).ok());
  std::vector<int32_t> tokens;
  for (const SampleOutcome& outcome : outcomes) tokens.push_back(outcome.token);
  return tokens;
}

// Each row's token goes to the slot of the reversed row, but for row 1, which has none.
std::vector<int32_t> OnDevice(const TensorView& logits, const std::vector<Draw>& draws,
                              const MatrixLayout& layout = kLayouts[0]) {
  const int64_t n = logits.dim(0);
  std::vector<float> temperature, top_p, min_p;
  std::vector<int32_t> top_k, slot;
  std::vector<uint32_t> random;
  for (int64_t i = 0; i < n; ++i) {
    const batching::SamplingParams& p = draws[i].params;
    temperature.push_back(static_cast<float>(p.temperature));
    top_p.push_back(static_cast<float>(p.top_p)), min_p.push_back(static_cast<float>(p.min_p));
    top_k.push_back(p.top_k), slot.push_back(i == 1 ? -1 : static_cast<int32_t>(n - 1 - i));
    for (uint32_t word : {static_cast<uint32_t>(p.seed), static_cast<uint32_t>(p.seed >> 32), p.choice, draws[i].index})
      random.push_back(word);
  }
  const DeviceMatrix from = ToDevice(logits, layout);
  const DeviceArray<float> d_temperature(temperature), d_top_p(top_p), d_min_p(min_p);
  const DeviceArray<int32_t> d_top_k(top_k), d_slot(slot), token(n), last(std::vector<int32_t>(n, -77));
  const DeviceArray<uint32_t> d_random(random);
  const CudaCallForTest call(int64_t{16} << 20);  // the rows of a call here leave 28 KiB each there
  const CudaSampleArgs args = {.logits = static_cast<const float*>(from.get()),
                               .n = n,
                               .vocab = logits.dim(1),
                               .logits_stride = from.stride(),
                               .temperature = d_temperature.get(),
                               .top_k = d_top_k.get(),
                               .top_p = d_top_p.get(),
                               .min_p = d_min_p.get(),
                               .random = d_random.get(),
                               .slot = d_slot.get(),
                               .token = token.get(),
                               .last = last.get()};
  EXPECT_EQ(cuda::Sample(call.get(), args), 0);
  const std::vector<int32_t> tokens = token.Download(), left = last.Download();
  for (int64_t i = 0; i < n; ++i) EXPECT_EQ(left[n - 1 - i], i == 1 ? -77 : tokens[i]) << "slot of row " << i;
  return tokens;
}

Draw Make(double temperature, int32_t top_k, double top_p, double min_p, uint64_t seed) {
  Draw draw;
  draw.params.temperature = temperature, draw.params.top_k = top_k;
  draw.params.top_p = top_p, draw.params.min_p = min_p;
  draw.params.seed = seed, draw.params.choice = static_cast<uint32_t>(seed % 3);
  draw.index = static_cast<uint32_t>(seed % 5);
  return draw;
}

// Every combination of filters, once for each of these seeds.
std::vector<Draw> AllFilters(int seeds) {
  std::vector<Draw> draws;
  uint64_t seed = 0x123456789abcdefULL;
  for (double temperature : {0.0, 0.25, 1.0, 2.5}) {
    for (int32_t top_k : {0, 1, 7, 40}) {
      for (double top_p : {1.0, 0.75, 0.125}) {
        for (double min_p : {0.0, 0.0625}) {
          for (int i = 0; i < seeds; ++i) draws.push_back(Make(temperature, top_k, top_p, min_p, seed += 77777777777));
        }
      }
    }
  }
  return draws;
}

class SamplingKernelsTest : public GpuTest {};

TEST_F(SamplingKernelsTest, DrawsTheTokensOfTheCpu) {
  const std::vector<Draw> draws = AllFilters(3);
  const Tensor logits = RandomMatrix(DType::kF32, static_cast<int64_t>(draws.size()), 131, 1, 3.0);
  const std::vector<int32_t> want = OnCpu(logits.view(), draws);
  for (const MatrixLayout& layout : kLayouts) EXPECT_EQ(OnDevice(logits.view(), draws, layout), want) << layout.name;
}

// Equal logits, in runs and in all of the row: ties are cut and drawn by id.
TEST_F(SamplingKernelsTest, TiesGoToTheSmallerId) {
  const std::vector<Draw> draws = AllFilters(1);
  Tensor logits = RandomMatrix(DType::kF32, static_cast<int64_t>(draws.size()), 300, 2);
  for (int64_t r = 0; r < logits.dim(0); ++r) {
    for (int64_t c = 0; c < 300; ++c) {
      float& logit = logits.view().row<float>(r)[c];
      logit = r % 2 == 0 ? (c % 2 == 0 ? 0.0f : -0.0f) : std::round(2 * logit) / 2;
    }
  }
  EXPECT_EQ(OnDevice(logits.view(), draws), OnCpu(logits.view(), draws));
}

// More tokens weigh something than the list in shared memory takes.
TEST_F(SamplingKernelsTest, WideNucleus) {
  std::vector<Draw> draws;
  for (int32_t top_k : {0, 9000}) {
    for (double top_p : {1.0, 0.9, 0.01}) draws.push_back(Make(1.5, top_k, top_p, 0.0, 99 + draws.size()));
  }
  const Tensor logits = RandomMatrix(DType::kF32, static_cast<int64_t>(draws.size()), 10000, 3);
  EXPECT_EQ(OnDevice(logits.view(), draws), OnCpu(logits.view(), draws));
}

// Rows that many blocks share; equal logits lie in several blocks' parts.
TEST_F(SamplingKernelsTest, LongRows) {
  std::vector<Draw> draws;
  for (double temperature : {0.0, 1.0, 0.05}) {
    for (int32_t top_k : {0, 50}) {
      for (double top_p : {1.0, 0.9}) {
        for (double min_p : {0.0, 0.01}) draws.push_back(Make(temperature, top_k, top_p, min_p, 5 + draws.size()));
      }
    }
  }
  for (const bool ties : {false, true}) {
    const Tensor logits = RandomMatrix(DType::kF32, static_cast<int64_t>(draws.size()), 40001, 8, 2.0);
    for (int64_t r = 0; ties && r < logits.dim(0); ++r) {
      for (int64_t c = 0; c < 40001; ++c) logits.view().row<float>(r)[c] = std::round(logits.view().row<float>(r)[c]);
    }
    EXPECT_EQ(OnDevice(logits.view(), draws), OnCpu(logits.view(), draws)) << ties;
  }
}

TEST_F(SamplingKernelsTest, FarApartNumbers) {
  std::vector<Draw> draws;
  for (int32_t top_k : {0, 3, 100}) {
    for (double top_p : {1.0, 0.5}) {
      for (double temperature : {1e-4, 1.0, 1e4}) draws.push_back(Make(temperature, top_k, top_p, 0.0, draws.size()));
    }
  }
  Tensor logits(DType::kF32, {static_cast<int64_t>(draws.size()), 260});
  for (int64_t r = 0; r < logits.dim(0); ++r) {
    for (int64_t c = 0; c < 260; ++c) {
      logits.view().row<float>(r)[c] = (c % 2 == 0 ? 1.0f : -1.0f) * std::ldexp(1.0f, static_cast<int>(c) - 133);
    }
    logits.view().row<float>(r)[17] = -kInf;
    logits.view().row<float>(r)[18] = -std::numeric_limits<float>::max();
    logits.view().row<float>(r)[19] = 0x1.8p127f;
  }
  EXPECT_EQ(OnDevice(logits.view(), draws), OnCpu(logits.view(), draws));
}

TEST_F(SamplingKernelsTest, BrokenRowsHaveNoToken) {
  Tensor logits = RandomMatrix(DType::kF32, 8, 50, 4);
  const std::vector<Draw> draws(8, Make(1.0, 5, 0.9, 0.0, 3));
  logits.view().row<float>(0)[49] = std::nanf("");
  logits.view().row<float>(2)[7] = kInf;
  std::fill_n(logits.view().row<float>(3), 50, -kInf);
  std::fill_n(logits.view().row<float>(4), 49, -kInf);  // one finite number is enough
  logits.view().row<float>(5)[0] = std::nanf("");
  const std::vector<int32_t> want = OnCpu(logits.view(), draws);
  EXPECT_EQ(want[0], -1);
  EXPECT_EQ(want[4], 49);
  EXPECT_EQ(OnDevice(logits.view(), draws), want);
}

TEST_F(SamplingKernelsTest, OneTokenAndNoRows) {
  EXPECT_EQ(OnDevice(RandomMatrix(DType::kF32, 1, 1, 5).view(), {Make(1.0, 3, 0.5, 0.0, 1)}), std::vector<int32_t>{0});
  EXPECT_TRUE(OnDevice(RandomMatrix(DType::kF32, 0, 9, 5).view(), {}).empty());
}

TEST_F(SamplingKernelsTest, ARowIsTheSameAnywhere) {
  const std::vector<Draw> draws = {Make(1.0, 0, 1.0, 0.0, 1), Make(0.8, 20, 0.9, 0.0, 2), Make(1.2, 0, 0.9, 0.05, 3)};
  const Tensor logits = RandomMatrix(DType::kF32, 3, 1000, 6, 2.0);
  const std::vector<int32_t> whole = OnDevice(logits.view(), draws);
  for (int64_t r = 0; r < 3; ++r) {
    EXPECT_EQ(OnDevice(logits.view().Rows(r, 1), {draws[r]}, kLayouts[2]), std::vector<int32_t>{whole[r]}) << r;
  }
}

TEST_F(SamplingKernelsTest, ResolveTokens) {
  const DeviceArray<int32_t> planned({5, -1, 0, -4, -2}), last({10, 11, 12, 13}), tokens(5);
  const CudaCallForTest call;
  const ResolveTokensArgs args = {.planned = planned.get(), .last = last.get(), .tokens = tokens.get(), .count = 5};
  ASSERT_EQ(cuda::ResolveTokens(call.get(), args), 0);
  EXPECT_EQ(tokens.Download(), (std::vector<int32_t>{5, 10, 0, 13, 11}));
}

}  // namespace
}  // namespace switchyard::ops
