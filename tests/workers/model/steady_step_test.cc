// A step that is replayed makes no call of the CUDA runtime that allocates, waits for the device or makes what could be
// kept: only on the emulation, which counts calls.
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/cuda_emulation/control.h"
#include "tests/workers/model/fixture.h"
#include "tests/workers/model/rank_group.h"
#include "workers/model/runner/device_steps.h"

namespace switchyard::model {
namespace {

// Uploads, the graph, results, a fence behind the collectives; waiting is by looking at an event.
constexpr const char* kMayBeCalled[] = {"cudaMemcpyAsync", "cudaGraphLaunch",     "cudaEventRecord",
                                        "cudaEventQuery",  "cudaStreamWaitEvent", "cudaStreamIsCapturing",
                                        "cudaStreamQuery"};

struct Counted {
  std::map<std::string, int64_t> calls;
  cuda_emulation::Uploads uploads;
  int64_t replayed = 0;
};

// The figures of greedy runs from the first prompt to the last token.
Counted RunGreedy(RankGroup* group, const std::vector<std::vector<int32_t>>& prompts, int32_t tokens) {
  const DeviceSteps& steps = *group->runner(0).device_steps();
  const int64_t before = steps.counters().replayed;
  cuda_emulation::CountCalls();
  group->Greedy(prompts, tokens);
  return {cuda_emulation::CountedCalls(), cuda_emulation::CountedUploads(), steps.counters().replayed - before};
}

class SteadyStepTest : public testing::TestWithParam<std::tuple<int, int>> {};

TEST_P(SteadyStepTest, AllocatesNothingAndWaitsForNothing) {
  const auto [world, in_flight] = GetParam();
  const Fixture fixture = LoadFixture("qwen2-shared");
  const std::vector<std::vector<int32_t>> prompts(4, fixture.greedy[0].prompt);
  RankGroupOptions options = {.dtype = DType::kBf16, .world = world, .batch = 4};
  options.in_flight = in_flight;
  RankGroup group(fixture.dir, options);
  group.Greedy(prompts, 8);  // records
  // What both runs share, the prompts, is in both; what is left are steps that are replayed.
  Counted few = RunGreedy(&group, prompts, 3);
  const Counted more = RunGreedy(&group, prompts, 8);
  EXPECT_EQ(more.replayed - few.replayed, 5);
  for (const char* name : kMayBeCalled) few.calls[name] = more.calls.count(name) > 0 ? more.calls.at(name) : 0;
  for (const auto& [name, calls] : more.calls) EXPECT_EQ(calls - few.calls[name], 0) << name << " in 5 steady steps";
  EXPECT_EQ(more.uploads.copies - few.uploads.copies, 5 * world) << "a step's numbers travel in one copy";
}

INSTANTIATE_TEST_SUITE_P(Ways, SteadyStepTest,
                         testing::Combine(testing::Values(1, 2), testing::Values(1, ModelRunner::kMaxStarted)),
                         [](const auto& info) {
                           return absl::StrCat(std::get<0>(info.param), "_ranks_", std::get<1>(info.param),
                                               "_in_flight");
                         });

// A step sends what is new in block tables, here an entry of each sequence.
TEST(StepUploadTest, BytesDoNotGrowWithTheContext) {
  const Fixture fixture = LoadFixture("qwen2-shared");
  RankGroup group(fixture.dir, {.dtype = DType::kBf16, .block_size = 1, .batch = 4});
  const auto bytes = [&](size_t context) {
    const std::vector<std::vector<int32_t>> prompts(4, std::vector<int32_t>(context, 7));
    group.Greedy(prompts, 4);  // records
    const Counted few = RunGreedy(&group, prompts, 3), more = RunGreedy(&group, prompts, 8);
    EXPECT_EQ(more.replayed - few.replayed, 5);
    return (more.uploads.bytes - few.uploads.bytes) / 5;
  };
  const int64_t few_keys = bytes(8);
  EXPECT_EQ(bytes(72), few_keys);
  EXPECT_LT(few_keys, 8 << 10) << "the tables of 4 sequences of 640 positions have 10 KiB";
}

}  // namespace
}  // namespace switchyard::model
