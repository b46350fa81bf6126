// The kernels that a worker on a GPU runs by default, in a whole model of real proportions: cuBLASLt, wgmma, attention
// that splits a long context, CUDA graphs, two steps in flight, nothing deterministic.  The oracle is the CPU in fp32
// with the same weights.
//
// And the deterministic mode, across the fixed splits of its attention: bits do not depend on how a position is
// computed.
//
// Routers of random weights are nearly undecided at some rows, where a rounding chooses another expert; so of each
// sequence's rows half must be near, and none may be off entirely.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/devices/test_device.h"
#include "tests/reference/tolerance.h"
#include "tests/workers/model/decode_logits.h"
#include "workers/comm/local/local_communicator.h"
#include "workers/model/config/memory_plan.h"
#include "workers/model/runner/model_runner.h"
#include "workers/moe/dispatch/expert_layout.h"
#include "workers/ops/gemm/cublas_refusals.h"
#include "workers/ops/gemm/gemm_choice_cuda.h"

namespace switchyard::model {
namespace {

constexpr int32_t kBlockSize = 16;
constexpr absl::Duration kStepLimit = absl::Minutes(2);

struct Scene {
  ModelConfig config;
  int64_t chunk = 0;
  int64_t decodes = 0;            // of each sequence, with the last token of its prompt
  std::vector<int64_t> contexts;  // of each sequence, decodes included
};

// On a GPU a slice of a Qwen3 at 4 Ki keys; elsewhere the least that takes the same kernels.
Scene MakeScene() {
  const bool small = DeviceIsEmulated() || TestDevice().is_cpu();
  Scene scene;
  ModelConfig& c = scene.config;
  c.model_type = "shipped-path";
  c.hidden = 1024;
  c.head_dim = 128;
  c.layers.resize(2);
  c.vocab_size = small ? 128 : 2048;
  c.num_heads = small ? 2 : 16;
  c.num_kv_heads = small ? 1 : 4;
  c.num_experts = small ? 8 : 16;
  c.top_k = 4;
  c.expert_intermediate = small ? 64 : 768;
  c.renormalize = true;
  c.qkv_bias = true;  // cuBLASLt's epilogue
  c.qk_norm = QkNorm::kPerHead;
  c.rope = {.theta = 1e6, .rotary_dim = 128};
  scene.chunk = small ? 136 : 2048;
  scene.decodes = small ? 4 : 16;
  scene.contexts = small ? std::vector<int64_t>{270, 20} : std::vector<int64_t>{4200, 4090, 700, 60};
  c.context = small ? 288 : 4352;
  return scene;
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<int64_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

// Prefills the prompts in chunks, each alone, then decodes all of them together; returns what was sampled.
class Generation {
 public:
  Generation(const Stream& stream, Model* model, const Scene& scene, std::vector<std::vector<int32_t>> prompts)
      : scene_(scene), prompts_(std::move(prompts)), tokens_(prompts_.size()) {
    blocks_each_ = static_cast<int32_t>((scene.config.context + kBlockSize - 1) / kBlockSize);
    const int64_t block_bytes = KvBytesPerToken(scene.config, model->dtype()) * kBlockSize;
    const auto count = static_cast<int32_t>(prompts_.size());
    auto runner = ModelRunner::Create(model, stream,
                                      {.num_slots = count,
                                       .block_size = kBlockSize,
                                       .kv_cache_bytes = [&] { return block_bytes * blocks_each_ * count; },
                                       .max_rows = static_cast<int32_t>(scene.chunk),
                                       .context = scene.config.context});
    SY_CHECK_OK(runner.status());
    runner_ = *std::move(runner);
    SY_CHECK_OK(runner_->SetGroup(comm_.get(), &layout_));
  }

  std::vector<std::vector<int32_t>> Run() {
    for (size_t s = 0; s < prompts_.size(); ++s) {
      const auto length = static_cast<int32_t>(prompts_[s].size()), chunk = static_cast<int32_t>(scene_.chunk);
      for (int32_t begin = 0; begin < length; begin += chunk) {
        batching::RankPlan plan;
        plan.items.push_back(Item(s, begin, std::min(chunk, length - begin)));
        Start(std::move(plan));
      }
    }
    for (int64_t i = 1; i < scene_.decodes; ++i) {
      batching::RankPlan plan;
      for (size_t s = 0; s < prompts_.size(); ++s) {
        plan.items.push_back(Item(s, static_cast<int32_t>(prompts_[s].size() + i - 1), 1));
      }
      Start(std::move(plan));
    }
    while (!sampling_.empty()) Finish();
    return tokens_;
  }
  const DeviceSteps* device_steps() const { return runner_->device_steps(); }
  int most_started() const { return most_started_; }

 private:
  batching::StepItem Item(size_t sequence, int32_t begin, int32_t count) const {
    const std::vector<int32_t>& prompt = prompts_[sequence];
    batching::StepItem item;
    item.slot = static_cast<batching::SlotId>(sequence);
    item.start_pos = begin;
    item.num_query = count;
    item.sample = begin + count >= static_cast<int32_t>(prompt.size());
    if (begin > 0) return item;
    item.init =
        batching::SlotInit{.tokens = prompt, .num_prompt_tokens = static_cast<int32_t>(prompt.size()), .sampling = {}};
    item.init->sampling.temperature = 0;
    const auto first = static_cast<int32_t>(sequence) * blocks_each_;
    for (int32_t b = blocks_each_ - 1; b >= 0; --b) item.new_blocks.push_back(first + b);
    return item;
  }
  void Start(batching::RankPlan plan) {
    if (runner_->num_started() == ModelRunner::kMaxStarted) Finish();
    batching::StepPlan head;
    head.step = ++step_;
    std::vector<size_t> sampling;
    for (const batching::StepItem& item : plan.items) {
      if (item.sample) sampling.push_back(static_cast<size_t>(item.slot));
    }
    SY_CHECK_OK(runner_->Start(head, plan, absl::Now() + kStepLimit));
    most_started_ = std::max(most_started_, runner_->num_started());
    sampling_.push_back(std::move(sampling));
  }
  void Finish() {
    const auto result = runner_->Finish();
    SY_CHECK_OK(result.status());
    size_t next = 0;
    for (const batching::ItemResult& item : result->items) {
      if (item.tokens.empty()) continue;
      tokens_[sampling_.front()[next++]].push_back(item.tokens[0]);
    }
    sampling_.erase(sampling_.begin());
  }

  const Scene& scene_;
  const std::vector<std::vector<int32_t>> prompts_;
  std::vector<std::vector<int32_t>> tokens_;
  std::vector<std::vector<size_t>> sampling_;  // of each step that is started and not finished
  const std::unique_ptr<comm::Communicator> comm_ = comm::MakeSoloCommunicator();
  const moe::ExpertLayout layout_ = moe::ExpertLayout::Contiguous(static_cast<int>(scene_.config.num_experts), 1);
  std::unique_ptr<ModelRunner> runner_;
  int32_t blocks_each_ = 0;
  int64_t step_ = 0;
  int most_started_ = 0;
};

// The scene's chunks take what the test is about.  The numbers of a GPU of 132 multiprocessors.
void ExpectShippedKernels(const Scene& scene) {
  const ModelConfig& c = scene.config;
  const ops::CudaGemmDesc experts = {.m = scene.chunk * c.top_k,
                                     .n = 2 * c.expert_intermediate,
                                     .k = c.hidden,
                                     .experts = c.num_experts,
                                     .gated = true,
                                     .wgmma = true};
  const ops::CudaGemmConfig chosen = ops::ChooseGrouped(experts);
  ASSERT_GE(chosen.tile, 0);
  EXPECT_TRUE(ops::kCudaGemmTiles[chosen.tile].wgmma) << chosen;
  const ops::CudaGemmConfig dense = ops::ChooseDense({.m = scene.chunk, .n = c.qkv_width(), .k = c.hidden});
  EXPECT_EQ(dense.kind, ops::CudaGemmKind::kCublasLt) << dense;
}

TEST(ShippedPathTest, LongDecodesAreTheCpusInFp32) {
  const Scene scene = MakeScene();
  ExpectShippedKernels(scene);
  const TestStream device(/*threads=*/1, /*index=*/0, {.deterministic = false});
  ThreadPool pool(static_cast<int>(std::max(1u, std::thread::hardware_concurrency())));
  const Stream cpu = Stream::OnCpu(&pool);
  const auto model = MakeDummyModel(device, scene.config, DType::kBf16);
  const auto oracle = MakeDummyModel(cpu, scene.config, DType::kF32);
  ASSERT_TRUE(model.ok()) << model.status();
  ASSERT_TRUE(oracle.ok()) << oracle.status();
  const int64_t refusals = ops::NumCublasRefusals();

  std::vector<std::vector<int32_t>> sequences;
  for (size_t s = 0; s < scene.contexts.size(); ++s) {
    sequences.push_back(RandomTokens(scene.contexts[s] - scene.decodes + 1, scene.config.vocab_size, s + 1));
  }
  Generation generation(device, model->get(), scene, sequences);
  const std::vector<std::vector<int32_t>> sampled = generation.Run();
  EXPECT_EQ(generation.most_started(), ModelRunner::kMaxStarted);
  if (generation.device_steps() != nullptr) {
    EXPECT_GT(generation.device_steps()->counters().replayed, 0);
  }

  for (size_t s = 0; s < sequences.size(); ++s) {
    ASSERT_EQ(sampled[s].size(), static_cast<size_t>(scene.decodes));
    sequences[s].insert(sequences[s].end(), sampled[s].begin(), sampled[s].end() - 1);
  }
  const DecodeLogitsOptions options = {.chunk = scene.chunk, .decodes = scene.decodes, .block_size = kBlockSize};
  const auto want = DecodeLogits(cpu, oracle->get(), options, sequences);
  const auto got = DecodeLogits(device, model->get(), options, sequences);
  ASSERT_TRUE(want.ok()) << want.status();
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(ops::NumCublasRefusals(), refusals);

  const double limit = reference::ReductionTolerance(DType::kBf16).relative;
  const std::vector<double> distances = RowDistances(*got, *want);
  for (size_t s = 0; s < sequences.size(); ++s) {
    std::vector<double> rows, gaps;  // a gap: how much better the oracle's best token is, in deviations of its logits
    for (int64_t i = 0; i < scene.decodes; ++i) {
      const int64_t row = static_cast<int64_t>(s) * scene.decodes + i, vocab = scene.config.vocab_size;
      const float* const logits = want->view().row<float>(row);
      double squares = 0;
      for (int64_t v = 0; v < vocab; ++v) squares += static_cast<double>(logits[v]) * logits[v];
      const double best = *std::max_element(logits, logits + vocab);
      gaps.push_back((best - logits[sampled[s][static_cast<size_t>(i)]]) /
                     std::sqrt(squares / static_cast<double>(vocab)));
      rows.push_back(distances[static_cast<size_t>(row)]);
    }
    EXPECT_LT(Median(rows), limit) << "sequence " << s;
    EXPECT_LT(Median(gaps), 8 * limit) << "sequence " << s;
    EXPECT_THAT(rows, testing::Each(testing::Lt(0.5))) << "sequence " << s;
    EXPECT_THAT(gaps, testing::Each(testing::Lt(2.0))) << "sequence " << s;
    RecordProperty(absl::StrCat("distance_", s), std::to_string(Median(rows)));
  }
}

// A preempted request computes again in chunks what it had decoded, beside other requests.
TEST(DeterministicModelTest, LogitsIgnoreDecodesChunksAndCompany) {
  Scene scene = MakeScene();
  ModelConfig& c = scene.config;
  c.hidden = c.head_dim = c.rope.rotary_dim = 64;
  c.num_heads = 2, c.num_kv_heads = 1;
  c.num_experts = 4, c.top_k = 2, c.expert_intermediate = 32;
  c.vocab_size = 64;
  c.context = 1056;
  const TestStream device(/*threads=*/1, /*index=*/0, {.deterministic = true});
  const auto model = MakeDummyModel(device, c, DType::kBf16);
  ASSERT_TRUE(model.ok()) << model.status();
  const std::vector<std::vector<int32_t>> sequences = {RandomTokens(1032, c.vocab_size, 1),
                                                       RandomTokens(530, c.vocab_size, 2)};
  const auto decoded = DecodeLogits(device, model->get(), {.chunk = 500, .decodes = 16}, sequences);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  for (size_t s = 0; s < sequences.size(); ++s) {
    const auto again = DecodeLogits(device, model->get(), {.chunk = 700, .decodes = 1}, {sequences[s]});
    ASSERT_TRUE(again.ok()) << again.status();
    const TensorView row = decoded->view().Rows(static_cast<int64_t>(s) * 16 + 15, 1);
    EXPECT_EQ(std::memcmp(row.raw(), again->view().raw(), static_cast<size_t>(c.vocab_size) * sizeof(float)), 0)
        << "sequence " << s << ": differs by " << RowDistances(*again, row)[0];
  }
}

}  // namespace
}  // namespace switchyard::model
