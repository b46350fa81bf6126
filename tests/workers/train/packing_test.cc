// Packing of experts in training: the same model on groups of fewer ranks, and from one packing to another while it
// trains.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"
#include "tests/workers/comm/comm_test_util.h"
#include "tests/workers/model/fixture.h"
#include "tests/workers/train/training_group.h"
#include "workers/comm/faulty_communicator.h"
#include "workers/train/expert_groups.h"
#include "workers/train/parameter_files.h"
#include "workers/train/parameter_snapshot.h"
#include "workers/train/repack.h"

namespace switchyard {
namespace {

using testing::Each;
using testing::HasSubstr;
using Values = std::map<std::string, std::vector<double>>;

std::vector<int> PackingsOf(int world) {
  std::vector<int> packings;
  for (int p = 1; p <= world; p *= 2) packings.push_back(p);
  return packings;
}

// The farthest that a value is from its reference, of the largest of its tensor.
double Distance(const Values& values, const Values& reference) {
  EXPECT_EQ(values.size(), reference.size());
  double distance = 0;
  for (const auto& [name, expected] : reference) {
    const std::vector<double>& actual = values.at(name);
    double largest = 0, difference = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      largest = std::max(largest, std::abs(expected[i]));
      difference = std::max(difference, std::abs(actual[i] - expected[i]));
    }
    if (difference > 0) distance = std::max(distance, difference / largest);
  }
  return distance;
}

void ExpectOk(const std::vector<absl::Status>& statuses) { EXPECT_THAT(statuses, Each(absl::OkStatus())); }

TEST(PackedResidentsTest, EveryGroupHasEveryExpertOnce) {
  for (const int world : {1, 2, 4, 6, 8}) {
    for (int packing = 1; packing <= world; ++packing) {
      if (world % packing != 0) {
        EXPECT_EQ(CheckPacking(world, packing).message(),
                  absl::StrCat("packing ", packing, " does not divide ", world, " ranks"));
        continue;
      }
      EXPECT_TRUE(CheckPacking(world, packing).ok());
      const int holders = world / packing;
      for (int group = 0; group < packing; ++group) {
        std::vector<int32_t> all;
        for (int place = 0; place < holders; ++place) {
          for (const int32_t expert : PackedResidents(7, world, packing, group * holders + place)) {
            all.push_back(expert);
          }
        }
        EXPECT_EQ(all, (std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6}));  // neighbours have neighbouring experts
      }
    }
  }
  EXPECT_FALSE(CheckPacking(4, 0).ok());
  EXPECT_FALSE(CheckPacking(4, -2).ok());
}

class PackingTest : public ::testing::TestWithParam<std::string> {
 protected:
  const TrainingGolden golden_ = LoadTrainingGolden(GetParam());

  TrainRows Rows(size_t step) const { return RowsOfStep(golden_, step); }
};

TEST_P(PackingTest, ForwardHasTheSameBits) {
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBf16}) {
    for (const int world : dtype == DType::kF32 ? std::vector<int>{1, 2, 4, 8} : std::vector<int>{4}) {
      StepReport expected;
      for (const int packing : PackingsOf(world)) {
        TrainingGroup group(golden_.dir, {.dtype = dtype, .world = world, .packing = packing});
        const double evaluated = group.Evaluate({Rows(0)}).loss;
        const StepReport report = group.Step({Rows(0)}, 0);  // forward keeps what backward needs
        EXPECT_EQ(report.loss, evaluated);
        if (packing == 1) expected = report;
        EXPECT_EQ(report.loss, expected.loss) << packing << " of " << world;
        EXPECT_EQ(report.balance_loss, expected.balance_loss) << packing << " of " << world;
        EXPECT_EQ(report.z_loss, expected.z_loss) << packing << " of " << world;
        EXPECT_EQ(report.dead_experts, expected.dead_experts) << packing << " of " << world;
      }
    }
  }
}

TEST_P(PackingTest, GradientsAreThoseWithoutPacking) {
  for (const auto& [dtype, tolerance] : {std::make_pair(DType::kF64, 1e-12), std::make_pair(DType::kF32, 1e-5)}) {
    for (const int world : {2, 4, 8}) {
      Values expected;
      double norm = 0;
      for (const int packing : PackingsOf(world)) {
        TrainingGroup group(golden_.dir, {.dtype = dtype, .world = world, .packing = packing});
        const StepReport report = group.Step({Rows(0), Rows(1)}, kLearningRate);
        group.ExpectReplicasAlike();
        if (packing == 1) {
          expected = group.Gradients();
          norm = report.gradient_norm;
        }
        EXPECT_LE(Distance(group.Gradients(), expected), tolerance) << packing << " of " << world;
        EXPECT_NEAR(report.gradient_norm, norm, tolerance * norm) << packing << " of " << world;
      }
    }
  }
}

// Small pieces: many sums over both groups, and several chunks a layer.
constexpr CommunicationSpec kPacked = {.mode = CommMode::kPipelining, .piece_bytes = 8192};

// 1, 2, 4 and back, over threads.
TEST_P(PackingTest, ChangesWhileItTrains) {
  TrainingGroup unpacked(golden_.dir, {.dtype = DType::kF64, .world = 4});
  TrainingGroupOptions options = {.dtype = DType::kF64, .world = 4};
  options.trainer.communication = kPacked;
  TrainingGroup packed(golden_.dir, options);
  size_t step = 0;
  for (const int packing : {1, 2, 4, 2, 1, 4}) {
    const Values masters = packed.Masters(), moments = packed.Moments();
    ExpectOk(packed.TryRepack(packing));
    for (int r = 0; r < 4; ++r) {
      EXPECT_EQ(packed.groups(r).packing(), packing);
      EXPECT_EQ(packed.model(r).weights().residents,
                PackedResidents(static_cast<int>(packed.model(r).config().num_experts), 4, packing, r));
    }
    EXPECT_EQ(packed.Masters(), masters);
    EXPECT_EQ(packed.Moments(), moments);
    for (int i = 0; i < 2; ++i, ++step) {
      const double expected = unpacked.Step({Rows(step)}, kLearningRate).loss;
      EXPECT_NEAR(packed.Step({Rows(step)}, kLearningRate).loss, expected, 1e-10 * expected) << "step " << step;
    }
    packed.ExpectReplicasAlike();
  }
  EXPECT_LE(Distance(packed.Masters(), unpacked.Masters()), 1e-9);
}

// Where an expert's values came from cannot be told: it goes on as a group does that always had this packing.
TEST_P(PackingTest, IsAsIfItHadAlwaysBeenSo) {
  TrainingGroup always(golden_.dir, {.world = 4, .packing = 2}), changed(golden_.dir, {.world = 4});
  ExpectOk(changed.TryRepack(2));
  for (size_t step = 0; step < 3; ++step) {
    EXPECT_EQ(changed.Step({Rows(step)}, kLearningRate).loss, always.Step({Rows(step)}, kLearningRate).loss);
  }
  EXPECT_EQ(changed.Masters(), always.Masters());
  EXPECT_EQ(changed.Moments(), always.Moments());
}

TEST_P(PackingTest, EveryParameterIsSavedOnce) {
  for (const int packing : {1, 2, 4}) {
    TrainingGroup group(golden_.dir, {.world = 4});
    const size_t parameters = group.Masters().size();
    ExpectOk(group.TryRepack(packing));
    std::set<std::string> names;
    size_t tensors = 0;
    for (int r = 0; r < 4; ++r) {
      for (const CheckpointFile& file : ParameterFiles(group.parameters(r).blocks(), r, 4, DType::kF32)) {
        for (const auto& tensor : file.tensors) {
          names.insert(tensor.name);
          ++tensors;
        }
      }
    }
    EXPECT_EQ(names.size(), 4 * parameters);  // and its master and two moments
    EXPECT_EQ(tensors, names.size()) << packing;
  }
}

// Memory of a copy is kept for the next, but not for another rank's experts.
TEST_P(PackingTest, CopiesAreOfTheExpertsThatAreThere) {
  TrainingGroup group(golden_.dir, {.world = 4});
  std::vector<ParameterSnapshot> copies(4);
  ThreadPool pool(1);
  const Stream stream = Stream::OnCpu(&pool);
  for (const int packing : {1, 2, 4}) {
    ExpectOk(group.TryRepack(packing));
    std::set<std::string> names;
    for (int r = 0; r < 4; ++r) {
      EXPECT_GE(copies[r].BytesToTake(group.parameters(r), r), 0);
      ASSERT_TRUE(copies[r].Take(stream, group.parameters(r), r).ok());
      EXPECT_EQ(copies[r].BytesToTake(group.parameters(r), r), 0);
      for (const ParameterBlock& copy : copies[r].blocks()) {
        EXPECT_TRUE(names.insert(copy.parts[0].name).second) << copy.parts[0].name;
        for (const ParameterBlock& block : group.parameters(r).blocks()) {
          if (block.parts[0].name != copy.parts[0].name) continue;
          EXPECT_EQ(std::memcmp(block.master.view().raw(), copy.master.view().raw(), block.master.bytes()), 0);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Goldens, PackingTest, ::testing::ValuesIn(TrainingGoldenNames()),
                         [](const auto& info) { return TestName(info.param); });

class RepackTest : public ::testing::Test {
 protected:
  const TrainingGolden golden_ = LoadTrainingGolden("qwen2-shared");

  TrainingGroupOptions OverGloo(int world) const {
    TrainingGroupOptions options = {.dtype = DType::kF64, .world = world};
    options.trainer.communication = kPacked;
    options.form = [](int ranks) { return test::MakeGroup(test::Backend::kGloo, ranks); };
    return options;
  }
};

TEST_F(RepackTest, OverGloo) {
  TrainingGroup unpacked(golden_.dir, {.dtype = DType::kF64, .world = 4}), packed(golden_.dir, OverGloo(4));
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

// Rank `lost` is gone at its n-th launch, for every n of a change of packing.
TEST_F(RepackTest, ARankThatIsLostLeavesNothingHalfChanged) {
  constexpr int kWorld = 4, kLost = 2;
  int64_t launch = 0;
  for (bool changed = false; !changed; ++launch) {
    TrainingGroupOptions options = {.world = kWorld};
    int made = 0;
    options.wrap = [&](std::unique_ptr<Communicator> inner) {
      if (made++ != kLost) return inner;
      return MakeFaultyCommunicator(std::move(inner),
                                    {.kind = CommFault::Kind::kFail, .at_launch = launch, .delay = {}});
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

TEST_F(RepackTest, ARankWithoutRoomKeepsAllWhereTheyAre) {
  constexpr int kWorld = 4;
  TrainingGroup group(golden_.dir, {.world = kWorld});
  group.Step({RowsOfStep(golden_, 0)}, kLearningRate);
  const Values masters = group.Masters(), moments = group.Moments();
  const int64_t bytes = MemoryInUse(DeviceKind::kCpu);
  std::vector<std::string> refusals(kWorld);
  std::vector<std::unique_ptr<Repack>> repacks(kWorld);
  ExpectOk(group.OnEach([&](int r) -> absl::Status {
    ASSIGN_OR_RETURN(repacks[r],
                     Repack::Prepare(group.groups(r), &group.parameters(r),
                                     {.packing = 2, .available_bytes = r >= 2 ? 1000 : INT64_MAX}, test::Soon()));
    refusals[r] = repacks[r]->refusal();
    return absl::OkStatus();
  }));
  EXPECT_THAT(refusals[0], HasSubstr("rank 2: 3 more experts a layer take "));
  EXPECT_THAT(refusals[0], HasSubstr(" bytes, 1000 are available"));
  EXPECT_THAT(refusals, Each(refusals[0]));
  EXPECT_EQ(MemoryInUse(DeviceKind::kCpu), bytes);
  EXPECT_EQ(group.Masters(), masters);
  EXPECT_EQ(group.Moments(), moments);
  EXPECT_GT(group.Step({RowsOfStep(golden_, 1)}, kLearningRate).loss, 0);
}

// What is said to be needed is what is taken.
TEST_F(RepackTest, TakesNoMoreThanItAsksFor) {
  constexpr int kWorld = 2;
  TrainingGroup group(golden_.dir, {.dtype = DType::kF64, .world = kWorld});
  for (int r = 0; r < kWorld; ++r) {
    const int64_t before = MemoryInUse(DeviceKind::kCpu);
    const absl::StatusOr<NewExperts> experts = group.parameters(r).AllocateExperts({0, 5});
    ASSERT_TRUE(experts.ok());
    EXPECT_EQ(MemoryInUse(DeviceKind::kCpu) - before, experts->bytes());
  }
}

// They fail, all of them and at once, and keep what they have.
TEST_F(RepackTest, RanksThatDoNotMeanTheSamePacking) {
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

TEST_F(RepackTest, PackingsThatDoNotDivideTheRanks) {
  TrainingGroup group(golden_.dir, {.world = 4});
  for (const absl::Status& status : group.TryRepack(3)) {
    EXPECT_EQ(status.message(), "packing 3 does not divide 4 ranks");
  }
}

}  // namespace
}  // namespace switchyard
