// What ranks measure of a layer is the same on all of them, and measuring changes nothing of the training around it.
#include "workers/train/chunks/layer_times.h"

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "scheduler/base/status_macros.h"
#include "tests/workers/train/fake_state_file.h"
#include "tests/workers/train/training_group.h"

namespace switchyard::train {
namespace {

using Values = std::map<std::string, std::vector<double>>;

constexpr char kModel[] = "tests/golden/models/olmoe-clip";
constexpr absl::Duration kLimit = absl::Seconds(60);

// Takes longer on some ranks and with some numbers, and waits for nothing.
void Compute(int64_t turns) {
  volatile double value = 1;
  for (int64_t i = 0; i < 1000 * turns; ++i) value = value * 0.999 + 1;
}

struct Measured {
  std::vector<ChunkTime> times;
  std::vector<int32_t> ran;  // the numbers of chunks, in the order of the calls
};

std::vector<Measured> MeasureOn(TrainingGroup* group, int world, int32_t most) {
  std::vector<Measured> all(static_cast<size_t>(world));
  for (const absl::Status& status : group->OnEach([&](int rank) -> absl::Status {
         Measured& mine = all[static_cast<size_t>(rank)];
         const RunLayersFn run = [&](int32_t chunks) {
           mine.ran.push_back(chunks);
           Compute(rank == 1 ? 10 * chunks : 20 / chunks);
           return absl::OkStatus();
         };
         ASSIGN_OR_RETURN(mine.times,
                          MeasureLayers({.comm = group->comm(rank), .most = most, .run = run, .limit = kLimit}));
         return absl::OkStatus();
       })) {
    EXPECT_TRUE(status.ok()) << status;
  }
  return all;
}

TEST(LayerTimesTest, AllRanksGetTheSame) {
  for (const int world : {2, 4}) {
    TrainingGroup group(kModel, {.world = world});
    const std::vector<Measured> all = MeasureOn(&group, world, 8);
    for (const Measured& each : all) {
      ASSERT_EQ(each.times.size(), 4u);
      for (size_t i = 0; i < each.times.size(); ++i) {
        EXPECT_EQ(each.times[i].chunks, 1 << i);
        EXPECT_GT(each.times[i].seconds, 0);
        EXPECT_EQ(each.times[i].seconds, all[0].times[i].seconds);
      }
      EXPECT_EQ(FastestOf(each.times).chunks, FastestOf(all[0].times).chunks);
      EXPECT_EQ(each.ran, all[0].ran) << "ranks run the same number of chunks together";
    }
  }
}

TEST(LayerTimesTest, NumbersTakeTurnsAndRunEquallyOften) {
  TrainingGroup group(kModel, {.world = 2});
  const std::vector<int32_t> ran = MeasureOn(&group, 2, 8)[0].ran;
  ASSERT_EQ(ran.size() % 4, 0u);
  const size_t rounds = ran.size() / 4;
  EXPECT_GE(rounds, 4u);  // the first does not count
  EXPECT_LE(rounds, 10u);
  for (size_t i = 0; i < ran.size(); ++i) EXPECT_EQ(ran[i], 1 << ((i % 4 + i / 4) % 4)) << "call " << i;
}

TEST(LayerTimesTest, PowersOfTwoUpToTheMost) {
  TrainingGroup group(kModel, {.world = 2});
  EXPECT_EQ(MeasureOn(&group, 2, 1)[0].times.size(), 1u);
  const std::vector<ChunkTime> times = MeasureOn(&group, 2, 6)[0].times;
  ASSERT_EQ(times.size(), 3u);
  EXPECT_EQ(times.back().chunks, 4);
}

// As the trainer, a rank that fails ends the group.
TEST(LayerTimesTest, AnErrorEndsItOnAllRanks) {
  TrainingGroup group(kModel, {.world = 2});
  int runs = 0;
  const std::vector<absl::Status> statuses = group.OnEach([&](int rank) -> absl::Status {
    const RunLayersFn run = [&](int32_t) -> absl::Status {
      if (rank == 0 || ++runs < 6) return absl::OkStatus();
      group.comm(rank)->Abort("the test's layer failed");
      return absl::DataLossError("the test's layer failed");
    };
    return MeasureLayers({.comm = group.comm(rank), .run = run, .limit = kLimit}).status();
  });
  EXPECT_EQ(statuses[0].code(), absl::StatusCode::kUnavailable) << statuses[0];
  EXPECT_EQ(statuses[1], absl::DataLossError("the test's layer failed"));
  EXPECT_EQ(runs, 6);
}

TEST(LayerTimesTest, TheFewestChunksWithinHalfAPercent) {
  EXPECT_EQ(FastestOf({{1, 5.0}}).chunks, 1);
  EXPECT_EQ(FastestOf({{1, 1.0}, {2, 0.998}, {4, 0.996}, {8, 1.2}}).chunks, 1);
  EXPECT_EQ(FastestOf({{1, 1.1}, {2, 1.004}, {4, 1.0}, {8, 2.0}}).chunks, 2);
  EXPECT_EQ(FastestOf({{1, 1.0}, {2, 0.98}, {4, 0.95}, {8, 0.9}}).chunks, 8);
  EXPECT_EQ(FastestOf({{1, 0}, {2, 0}}).chunks, 1);
  EXPECT_EQ(FastestOf({{1, 1.1}, {2, 1.004}, {4, 1.0}}).seconds, 1.004) << "its own time";
}

TEST(LayerTimesTest, Text) {
  EXPECT_EQ(ChunkTimesText({}), "");
  EXPECT_EQ(ChunkTimesText({{1, 0.0121}}), "1 chunk 12.1 ms");
  EXPECT_EQ(ChunkTimesText({{1, 0.01214}, {2, 0.0102}, {8, 0.00025}}),
            "1 chunk 12.1 ms, 2 chunks 10.2 ms, 8 chunks 0.25 ms");
}

struct Outcome {
  std::vector<double> losses, norms;
  Values masters, moments;
  bool operator==(const Outcome&) const = default;
};

absl::Status RunLayers(Trainer* trainer) {
  for (const int32_t chunks : {1, 2, 4, 8}) RETURN_IF_ERROR(trainer->RunLayers(chunks, absl::Now() + kLimit));
  return absl::OkStatus();
}

absl::Status DropBuffers(Trainer* trainer) {
  trainer->DropBuffers();
  return absl::OkStatus();
}

// As jobs do.
absl::Status RunLayersAndDropBuffers(Trainer* trainer) {
  RETURN_IF_ERROR(RunLayers(trainer));
  return DropBuffers(trainer);
}

// Steps of two micro-batches, with an evaluation between them; `between` is called on each rank before either.
Outcome Train(const TrainingGolden& golden, const TrainingGroupOptions& options,
              absl::Status (*between)(Trainer* trainer) = nullptr) {
  TrainingGroup group(golden.dir, options);
  const auto call_between = [&] {
    if (between == nullptr) return;
    const Values masters = group.Masters(), moments = group.Moments();
    for (const absl::Status& status : group.OnEach([&](int rank) { return between(&group.trainer(rank)); })) {
      EXPECT_TRUE(status.ok()) << status;
    }
    EXPECT_TRUE(group.Masters() == masters);
    EXPECT_TRUE(group.Moments() == moments);
  };
  Outcome outcome;
  for (size_t i = 0; i < 3; ++i) {
    call_between();
    const StepReport report = group.Step({RowsOfStep(golden, 2 * i), RowsOfStep(golden, 2 * i + 1)}, kLearningRate);
    EXPECT_EQ(report.chunks, 3) << "as the options say, whatever ran before";
    outcome.losses.push_back(report.loss);
    outcome.norms.push_back(report.gradient_norm);
    call_between();
    outcome.losses.push_back(group.Evaluate({RowsOfStep(golden, 0)}).loss);
    group.ExpectReplicasAlike();
  }
  outcome.masters = group.Masters();
  outcome.moments = group.Moments();
  return outcome;
}

TrainingGroupOptions OptionsOf(const TrainingGolden& golden, int world) {
  TrainingGroupOptions options = {.world = world};
  options.trainer.max_sequences = golden.sequences;
  options.trainer.max_length = golden.length;
  options.trainer.communication.granularity = {.rule = jobs::ChunkRule::kFixed, .chunks = 3};
  return options;
}

// Also where a dense layer comes first, where the embedding's rows are gathered, and on a rank alone.
TEST(RunLayerTest, ChangesNoParameterAndNoBitOfWhatFollows) {
  for (const std::string name : {"olmoe-clip", "qwen2-shared", "gpt2-top2"}) {
    const TrainingGolden golden = LoadTrainingGolden(name);
    for (const int world : {1, 2, 4}) {
      for (const int64_t step_tokens : {int64_t{0}, 2 * golden.sequences * golden.length}) {
        SCOPED_TRACE(absl::StrCat(name, " on ", world, ", tokens of a step: ", step_tokens));
        TrainingGroupOptions options = OptionsOf(golden, world);
        options.trainer.step_tokens = step_tokens;
        EXPECT_TRUE(Train(golden, options, RunLayers) == Train(golden, options));
      }
    }
  }
}

TEST(RunLayerTest, GoesWithWhateverIsKeptShardedOrPacked) {
  const TrainingGolden golden = LoadTrainingGolden("olmoe-clip");
  const TrainingGroupOptions plain = OptionsOf(golden, 2);
  TrainingGroupOptions again = plain, offloads = plain, sharded = plain, packed = plain;
  again.trainer.save = model::SavePolicy::kLayerInputs;
  offloads.trainer.restore = {.input = pipeline::InputRestore::kOffload, .hidden = pipeline::HiddenRestore::kOffload};
  offloads.trainer.open_activations = FakeStateFile::Open;
  sharded.zero = true;
  packed.packing = 2;
  for (const TrainingGroupOptions& options : {plain, again, offloads, sharded, packed}) {
    const Outcome undisturbed = Train(golden, options);
    for (const auto between : {RunLayers, DropBuffers, RunLayersAndDropBuffers}) {
      EXPECT_TRUE(Train(golden, options, between) == undisturbed);
    }
  }
}

TEST(RunLayerTest, AGroupThatHasEndedIsAnError) {
  const TrainingGolden golden = LoadTrainingGolden("olmoe-clip");
  TrainingGroup group(golden.dir, OptionsOf(golden, 2));
  group.comm(1)->Abort("ended by the test");
  for (const absl::Status& status :
       group.OnEach([&](int rank) { return group.trainer(rank).RunLayers(2, absl::Now() + kLimit); })) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  }
}

}  // namespace
}  // namespace switchyard::train
