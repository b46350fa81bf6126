// Packing of experts in training: the same model on groups of fewer ranks, and from one packing to another while it
// trains, with masters and moments in memory or in files.  What fails: repack_test.cc.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/workers/model/fixture.h"
#include "tests/workers/train/fake_state_file.h"
#include "tests/workers/train/training_group.h"
#include "workers/train/packing/expert_groups.h"
#include "workers/train/parameters/parameter_files.h"
#include "workers/train/parameters/parameter_snapshot.h"

namespace switchyard::train {
namespace {

using testing::Each;
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

// Where masters and moments of experts are; mixed: in files on every other rank.
enum class Place { kMemory, kFiles, kMixed };

class PackingTest : public ::testing::TestWithParam<std::tuple<std::string, Place>> {
 protected:
  const TrainingGolden golden_ = LoadTrainingGolden(std::get<0>(GetParam()));
  const Place place_ = std::get<1>(GetParam());

  TrainRows Rows(size_t step) const { return RowsOfStep(golden_, step); }
  TrainingGroupOptions InPlace(TrainingGroupOptions options) const {
    if (place_ == Place::kMemory) return options;
    options.offload = [place = place_](int rank) {
      return place == Place::kFiles || rank % 2 == 1 ? OpenStateFileFn(FakeStateFile::Open) : nullptr;
    };
    return options;
  }
  void ExpectPlaces(TrainingGroup* group, int world) const {
    for (int r = 0; r < world; ++r) {
      const bool in_file = place_ == Place::kFiles || (place_ == Place::kMixed && r % 2 == 1);
      const bool has_any = !group->model(r).weights().residents.empty();
      EXPECT_EQ(group->parameters(r).offload() != nullptr, in_file && has_any) << r;
      for (const ParameterBlock& block : group->parameters(r).blocks()) {
        EXPECT_EQ(block.offloaded != nullptr, in_file && block.shard == model::Shard::kExpert);
        EXPECT_EQ(block.master.bytes() == 0, block.offloaded != nullptr);
      }
    }
  }
};

TEST_P(PackingTest, ForwardHasTheSameBits) {
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBf16}) {
    for (const int world : dtype == DType::kF32 ? std::vector<int>{1, 2, 4, 8} : std::vector<int>{4}) {
      StepReport expected;
      for (const int packing : PackingsOf(world)) {
        TrainingGroup group(golden_.dir, InPlace({.dtype = dtype, .world = world, .packing = packing}));
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
        TrainingGroup group(golden_.dir, InPlace({.dtype = dtype, .world = world, .packing = packing}));
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
constexpr jobs::CommunicationSpec kPacked = {.mode = jobs::CommMode::kPipelining, .piece_bytes = 8192};

// 1, 2, 4 and back, over threads.
TEST_P(PackingTest, ChangesWhileItTrains) {
  TrainingGroup unpacked(golden_.dir, {.dtype = DType::kF64, .world = 4});
  TrainingGroupOptions options = {.dtype = DType::kF64, .world = 4};
  options.trainer.communication = kPacked;
  TrainingGroup packed(golden_.dir, InPlace(options));
  size_t step = 0;
  for (const int packing : {1, 2, 4, 2, 1, 4}) {
    const Values masters = packed.Masters(), moments = packed.Moments();
    ExpectOk(packed.TryRepack(packing));
    for (int r = 0; r < 4; ++r) {
      EXPECT_EQ(packed.groups(r).packing(), packing);
      EXPECT_EQ(packed.model(r).weights().residents,
                PackedResidents(static_cast<int>(packed.model(r).config().num_experts), 4, packing, r));
    }
    ExpectPlaces(&packed, 4);
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

// Neither earlier packings nor files change bits: training continues as in a group that always had this packing, in
// memory.
TEST_P(PackingTest, IsAsIfItHadAlwaysBeenSo) {
  TrainingGroup always(golden_.dir, {.world = 4, .packing = 2}), changed(golden_.dir, InPlace({.world = 4}));
  ExpectOk(changed.TryRepack(2));
  for (size_t step = 0; step < 3; ++step) {
    EXPECT_EQ(changed.Step({Rows(step)}, kLearningRate).loss, always.Step({Rows(step)}, kLearningRate).loss);
  }
  EXPECT_EQ(changed.Masters(), always.Masters());
  EXPECT_EQ(changed.Moments(), always.Moments());
}

TEST_P(PackingTest, EveryParameterIsSavedOnce) {
  for (const int packing : {1, 2, 4}) {
    TrainingGroup group(golden_.dir, InPlace({.world = 4}));
    const size_t parameters = group.Masters().size();
    ExpectOk(group.TryRepack(packing));
    std::set<std::string> names;
    size_t tensors = 0;
    for (int r = 0; r < 4; ++r) {
      for (const checkpoint::CheckpointFile& file : ParameterFiles(group.parameters(r).blocks(), r, 4, DType::kF32)) {
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

// From memory to files and back, each rank at another time.
TEST_P(PackingTest, ChangesItsPlaceAsWell) {
  TrainingGroup memory(golden_.dir, {.world = 4}), changing(golden_.dir, InPlace({.world = 4}));
  size_t step = 0;
  for (const int packing : {2, 4, 2, 1, 2, 1}) {
    const auto in_file = [step](int rank) { return (step + static_cast<size_t>(rank)) % 3 != 0; };
    ExpectOk(memory.TryRepack(packing));
    ExpectOk(changing.TryRepack(
        packing, [&](int rank) { return in_file(rank) ? OpenStateFileFn(FakeStateFile::Open) : nullptr; }));
    for (int r = 0; r < 4; ++r) EXPECT_EQ(changing.parameters(r).offload() != nullptr, in_file(r));
    EXPECT_EQ(changing.Masters(), memory.Masters());
    EXPECT_EQ(changing.Moments(), memory.Moments());
    EXPECT_EQ(changing.Step({Rows(step)}, kLearningRate).loss, memory.Step({Rows(step)}, kLearningRate).loss);
    changing.ExpectReplicasAlike();
    ++step;
  }
  EXPECT_EQ(changing.Masters(), memory.Masters());
  EXPECT_EQ(changing.Moments(), memory.Moments());
}

std::string PlacedName(const std::string& golden, Place place) {
  constexpr const char* kPlaces[] = {"Memory", "Files", "Mixed"};
  return absl::StrCat(model::TestName(golden), "In", kPlaces[static_cast<int>(place)]);
}

INSTANTIATE_TEST_SUITE_P(Goldens, PackingTest,
                         ::testing::Combine(::testing::ValuesIn(TrainingGoldenNames()),
                                            ::testing::Values(Place::kMemory, Place::kFiles, Place::kMixed)),
                         [](const auto& info) { return PlacedName(std::get<0>(info.param), std::get<1>(info.param)); });

class SnapshotTest : public ::testing::TestWithParam<std::string> {};

// Memory of a copy is kept for the next, but not for another rank's experts.
TEST_P(SnapshotTest, CopiesAreOfTheExpertsThatAreThere) {
  const TrainingGolden golden = LoadTrainingGolden(GetParam());
  TrainingGroup group(golden.dir, {.world = 4});
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

INSTANTIATE_TEST_SUITE_P(Goldens, SnapshotTest, ::testing::ValuesIn(TrainingGoldenNames()),
                         [](const auto& info) { return model::TestName(info.param); });

}  // namespace
}  // namespace switchyard::train
