// Which choices find room at their expert: against a loop over all rows in their order, on any ranks; and what a
// layer does with the others.
#include "workers/moe/layer/expert_capacity.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/pipeline/build_expert_parallel.h"
#include "tests/workers/comm/comm_test_util.h"
#include "tests/workers/moe/moe_test_model.h"
#include "workers/moe/layer/moe_layer.h"
#include "workers/moe/layer/moe_saved.h"
#include "workers/tensor/copy.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard::moe {
namespace {

TEST(CapacityOfTest, IsTheEvenShareTimesTheFactor) {
  EXPECT_EQ(CapacityOf(1, 1, 64, 4), 16);
  EXPECT_EQ(CapacityOf(1, 2, 64, 4), 32);
  EXPECT_EQ(CapacityOf(1.25, 2, 64, 4), 40);
  EXPECT_EQ(CapacityOf(1, 1, 65, 4), 17);  // up
  EXPECT_EQ(CapacityOf(0.9, 2, 63, 5), 23);
  EXPECT_EQ(CapacityOf(0.1, 1, 1, 64), 1);  // of any row, one
  EXPECT_EQ(CapacityOf(1, 2, 0, 4), 0);
  EXPECT_EQ(CapacityOf(0, 2, 64, 4), 0);
}

struct Choices {
  int64_t rows = 0, top_k = 0, experts = 0;
  std::vector<int32_t> idx;  // [rows, K], distinct in a row
};

// Experts are chosen the more often the smaller they are.
Choices RandomChoices(int64_t rows, int64_t top_k, int64_t experts, uint32_t seed) {
  std::mt19937 generator(seed);
  Choices choices = {.rows = rows, .top_k = top_k, .experts = experts, .idx = {}};
  for (int64_t t = 0; t < rows; ++t) {
    const size_t first = choices.idx.size();
    while (choices.idx.size() < first + static_cast<size_t>(top_k)) {
      const auto one = static_cast<int32_t>(generator() % static_cast<uint32_t>(experts));
      const auto other = static_cast<int32_t>(generator() % static_cast<uint32_t>(experts));
      const int32_t expert = std::min(one, other);
      bool there = false;
      for (size_t i = first; i < choices.idx.size(); ++i) there |= choices.idx[i] == expert;
      if (!there) choices.idx.push_back(expert);
    }
  }
  return choices;
}

// As GShard's Algorithm 1 is written: a loop over all rows for each choice.
std::vector<int32_t> KeptOf(const Choices& choices, int64_t capacity) {
  std::vector<int32_t> kept = choices.idx;
  std::vector<int64_t> taken(static_cast<size_t>(choices.experts));
  for (int64_t k = 0; k < choices.top_k; ++k) {
    for (int64_t t = 0; t < choices.rows; ++t) {
      int32_t& expert = kept[static_cast<size_t>(t * choices.top_k + k)];
      if (taken[static_cast<size_t>(expert)]++ >= capacity) expert = -1;
    }
  }
  return kept;
}

int64_t CountDropped(const std::vector<int32_t>& kept) { return std::count(kept.begin(), kept.end(), -1); }

TEST(CapacityGateTest, DropsTheSameOnAnyNumberOfRanks) {
  for (const int64_t top_k : {1, 2, 3}) {
    const Choices all = RandomChoices(/*rows=*/61, top_k, /*experts=*/7, static_cast<uint32_t>(top_k));
    for (const int64_t capacity : {1, 4, 9, 20, 61}) {
      const std::vector<int32_t> expected = KeptOf(all, capacity);
      if (capacity < 10 || capacity == 61) {
        EXPECT_EQ(CountDropped(expected) > 0, capacity < 61);
      }
      for (const std::vector<int64_t>& shares :
           {std::vector<int64_t>{61}, {30, 31}, {61, 0}, {16, 15, 15, 15}, {0, 40, 0, 21}}) {
        test::ExpectRanksOk(
            test::Backend::kLocal, static_cast<int>(shares.size()), [&](comm::Communicator* comm) -> absl::Status {
              const int64_t first = std::accumulate(shares.begin(), shares.begin() + comm->rank(), int64_t{0});
              const int64_t rows = shares[static_cast<size_t>(comm->rank())];
              const Tensor idx(DType::kI32, {rows, top_k}), weight(DType::kF64, {rows, top_k});
              for (int64_t i = 0; i < rows * top_k; ++i) {
                idx.data<int32_t>()[i] = all.idx[static_cast<size_t>(first * top_k + i)];
                weight.data<double>()[i] = 0.5;
              }
              CapacityGate gate;
              int64_t dropped = 0, seen = 0;
              ASSIGN_OR_RETURN(
                  dropped, gate.Drop({.rows = capacity, .ranks = comm}, {.deadline = test::Soon()}, 7, idx, weight));
              for (int64_t i = 0; i < rows * top_k; ++i) {
                const int32_t want = expected[static_cast<size_t>(first * top_k + i)];
                EXPECT_EQ(idx.data<int32_t>()[i], want) << "choice " << first * top_k + i << ", capacity " << capacity;
                EXPECT_EQ(weight.data<double>()[i], want < 0 ? 0 : 0.5);
                seen += want < 0 ? 1 : 0;
              }
              EXPECT_EQ(dropped, seen);
              return absl::OkStatus();
            });
      }
    }
  }
}

TEST(CapacityGateTest, FirstChoicesComeBeforeSecondOnes) {
  // The second choice of the first row and the first one of the last row want the same expert.
  const Tensor idx(DType::kI32, {2, 2}), weight(DType::kF32, {2, 2});
  const std::vector<int32_t> chosen = {1, 0, 0, 2};
  std::copy(chosen.begin(), chosen.end(), idx.data<int32_t>());
  std::fill_n(weight.data<float>(), 4, 0.5f);
  const std::vector<int32_t> counts = {1, 1, 0, 1, 0, 1};  // [1, K, E]
  EXPECT_EQ(DropBeyondCapacity(1, counts, 0, 3, idx, weight), 1);
  EXPECT_EQ(std::vector<int32_t>(idx.data<int32_t>(), idx.data<int32_t>() + 4), (std::vector<int32_t>{1, -1, 0, 2}));
  EXPECT_EQ(std::vector<float>(weight.data<float>(), weight.data<float>() + 4), (std::vector<float>{0.5, 0, 0.5, 0.5}));
}

// A layer with a capacity.
struct LayerResult {
  std::string residual;  // bytes of all ranks' rows
  std::vector<int32_t> kept;
  int64_t dropped = 0, expert_rows = 0;
};

LayerResult RunLayer(const test::MoeTestModel& model, const std::vector<int64_t>& shares, int micro_batches,
                     int64_t capacity, bool saves) {
  const auto world = static_cast<int>(shares.size());
  const int64_t rows = std::accumulate(shares.begin(), shares.end(), int64_t{0}), top_k = model.shape().top_k;
  const Tensor x = model.RandomRows(rows, 3), residual = model.RandomResidual(rows, 4);
  const ExpertLayout layout = ExpertLayout::Contiguous(model.shape().num_experts, world);
  LayerResult result;
  result.kept.resize(static_cast<size_t>(rows * top_k));
  std::vector<MoeStats> stats(static_cast<size_t>(world));
  test::ExpectRanksOk(test::Backend::kLocal, world, [&](comm::Communicator* comm) -> absl::Status {
    const auto rank = static_cast<size_t>(comm->rank());
    const int64_t first = std::accumulate(shares.begin(), shares.begin() + comm->rank(), int64_t{0});
    ThreadPool pool(1 + comm->rank() % 2, false);
    const Stream stream = Stream::OnCpu(&pool);
    const MoeLayer layer = model.LayerOf(stream, layout, comm->rank());
    const pipeline::MoeSchedule schedule =
        pipeline::BuildExpertParallel({.micro_batches = micro_batches, .trains = saves});
    MoeSaved saved;
    MoeExecutor executor;
    RETURN_IF_ERROR(executor.Run({.stream = &stream,
                                  .comm = comm,
                                  .layout = &layout,
                                  .schedule = &schedule,
                                  .deadline = test::Soon(),
                                  .stats = &stats[rank],
                                  .capacity = {.rows = capacity, .ranks = comm}},
                                 {.saved = saves ? &saved : nullptr}, layer, x.view().Rows(first, shares[rank]),
                                 residual.view().Rows(first, shares[rank])));
    if (shares[rank] > 0) {
      std::memcpy(result.kept.data() + first * top_k, executor.topk_idx().raw(),
                  static_cast<size_t>(shares[rank] * top_k) * sizeof(int32_t));
    }
    if (!saves) return absl::OkStatus();
    for (int64_t i = 0; i < shares[rank] * top_k; ++i) EXPECT_GE(saved.topk_idx.data<int32_t>()[i], 0);
    return absl::OkStatus();
  });
  result.residual.assign(static_cast<const char*>(residual.view().raw()), static_cast<size_t>(residual.bytes()));
  for (const MoeStats& each : stats) {
    result.dropped += each.dropped_rows;
    result.expert_rows += each.expert_rows;
  }
  return result;
}

TEST(CapacityLayerTest, RowsWithoutAnExpertPassAndTheOthersHaveTheSameBitsOnAnyRanks) {
  for (const bool renormalize : {false, true}) {
    const test::MoeTestModel model({.renormalize = renormalize});
    const int64_t rows = 40, hidden = model.shape().hidden;
    const LayerResult all = RunLayer(model, {rows}, 1, /*capacity=*/6, false);
    EXPECT_EQ(all.dropped, CountDropped(all.kept));
    EXPECT_EQ(all.expert_rows, rows * 2 - all.dropped);
    int64_t lost = 0;
    const Tensor before = model.RandomResidual(rows, 4);
    const LayerResult dropless = RunLayer(model, {rows}, 1, 0, false);
    EXPECT_EQ(dropless.dropped, 0);
    for (int64_t t = 0; t < rows; ++t) {
      const auto bytes = static_cast<size_t>(hidden) * sizeof(float);
      const bool none = all.kept[2 * t] < 0 && all.kept[2 * t + 1] < 0;
      const bool whole = all.kept[2 * t] >= 0 && all.kept[2 * t + 1] >= 0;
      lost += none ? 1 : 0;
      const char* const row = all.residual.data() + static_cast<size_t>(t) * bytes;
      EXPECT_EQ(std::memcmp(row, before.view().row<float>(t), bytes) == 0, none) << t;
      EXPECT_EQ(std::memcmp(row, dropless.residual.data() + static_cast<size_t>(t) * bytes, bytes) == 0, whole) << t;
    }
    EXPECT_GT(lost, 0);
    for (const bool saves : {false, true}) {
      for (const int micro_batches : {1, 3}) {
        for (const std::vector<int64_t>& shares : {std::vector<int64_t>{40}, {25, 15}, {10, 10, 10, 10}, {0, 40}}) {
          const LayerResult here = RunLayer(model, shares, micro_batches, 6, saves);
          EXPECT_EQ(here.residual, all.residual) << shares.size() << " ranks, " << micro_batches;
          EXPECT_EQ(here.kept, all.kept);
          EXPECT_EQ(here.dropped, all.dropped);
        }
      }
    }
  }
}

}  // namespace
}  // namespace switchyard::moe
