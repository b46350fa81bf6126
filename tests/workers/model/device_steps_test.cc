// Steps on a device: however they are batched, chunked, recorded or overlapped, the tokens are the same.
#include "workers/model/runner/device_steps.h"

#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/devices/test_device.h"
#include "tests/workers/model/fixture.h"
#include "tests/workers/model/rank_group.h"
#include "workers/model/runner/warm_up.h"
#include "workers/model/weights/dummy_weights.h"
#include "workers/tensor/copy.h"
#include "workers/tensor/device_backend.h"

namespace switchyard::model {
namespace {

TEST(DecodeBucketTest, CoversEveryNumberOfRowsWithLittlePadding) {
  int64_t last = 0;
  for (int64_t rows = 1; rows <= 200; ++rows) {
    const int64_t bucket = DecodeBucket(rows, 200);
    ASSERT_GE(bucket, rows);
    ASSERT_LE(bucket, 200);
    ASSERT_LE(bucket, rows + std::max<int64_t>(31, rows)) << rows;
    ASSERT_GE(bucket, last) << "more rows never take a smaller graph";
    ASSERT_EQ(DecodeBucket(bucket, 200), bucket) << "a bucket is its own";
    last = bucket;
  }
  EXPECT_EQ(DecodeBucket(0, 200), 0);
  EXPECT_EQ(DecodeBucket(3, 3), 3) << "no graph has more rows than a step may";
  EXPECT_EQ(DecodeBucket(kMaxGraphRows, 1000), kMaxGraphRows);
  EXPECT_EQ(DecodeBucket(kMaxGraphRows + 1, 1000), 0) << "not recorded";
}

struct Way {
  const char* name;
  RankGroupOptions options;
};

class DeviceStepsTest : public ::testing::TestWithParam<DType> {};

TEST_P(DeviceStepsTest, TokensDoNotDependOnTheWay) {
  const Fixture fixture = LoadFixture("qwen3-qknorm");
  std::vector<std::vector<int32_t>> prompts;
  for (size_t i = 0; i < 4; ++i) prompts.push_back(fixture.greedy[i].prompt);
  const int32_t tokens = DeviceIsEmulated() ? 5 : 32;
  const RankGroupOptions base = {.dtype = GetParam(), .batch = 1, .graphs = false};
  const std::vector<std::vector<int32_t>> expected = RankGroup(fixture.dir, base).Greedy(prompts, tokens);
  std::vector<Way> ways(5, {"", base});
  ways[0] = {"together", base}, ways[0].options.batch = 4;
  ways[1] = {"chunked", base}, ways[1].options.chunk = 3, ways[1].options.batch = 3;
  ways[2] = {"recorded", base}, ways[2].options.graphs = true, ways[2].options.batch = 4;
  ways[3] = {"overlapped", ways[2].options}, ways[3].options.in_flight = ModelRunner::kMaxStarted;
  ways[4] = {"small blocks", ways[3].options}, ways[4].options.block_size = 4;
  for (const Way& way : ways) {
    RankGroup group(fixture.dir, way.options);
    EXPECT_EQ(group.Greedy(prompts, tokens), expected) << way.name;
    const DeviceSteps* steps = group.runner(0).device_steps();
    if (steps == nullptr) continue;
    EXPECT_EQ(steps->counters().replayed > 0, way.options.graphs) << way.name;
  }
}

// Experts on other devices: rows travel over NCCL, in sizes as they are and, while all decode, in fixed ones.
TEST_P(DeviceStepsTest, TokensDoNotDependOnTheNumberOfRanks) {
  const Fixture fixture = LoadFixture("qwen2-shared");
  std::vector<std::vector<int32_t>> prompts;
  for (size_t i = 0; i < 4; ++i) prompts.push_back(fixture.greedy[i].prompt);
  const int32_t tokens = DeviceIsEmulated() ? 4 : 16;
  const RankGroupOptions base = {.dtype = GetParam(), .batch = 4};
  const std::vector<std::vector<int32_t>> expected = RankGroup(fixture.dir, base).Greedy(prompts, tokens);
  for (const int world : {2, 3}) {
    if (!HasDevices(world)) GTEST_SKIP() << "skipped: needs " << world << " devices";
    for (const bool graphs : {false, true}) {
      RankGroupOptions options = base;
      options.world = world;
      options.graphs = graphs;
      options.chunk = 9;
      options.in_flight = graphs ? ModelRunner::kMaxStarted : 1;
      RankGroup group(fixture.dir, options);
      EXPECT_EQ(group.Greedy(prompts, tokens), expected) << world << " ranks, graphs " << graphs;
      const DeviceSteps* steps = group.runner(0).device_steps();
      if (steps == nullptr) continue;
      EXPECT_EQ(steps->counters().replayed > 0, graphs);
    }
  }
}

// Of as many prompts as a batch has, and of fewer; all steps of decodes are of one of the sizes 4, 2, 1.
TEST(CapturedStepsTest, GraphsOfTheStartServeAllSteps) {
  if (TestDevice().is_cpu()) GTEST_SKIP() << "the CPU needs none";
  const Fixture fixture = LoadFixture("qwen2-shared");
  std::vector<std::vector<int32_t>> prompts;
  for (size_t i = 1; i < 5; ++i) prompts.push_back(fixture.greedy[i].prompt);  // the first has one token
  const RankGroupOptions base = {.dtype = DType::kBf16, .batch = 4, .graphs = false};
  const std::vector<std::vector<int32_t>> expected = RankGroup(fixture.dir, base).Greedy(prompts, 4);
  for (const int world : {1, 2}) {
    if (!HasDevices(world)) GTEST_SKIP() << "skipped: needs " << world << " devices";
    RankGroupOptions options = base;
    options.world = world;
    options.graphs = true;
    options.in_flight = ModelRunner::kMaxStarted;
    RankGroup group(fixture.dir, options);
    std::vector<int64_t> progress;
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < world; ++rank) {
      ranks.emplace_back([&, rank] {
        const absl::Status captured =
            group.runner(rank).CaptureGraphs(absl::Minutes(1), [&](int64_t done, int64_t total) {
              EXPECT_EQ(total, 3);
              if (rank == 0) progress.push_back(done);
              return true;
            });
        EXPECT_TRUE(captured.ok()) << captured;
      });
    }
    for (std::thread& rank : ranks) rank.join();
    EXPECT_THAT(progress, testing::ElementsAre(0, 1, 2, 3));
    const GraphCounters& counters = group.runner(0).device_steps()->counters();
    EXPECT_EQ(counters.captured, 3);
    EXPECT_GT(counters.capture_seconds, 0);
    EXPECT_EQ(counters.replayed, 0) << "padding is no step";
    int64_t steps = 0;
    for (const size_t count : {size_t{4}, size_t{1}, size_t{2}, size_t{3}, size_t{4}}) {
      const std::vector<std::vector<int32_t>> some(prompts.begin(), prompts.begin() + static_cast<int64_t>(count));
      const std::vector<std::vector<int32_t>> tokens(expected.begin(), expected.begin() + static_cast<int64_t>(count));
      EXPECT_EQ(group.Greedy(some, 4), tokens) << count << " prompts on " << world;
      EXPECT_EQ(counters.replayed, steps += 3) << "all but the prompts' step";
    }
    EXPECT_EQ(counters.captured, 3);
  }
}

TEST(CapturedStepsTest, CapturingCanBeStopped) {
  if (TestDevice().is_cpu()) GTEST_SKIP() << "the CPU needs none";
  RankGroup group(LoadFixture("qwen2-shared").dir, {.dtype = DType::kBf16, .batch = 4});
  for (const int64_t last : {0, 1}) {
    const absl::Status stopped =
        group.runner(0).CaptureGraphs(absl::Minutes(1), [last](int64_t done, int64_t) { return done < last; });
    EXPECT_TRUE(absl::IsCancelled(stopped)) << stopped;
    EXPECT_EQ(group.runner(0).device_steps()->counters().captured, last);
  }
}

// The limit is of each wait: all graphs together may take longer.
TEST(CapturedStepsTest, ProgressMovesTheLimitOn) {
  if (TestDevice().is_cpu()) GTEST_SKIP() << "the CPU needs none";
  const Fixture fixture = LoadFixture("qwen2-shared");
  RankGroup first(fixture.dir, {.dtype = DType::kBf16, .batch = 4});
  const absl::Time begin = absl::Now();
  ASSERT_TRUE(first.runner(0).CaptureGraphs(absl::Minutes(1), [](int64_t, int64_t) { return true; }).ok());
  const absl::Duration limit = std::max(2 * (absl::Now() - begin), absl::Seconds(1));  // more than one graph takes
  RankGroup group(fixture.dir, {.dtype = DType::kBf16, .batch = 4});
  const absl::Status captured = group.runner(0).CaptureGraphs(limit, [limit](int64_t done, int64_t) {
    if (done < 2) absl::SleepFor(0.6 * limit);
    return true;
  });
  EXPECT_TRUE(captured.ok()) << captured;
}

TEST(CapturedStepsTest, ALargerGraphLeavesTheOthers) {
  if (TestDevice().is_cpu()) GTEST_SKIP() << "the CPU needs none";
  const Fixture fixture = LoadFixture("qwen2-shared");
  std::vector<std::vector<int32_t>> prompts;
  for (size_t i = 0; i < 4; ++i) prompts.push_back(fixture.greedy[i].prompt);
  for (const int world : {1, 2}) {
    if (!HasDevices(world)) GTEST_SKIP() << "skipped: needs " << world << " devices";
    RankGroup group(fixture.dir, {.dtype = DType::kBf16, .world = world, .batch = 4});
    const std::vector<std::vector<int32_t>> one = {prompts[0]};
    const std::vector<std::vector<int32_t>> expected = group.Greedy(one, 4);
    const GraphCounters& counters = group.runner(0).device_steps()->counters();
    EXPECT_EQ(counters.captured, 1);
    group.Greedy(prompts, 4);
    EXPECT_EQ(counters.captured, 2);
    EXPECT_EQ(group.Greedy(one, 4), expected);
    EXPECT_EQ(counters.captured, 2) << "the small one was there";
  }
}

// Where memory ends on one rank all go on without a graph, whether it is captured at the start or when it first comes.
TEST(CapturedStepsTest, GraphsThatDoNotFitAreDoneWithout) {
  if (!DeviceIsEmulated()) GTEST_SKIP() << "a driver may have memory to spare";
  const Fixture fixture = LoadFixture("qwen2-shared");
  std::vector<std::vector<int32_t>> prompts;
  for (size_t i = 1; i < 5; ++i) prompts.push_back(fixture.greedy[i].prompt);
  const RankGroupOptions base = {.dtype = DType::kBf16, .batch = 4, .graphs = false};
  const std::vector<std::vector<int32_t>> expected = RankGroup(fixture.dir, base).Greedy(prompts, 4);
  DeviceBackend& backend = RegisteredBackend(DeviceKind::kCuda);
  for (const int world : {1, 2}) {
    for (const bool at_start : {false, true}) {
      SCOPED_TRACE(absl::StrCat(world, " ranks, at the start: ", at_start));
      RankGroupOptions options = base;
      options.world = world;
      options.graphs = options.warm_up = true;
      RankGroup group(fixture.dir, options);
      const int full = world - 1;
      void* const others = *backend.Allocate(full, backend.Describe(full)->free_bytes);
      std::vector<std::thread> ranks;
      for (int rank = 0; at_start && rank < world; ++rank) {
        ranks.emplace_back([&, rank] {
          const absl::Status captured =
              group.runner(rank).CaptureGraphs(absl::Minutes(1), [](int64_t, int64_t) { return true; });
          EXPECT_TRUE(captured.ok()) << captured;
        });
      }
      for (std::thread& rank : ranks) rank.join();
      for (int i = 0; i < 2; ++i) EXPECT_EQ(group.Greedy(prompts, 4), expected);
      backend.Free(full, others);
      for (int rank = 0; rank < world; ++rank) {
        const GraphCounters& counters = group.runner(rank).device_steps()->counters();
        EXPECT_EQ(counters.captured, 0);
        EXPECT_EQ(counters.did_not_fit, 1) << "not tried again";
        EXPECT_EQ(counters.replayed, 0);
      }
    }
  }
}

TEST(CapturedStepsTest, SizesAreThoseThatStepsMayHave) {
  if (TestDevice().is_cpu()) GTEST_SKIP() << "the CPU needs none";
  const Fixture fixture = LoadFixture("qwen2-shared");
  RankGroup group(fixture.dir, {.batch = 5});
  const DeviceSteps& steps = *group.runner(0).device_steps();
  EXPECT_THAT(steps.Buckets(1000), testing::ElementsAre(1, 2, 4, 5));
  EXPECT_THAT(steps.Buckets(5), testing::ElementsAre(1, 2, 4, 5));
  EXPECT_THAT(steps.Buckets(3), testing::ElementsAre(1, 2, 4)) << "three decodes take the graph of four";
  EXPECT_THAT(steps.Buckets(1), testing::ElementsAre(1));
}

INSTANTIATE_TEST_SUITE_P(DTypes, DeviceStepsTest, ::testing::Values(DType::kF32, DType::kBf16, DType::kF16),
                         [](const auto& info) { return std::string(DTypeName(info.param)); });

// Random weights, and a pass of padding: what a worker does before it serves shapes without a checkpoint.
TEST(DummyWeightsTest, AnExpertsNumbersDoNotDependOnWhoHoldsIt) {
  const Fixture fixture = LoadFixture("qwen2-shared");
  const auto config = ReadModelConfig(fixture.dir);
  ASSERT_TRUE(config.ok());
  const TestStream stream;
  const auto make = [&](std::vector<int32_t> residents) {
    LoadOptions options;
    options.dtype = DType::kBf16;
    options.device = stream.get().device();
    options.residents = std::move(residents);
    auto weights = MakeDummyWeights(*config, std::move(options));
    EXPECT_TRUE(weights.ok()) << weights.status();
    return *std::move(weights);
  };
  const ModelWeights all = make({0, 1, 2, 3, 4, 5}), part = make({4, 1});
  const auto values = [&](const ops::Weight& weight) {
    Tensor rows(DType::kBf16, {weight.n(), weight.k()});
    if (weight.device().is_cpu()) {
      EXPECT_TRUE(weight.UnpackRows(0, rows).ok());
    } else {
      rows = *CopyToHost(stream, weight.rows());
    }
    return std::vector<uint8_t>(static_cast<const uint8_t*>(rows.view().raw()),
                                static_cast<const uint8_t*>(rows.view().raw()) + 2 * weight.n() * weight.k());
  };
  for (const size_t layer : {size_t{0}, all.layers.size() - 1}) {
    if (!all.layers[layer].moe.has_value()) continue;
    const auto &a = all.layers[layer].moe->experts, &b = part.layers[layer].moe->experts;
    EXPECT_EQ(values(a[4].gate_up), values(b[0].gate_up));
    EXPECT_EQ(values(a[1].down), values(b[1].down));
    EXPECT_NE(values(a[0].down), values(a[1].down));
  }
  EXPECT_EQ(values(all.lm_head), values(part.lm_head));
}

TEST(WarmUpTest, APassOfPaddingRuns) {
  if (TestDevice().is_cpu()) GTEST_SKIP() << "the CPU needs none";
  const Fixture fixture = LoadFixture("qwen2-shared");
  const auto config = ReadModelConfig(fixture.dir);
  ASSERT_TRUE(config.ok());
  const TestStream stream;
  LoadOptions options;
  options.device = stream.get().device();
  options.residents = {0, 1, 2, 3, 4, 5};
  auto weights = MakeDummyWeights(*config, std::move(options));
  ASSERT_TRUE(weights.ok()) << weights.status();
  auto model = Model::Create(stream, *config, DType::kBf16, *std::move(weights), 64);
  ASSERT_TRUE(model.ok()) << model.status();
  const moe::ExpertLayout layout = moe::ExpertLayout::Contiguous(6, 1);
  const WarmUpSize size = {.rows = 40, .recorded_rows = 8, .layout = &layout};
  EXPECT_TRUE(WarmUp(stream, model->get(), size).ok());
  const int64_t taken = MemoryInUse(DeviceKind::kCuda);
  EXPECT_TRUE(WarmUp(stream, model->get(), size).ok());
  EXPECT_EQ(MemoryInUse(DeviceKind::kCuda), taken) << "the second pass finds all scratch there";
}

// The KV cache takes what is left: no step of a group may need more later, however its rows choose their experts.
TEST(WarmUpTest, StepsOfAGroupFindTheirMemoryThere) {
  if (TestDevice().is_cpu()) GTEST_SKIP() << "the CPU needs none";
  if (!HasDevices(2)) GTEST_SKIP() << "skipped: needs 2 devices";
  const Fixture fixture = LoadFixture("qwen2-shared");
  std::vector<std::vector<int32_t>> prompts;
  for (size_t i = 0; i < 4; ++i) prompts.push_back(fixture.greedy[i].prompt);
  prompts.push_back(std::vector<int32_t>(200, 7));  // all rows alike: two experts get all of them
  for (const bool graphs : {false, true}) {
    RankGroup group(fixture.dir, {.dtype = DType::kBf16, .world = 2, .batch = 5, .graphs = graphs, .warm_up = true});
    const int64_t taken = MemoryInUse(DeviceKind::kCuda);
    group.Greedy(prompts, 4);
    EXPECT_EQ(MemoryInUse(DeviceKind::kCuda), taken) << "graphs " << graphs;
  }
}

}  // namespace
}  // namespace switchyard::model
