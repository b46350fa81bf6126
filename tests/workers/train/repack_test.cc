// A change of packing that fails, or that there is no room for, with masters and moments in memory or in files.
#include "workers/train/packing/repack.h"

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/base/status_macros.h"
#include "tests/workers/comm/comm_test_util.h"
#include "tests/workers/comm/faulty_communicator.h"
#include "tests/workers/train/fake_state_file.h"
#include "tests/workers/train/training_group.h"
#include "workers/train/packing/expert_groups.h"
#include "workers/train/step/train_outcome.h"

namespace switchyard::train {
namespace {

using testing::Each;
using testing::HasSubstr;
using Values = std::map<std::string, std::vector<double>>;

// Small pieces: many sums over both groups, and several chunks a layer.
constexpr jobs::CommunicationSpec kPacked = {.mode = jobs::CommMode::kPipelining, .piece_bytes = 8192};

void ExpectOk(const std::vector<absl::Status>& statuses) { EXPECT_THAT(statuses, Each(absl::OkStatus())); }

class RepackTest : public ::testing::TestWithParam<bool> {
 protected:
  const TrainingGolden golden_ = LoadTrainingGolden("qwen2-shared");

  TrainingGroupOptions InPlace(TrainingGroupOptions options) const {
    if (GetParam()) options.offload = [](int) { return OpenStateFileFn(FakeStateFile::Open); };
    return options;
  }

  TrainingGroupOptions OverSockets(int world) const {
    TrainingGroupOptions options = {.dtype = DType::kF64, .world = world};
    options.trainer.communication = kPacked;
    options.form = [](int ranks) { return test::MakeGroup(test::Backend::kSocket, ranks); };
    return InPlace(options);
  }
};

INSTANTIATE_TEST_SUITE_P(Places, RepackTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Files" : "Memory"; });

TEST_P(RepackTest, OverSockets) {
  TrainingGroup unpacked(golden_.dir, {.dtype = DType::kF64, .world = 4}), packed(golden_.dir, OverSockets(4));
  size_t step = 0;
  for (const int packing : {1, 2, 4}) {
    const Values masters = packed.Masters(), moments = packed.Moments();
    ExpectOk(packed.TryRepack(packing));
    EXPECT_EQ(packed.Masters(), masters);
    EXPECT_EQ(packed.Moments(), moments);
    for (int i = 0; i < 2; ++i, ++step) {
      const TrainRows rows = RowsOfStep(golden_, step);
      const double expected = unpacked.Step({rows}, kLearningRate).loss;
      EXPECT_NEAR(packed.Step({rows}, kLearningRate).loss, expected, 1e-10 * expected) << "step " << step;
    }
    packed.ExpectReplicasAlike();
  }
}

// Rank `lost` dies at its n-th launch, for every n of a change of packing.
TEST_P(RepackTest, ARankThatIsLostLeavesNothingHalfChanged) {
  constexpr int kWorld = 4, kLost = 2;
  int64_t launch = 0;
  for (bool changed = false; !changed; ++launch) {
    TrainingGroupOptions options = InPlace({.world = kWorld});
    int made = 0;
    options.wrap = [&](std::unique_ptr<comm::Communicator> inner) {
      if (made++ != kLost) return inner;
      return comm::MakeFaultyCommunicator(std::move(inner),
                                          {.kind = comm::CommFault::Kind::kFail, .at_launch = launch, .delay = {}});
    };
    TrainingGroup group(golden_.dir, options);
    const Values masters = group.Masters();
    const absl::Time start = absl::Now();
    const std::vector<absl::Status> statuses = group.TryRepack(2);
    EXPECT_LT(absl::Now() - start, absl::Seconds(30)) << "launch " << launch;  // the deadline is 60
    changed = statuses[kLost].ok();
    for (int r = 0; r < kWorld; ++r) {
      EXPECT_EQ(statuses[r].ok(), changed) << "launch " << launch << ", rank " << r << ": " << statuses[r];
      EXPECT_EQ(group.groups(r).packing(), changed ? 2 : 1);
      EXPECT_EQ(group.model(r).weights().residents, PackedResidents(6, kWorld, changed ? 2 : 1, r));
    }
    EXPECT_EQ(group.Masters(), masters) << "launch " << launch;
    group.ExpectReplicasAlike();
  }
  EXPECT_EQ(launch - 1, 6);  // room, two splits, two layers of experts, the barrier
}

TEST_P(RepackTest, ARankWithoutRoomKeepsAllWhereTheyAre) {
  constexpr int kWorld = 4;
  TrainingGroup group(golden_.dir, InPlace({.world = kWorld}));
  group.Step({RowsOfStep(golden_, 0)}, kLearningRate);
  const Values masters = group.Masters(), moments = group.Moments();
  const int64_t bytes = MemoryInUse(DeviceKind::kCpu);
  std::vector<std::string> refusals(kWorld);
  std::vector<std::unique_ptr<Repack>> repacks(kWorld);
  ExpectOk(group.OnEach([&](int r) -> absl::Status {
    ASSIGN_OR_RETURN(repacks[r],
                     Repack::Prepare(group.groups(r), &group.parameters(r),
                                     {.packing = 2,
                                      .available_bytes = r >= 2 ? 1000 : INT64_MAX,
                                      .open_offload = GetParam() ? OpenStateFileFn(FakeStateFile::Open) : nullptr},
                                     test::Soon()));
    EXPECT_TRUE(absl::IsUnavailable(repacks[r]->refusal())) << "it is not the disk: " << repacks[r]->refusal();
    refusals[r] = std::string(repacks[r]->refusal().message());
    return absl::OkStatus();
  }));
  EXPECT_THAT(refusals[0], HasSubstr("rank 2: 3 more experts a layer take "));
  EXPECT_THAT(refusals[0], HasSubstr(GetParam() ? " bytes, with masters and moments in a file, 1000 are available"
                                                : " bytes, 1000 are available"));
  EXPECT_THAT(refusals, Each(refusals[0]));
  EXPECT_EQ(MemoryInUse(DeviceKind::kCpu), bytes);
  EXPECT_EQ(group.Masters(), masters);
  EXPECT_EQ(group.Moments(), moments);
  EXPECT_GT(group.Step({RowsOfStep(golden_, 1)}, kLearningRate).loss, 0);
}

// Nor does a message that is too large end a job.
TEST_P(RepackTest, AMessageIsNotTooLargeOrNothingIsMoved) {
  constexpr int kWorld = 4;
  TrainingGroup group(golden_.dir, InPlace({.world = kWorld}));
  const model::ModelConfig& config = group.model(0).config();
  // Rank 0 sends both of its experts to rank 2.
  const int64_t one = 3 * 4 * 3 * config.hidden * config.expert_intermediate;
  for (const bool fits : {false, true}) {
    ExpectOk(group.OnEach([&](int r) -> absl::Status {
      std::unique_ptr<Repack> repack;
      ASSIGN_OR_RETURN(repack,
                       Repack::Prepare(group.groups(r), &group.parameters(r),
                                       {.packing = 2, .message_bytes = 2 * one - (fits ? 0 : 1)}, test::Soon()));
      if (fits) {
        EXPECT_EQ(repack->refusal(), absl::OkStatus());
        return absl::OkStatus();
      }
      EXPECT_TRUE(absl::IsUnavailable(repack->refusal())) << repack->refusal();
      EXPECT_THAT(std::string(repack->refusal().message()),
                  HasSubstr(absl::StrCat(": a layer's experts for another rank are a message of ", 2 * one,
                                         " bytes, at most ", 2 * one - 1, " can be sent")));
      return absl::OkStatus();
    }));
  }
  EXPECT_GT(group.Step({RowsOfStep(golden_, 1)}, kLearningRate).loss, 0);
}

// The memory that is requested is the memory that is used.
TEST_P(RepackTest, TakesNoMoreThanItAsksFor) {
  constexpr int kWorld = 2;
  TrainingGroup group(golden_.dir, InPlace({.dtype = DType::kF64, .world = kWorld}));
  for (int r = 0; r < kWorld; ++r) {
    for (const bool into_file : {false, true}) {
      const int64_t before = MemoryInUse(DeviceKind::kCpu);
      const absl::StatusOr<NewExperts> experts =
          group.parameters(r).AllocateExperts({0, 5}, into_file ? OpenStateFileFn(FakeStateFile::Open) : nullptr);
      ASSERT_TRUE(experts.ok());
      EXPECT_EQ(experts->ids, (std::vector<int32_t>{r == 0 ? 5 : 0}));
      EXPECT_EQ(experts->offload != nullptr, into_file);
      const int64_t taken = MemoryInUse(DeviceKind::kCpu) - before;
      const int64_t asked = group.parameters(r).BytesOfExperts({.added = 1, .staying = 1, .offload = into_file});
      EXPECT_GE(taken, asked);  // packing rounds up
      EXPECT_LE(taken, asked + asked / 2);
    }
  }
}

// Rank 2's file fails at its n-th call, for every n of a change of packing.
TEST_P(RepackTest, AFileThatIsFullLeavesNothingHalfChanged) {
  constexpr int kWorld = 4, kFails = 2;
  int64_t at = 0;
  for (bool changed = false; !changed; at = at * 3 / 2 + 1) {
    std::atomic<int64_t> left = INT64_MAX;
    const auto hook = [&left](bool writes, int64_t byte) -> absl::Status {
      if (left-- > 0) return absl::OkStatus();
      return Lost(absl::ResourceExhaustedError(
          absl::StrCat("offload: ", writes ? "write" : "read", " at byte ", byte, ": No space left on device")));
    };
    const auto open = [&hook](int rank) -> OpenStateFileFn {
      return [&hook, rank](int64_t bytes) -> absl::StatusOr<std::unique_ptr<StateFile>> {
        return std::make_unique<FakeStateFile>(bytes, rank == kFails ? FakeStateFile::Hook(hook) : nullptr);
      };
    };
    TrainingGroupOptions options = {.world = kWorld};
    if (GetParam()) options.offload = open;  // else it is to begin
    TrainingGroup group(golden_.dir, options);
    const Values masters = group.Masters(), moments = group.Moments();
    left = at;
    const std::vector<absl::Status> statuses = group.TryRepack(2, open);
    left = INT64_MAX;
    changed = statuses[kFails].ok();
    if (!changed) {
      EXPECT_EQ(statuses[kFails].code(), absl::StatusCode::kResourceExhausted) << statuses[kFails];
      EXPECT_EQ(OutcomeOf(statuses[kFails]), jobs::TrainOutcome::kLost);
    }
    for (int r = 0; r < kWorld; ++r) {
      EXPECT_EQ(statuses[r].ok(), changed) << at << ", rank " << r << ": " << statuses[r];
      EXPECT_EQ(group.groups(r).packing(), changed ? 2 : 1);
      EXPECT_EQ(group.model(r).weights().residents, PackedResidents(6, kWorld, changed ? 2 : 1, r));
    }
    EXPECT_EQ(group.Masters(), masters) << at;
    EXPECT_EQ(group.Moments(), moments) << at;
    group.ExpectReplicasAlike();
  }
  EXPECT_GT(at, 5);
}

// Without room for the file nothing is moved, and all ranks continue.
TEST_P(RepackTest, AFileWithoutRoomKeepsAllWhereTheyAre) {
  constexpr int kWorld = 4;
  TrainingGroup group(golden_.dir, InPlace({.world = kWorld})), same(golden_.dir, {.world = kWorld});
  const OpenStateFileFn full = [](int64_t) -> absl::StatusOr<std::unique_ptr<StateFile>> {
    return Lost(absl::ResourceExhaustedError("offload: /d: room: No space left on device"));
  };
  // (Messages keep their memory.)
  const TrainRows first = RowsOfStep(golden_, 0);
  EXPECT_EQ(group.Step({first}, kLearningRate).loss, same.Step({first}, kLearningRate).loss);
  const int64_t bytes = MemoryInUse(DeviceKind::kCpu);
  ExpectOk(group.OnEach([&](int r) -> absl::Status {
    std::unique_ptr<Repack> repack;
    const OpenStateFileFn open = r == 1 ? full : OpenStateFileFn(FakeStateFile::Open);
    ASSIGN_OR_RETURN(repack, Repack::Prepare(group.groups(r), &group.parameters(r),
                                             {.packing = 2, .open_offload = open, .offloads = true}, test::Soon()));
    EXPECT_TRUE(absl::IsResourceExhausted(repack->refusal())) << repack->refusal();
    EXPECT_EQ(repack->refusal().message(), "rank 1: offload: /d: room: No space left on device");
    return absl::OkStatus();
  }));
  EXPECT_EQ(MemoryInUse(DeviceKind::kCpu), bytes);
  const TrainRows rows = RowsOfStep(golden_, 1);
  EXPECT_EQ(group.Step({rows}, kLearningRate).loss, same.Step({rows}, kLearningRate).loss);
  EXPECT_EQ(group.Masters(), same.Masters());
}

// They fail, all of them and at once, and keep what they have.
TEST_P(RepackTest, RanksThatDoNotMeanTheSamePacking) {
  constexpr int kWorld = 4;
  TrainingGroup group(golden_.dir, {.world = kWorld});
  const Values masters = group.Masters();
  std::vector<std::unique_ptr<Repack>> repacks(kWorld);
  const absl::Time start = absl::Now();
  const std::vector<absl::Status> statuses = group.OnEach([&](int r) -> absl::Status {
    const absl::Time deadline = start + absl::Seconds(60);
    ASSIGN_OR_RETURN(repacks[r],
                     Repack::Prepare(group.groups(r), &group.parameters(r), {.packing = r == 3 ? 4 : 2}, deadline));
    return repacks[r]->Run(deadline).status();
  });
  EXPECT_LT(absl::Now() - start, absl::Seconds(30));
  bool named = false;
  for (int r = 0; r < kWorld; ++r) {
    EXPECT_FALSE(statuses[r].ok()) << r;
    named = named || absl::IsInternal(statuses[r]);
    EXPECT_EQ(group.model(r).weights().residents, PackedResidents(6, kWorld, 1, r));
  }
  EXPECT_TRUE(named) << statuses[0];
  EXPECT_EQ(group.Masters(), masters);
}

TEST_P(RepackTest, PackingsThatDoNotDivideTheRanks) {
  TrainingGroup group(golden_.dir, {.world = 4});
  for (const absl::Status& status : group.TryRepack(3)) {
    EXPECT_EQ(status.message(), "packing 3 does not divide 4 ranks");
  }
}

}  // namespace
}  // namespace switchyard::train
