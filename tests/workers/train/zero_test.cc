// Trainers with sharded dense state (ZeRO-1): the losses, norms and parameters of those that do not, to the bit.
#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/workers/comm/comm_test_util.h"
#include "tests/workers/comm/faulty_communicator.h"
#include "tests/workers/model/fixture.h"
#include "tests/workers/train/comm_modes.h"
#include "tests/workers/train/fake_state_file.h"
#include "tests/workers/train/training_group.h"
#include "workers/checkpoint/tensors/checkpoint.h"
#include "workers/comm/core/communicator.h"

namespace switchyard::train {
namespace {

using testing::HasSubstr;

using Values = std::map<std::string, std::vector<double>>;

struct Outcome {
  std::vector<double> losses, norms;
  Values masters, moments, gradients;
};

void ExpectSame(const Outcome& found, const Outcome& expected) {
  EXPECT_EQ(found.losses, expected.losses);
  EXPECT_EQ(found.norms, expected.norms);
  EXPECT_TRUE(found.gradients == expected.gradients);
  EXPECT_TRUE(found.masters == expected.masters);
  EXPECT_TRUE(found.moments == expected.moments);
}

class ZeroTest : public ::testing::TestWithParam<jobs::CommMode> {
 protected:
  static constexpr size_t kSteps = 3;

  // Small pieces, so that there are many; gradients are clipped, so that the norm's bits count.
  TrainingGroupOptions Options(int world, DType dtype = DType::kF32) const {
    TrainingGroupOptions options = {.dtype = dtype, .world = world};
    options.trainer.communication = {.mode = GetParam(), .piece_bytes = 4096};
    options.trainer.optimizer.clip_norm = 0.5;
    return options;
  }

  static Outcome Train(const TrainingGolden& golden, const TrainingGroupOptions& options) {
    TrainingGroup group(golden.dir, options);
    Outcome outcome;
    for (size_t i = 0; i < kSteps; ++i) {
      if (options.trainer.communication.mode == jobs::CommMode::kFull && options.world != 3) {
        for (const absl::Status& status : group.TryRepack(std::min(1 << i, options.world))) {
          EXPECT_TRUE(status.ok()) << status;
        }
      }
      const StepReport report = group.Step({RowsOfStep(golden, 2 * i), RowsOfStep(golden, 2 * i + 1)}, kLearningRate);
      outcome.losses.push_back(report.loss);
      outcome.norms.push_back(report.gradient_norm);
      group.ExpectReplicasAlike();
    }
    outcome.gradients = group.Gradients();
    outcome.masters = group.Masters();
    outcome.moments = group.Moments();
    return outcome;
  }

  static void ExpectSameWithZero(const TrainingGolden& golden, TrainingGroupOptions options) {
    const Outcome whole = Train(golden, options);
    options.zero = true;
    ExpectSame(Train(golden, options), whole);
  }
};

INSTANTIATE_TEST_SUITE_P(Modes, ZeroTest, ::testing::ValuesIn(AllCommModes()),
                         [](const auto& info) { return std::string(jobs::CommModeName(info.param)); });

TEST_P(ZeroTest, HasTheSameBits) {
  for (const std::string& name : TrainingGoldenNames()) {
    SCOPED_TRACE(name);
    const TrainingGolden golden = LoadTrainingGolden(name);
    for (const int world : {1, 2, 4}) ExpectSameWithZero(golden, Options(world));
  }
  const TrainingGolden golden = LoadTrainingGolden("qwen2-shared");
  for (const DType dtype : {DType::kBf16, DType::kF64}) {
    for (const int world : {2, 3}) ExpectSameWithZero(golden, Options(world, dtype));
  }
}

TEST_P(ZeroTest, LossesAreOneRanks) {
  const TrainingGolden golden = LoadTrainingGolden("olmoe-clip");
  const Outcome alone = Train(golden, Options(1, DType::kF64));
  for (const int world : {2, 4}) {
    TrainingGroupOptions options = Options(world, DType::kF64);
    options.zero = true;
    const Outcome here = Train(golden, options);
    for (size_t i = 0; i < kSteps; ++i) EXPECT_NEAR(here.losses[i], alone.losses[i], 1e-10 * alone.losses[i]);
  }
}

// Parts of packed weights with other rates, and frozen ones, whole and in part.
TEST_P(ZeroTest, HasTheSameBitsWithRules) {
  const TrainingGolden golden = LoadTrainingGolden("qwen3-qknorm");
  TrainingGroupOptions options = Options(4);
  options.rules = {{.pattern = "*layers.0.*q_proj*", .frozen = true},
                   {.pattern = "*k_proj*", .rate = 0.5, .weight_decay = 0.3},
                   {.pattern = "*embed_tokens*", .frozen = true}};
  ExpectSameWithZero(golden, options);
}

TEST_P(ZeroTest, HasTheSameBitsOverConnectionsWithDelays) {
  const TrainingGolden golden = LoadTrainingGolden("qwen2-shared");
  TrainingGroupOptions options = Options(3);
  const Outcome whole = Train(golden, options);
  options.zero = true;
  for (const test::Backend backend : {test::Backend::kSocket, test::Backend::kOvertaking}) {
    options.form = [&](int ranks) { return test::MakeGroup(backend, ranks); };
    int64_t seed = 0;
    options.wrap = [&](std::unique_ptr<comm::Communicator> inner) {
      return comm::MakeFaultyCommunicator(
          std::move(inner),
          {.kind = comm::CommFault::Kind::kJitter, .at_launch = ++seed, .delay = absl::Milliseconds(1)});
    };
    ExpectSame(Train(golden, options), whole);
  }
}

TEST_P(ZeroTest, HasTheSameBitsWithExpertsInAFile) {
  const TrainingGolden golden = LoadTrainingGolden("olmoe-clip");
  TrainingGroupOptions options = Options(2);
  const Outcome whole = Train(golden, options);
  options.zero = true;
  options.threads = 2;
  options.offload = [](int) {
    return [](int64_t bytes) -> absl::StatusOr<std::unique_ptr<StateFile>> {
      return std::make_unique<FakeStateFile>(bytes);
    };
  };
  ExpectSame(Train(golden, options), whole);
}

// Weights in many calls, which carry parts of blocks and several of them.
TEST_P(ZeroTest, HasTheSameBitsInSmallGathers) {
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    const TrainingGolden golden = LoadTrainingGolden("olmoe-clip");
    TrainingGroupOptions options = Options(3, dtype);
    const Outcome whole = Train(golden, options);
    options.zero = true;
    for (const int64_t bytes : {999, 20'000}) {
      options.gather_bytes = bytes;
      ExpectSame(Train(golden, options), whole);
    }
  }
}

// (Otherwise the tests above would compare a thing with itself.)
TEST_P(ZeroTest, ARankHasAPart) {
  const TrainingGolden golden = LoadTrainingGolden("qwen2-shared");
  TrainingGroupOptions options = Options(4);
  options.zero = true;
  TrainingGroup group(golden.dir, options);
  std::map<std::string, int64_t> elements;
  int cut = 0;
  for (int r = 0; r < 4; ++r) {
    EXPECT_TRUE(group.parameters(r).shards_dense());
    for (const ParameterBlock& block : group.parameters(r).blocks()) {
      EXPECT_EQ(block.is_sharded(), block.shard == model::Shard::kReplicated) << block.parts[0].name;
      if (!block.is_sharded()) continue;
      EXPECT_EQ(block.master.bytes(), block.own().count * 4);
      EXPECT_EQ(block.mean.bytes(), block.own().count * 4);
      elements[block.parts[0].name] += block.own().count;
      cut += block.own().count > 0 && block.own().count < block.size();
      if (r < 3) continue;
      EXPECT_EQ(elements[block.parts[0].name], block.size());
    }
  }
  EXPECT_GT(cut, 2);
}

// Counts the calls of class all_reduce, and the bytes of their largest message.
class WatchedCommunicator final : public comm::Communicator {
 public:
  struct Seen {
    int64_t calls = 0, largest = 0;
  };
  WatchedCommunicator(std::unique_ptr<comm::Communicator> inner, Seen* seen)
      : Communicator(inner->group(), comm::MessagePool::Create()), inner_(std::move(inner)), seen_(seen) {}
  void Abort(absl::string_view reason) override { inner_->Abort(reason); }
  absl::Status status() const override { return inner_->status(); }
  comm::WorkOr StartExchange(Exchange exchange) override {
    if (exchange.key.comm_class == comm::CommClass::kAllReduce) {
      ++seen_->calls;
      for (int r = 0; r < world(); ++r) {
        if (r != rank()) seen_->largest = std::max(seen_->largest, exchange.out[static_cast<size_t>(r)].bytes());
      }
    }
    return inner_->StartExchange(std::move(exchange));
  }

 private:
  const std::unique_ptr<comm::Communicator> inner_;
  Seen* const seen_;
};

// The calls that gather a group's weights.
int64_t GathersOf(const TrainingGolden& golden, TrainingGroupOptions options) {
  std::vector<WatchedCommunicator::Seen> seen(static_cast<size_t>(options.world));
  size_t ranks = 0;
  options.wrap = [&](std::unique_ptr<comm::Communicator> inner) {
    return std::make_unique<WatchedCommunicator>(std::move(inner), &seen[ranks++]);
  };
  const TrainingGroup group(golden.dir, options);
  return seen[0].calls;
}

// A block travels in as many calls as it needs.  (A group's first calls of the class gather its weights.)
TEST(ZeroGatherTest, CallsHaveABoundedSize) {
  const TrainingGolden golden = LoadTrainingGolden("olmoe-clip");
  TrainingGroupOptions options = {.dtype = DType::kF32, .world = 2, .zero = true, .gather_bytes = 4000};
  std::vector<WatchedCommunicator::Seen> seen(2);
  size_t ranks = 0;
  options.wrap = [&](std::unique_ptr<comm::Communicator> inner) {
    return std::make_unique<WatchedCommunicator>(std::move(inner), &seen[ranks++]);
  };
  TrainingGroup group(golden.dir, options);
  int64_t bytes = 0, largest = 0;
  for (const ParameterBlock& block : group.parameters(0).blocks()) {
    if (!block.is_sharded()) continue;
    bytes += block.size() * 4;
    largest = std::max(largest, block.size() * 4);
  }
  EXPECT_GT(largest, 4 * options.gather_bytes) << "the test wants a block of several calls";
  for (const WatchedCommunicator::Seen& each : seen) {
    EXPECT_EQ(each.calls, (bytes + options.gather_bytes - 1) / options.gather_bytes);
    EXPECT_LE(each.largest, options.gather_bytes);
  }
}

// What is sharded is read once by all ranks together, but for rows that two of them have.
TEST(ZeroLoadTest, ARankReadsItsPart) {
  const TrainingGolden golden = LoadTrainingGolden("qwen2-shared");
  const absl::StatusOr<checkpoint::Checkpoint> checkpoint = checkpoint::Checkpoint::Open(golden.dir);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const auto read = [&](const TrainingGroupOptions& options) {
    TrainingGroup group(golden.dir, options);
    int64_t all = 0;
    const auto progress = [&](int64_t done, int64_t total) {
      if (done == total) all += total;
      return true;
    };
    for (int r = 0; r < options.world; ++r) EXPECT_TRUE(group.parameters(r).Load(*checkpoint, 1, progress).ok());
    return all;
  };
  const int64_t once = read({.world = 1});
  EXPECT_GT(read({.world = 4}), once + once / 4);
  const int64_t sharded = read({.world = 4, .zero = true});
  EXPECT_GE(sharded, once);
  EXPECT_LE(sharded, once + once / 20);
}

// For every launch that fails, of sums, of the norm or of gathers: all ranks end, at once.
TEST_P(ZeroTest, ARankThatIsLostEndsTheStepOnAll) {
  const TrainingGolden golden = LoadTrainingGolden("olmoe-clip");
  const TrainRows rows = RowsOfStep(golden, 0);
  TrainingGroupOptions options = Options(3);
  options.zero = true;
  options.gather_bytes = 50'000;
  // The first launches make the group's weights whole.
  const int64_t first = GathersOf(golden, options);
  int failed = 0;
  for (int64_t at = first; at < first + 400; at += at < first + 30 ? 1 : 7) {
    int ranks = 0;
    options.wrap = [&](std::unique_ptr<comm::Communicator> inner) {
      if (ranks++ != 1) return inner;
      return comm::MakeFaultyCommunicator(std::move(inner),
                                          {.kind = comm::CommFault::Kind::kFail, .at_launch = at, .delay = {}});
    };
    TrainingGroup group(golden.dir, options);
    const absl::Time begin = absl::Now();
    const std::vector<absl::StatusOr<StepReport>> reports = group.StepEach({rows}, kLearningRate);
    EXPECT_LT(absl::Now() - begin, absl::Seconds(55)) << "a wait's deadline is 60";
    if (reports[1].ok()) break;  // it launched fewer
    ++failed;
    EXPECT_THAT(std::string(reports[1].status().message()), HasSubstr("injected fault"));
    for (const absl::StatusOr<StepReport>& report : reports) {
      EXPECT_EQ(report.status().code(), absl::StatusCode::kUnavailable) << report.status();
    }
  }
  EXPECT_GT(failed, 10);
}

}  // namespace
}  // namespace switchyard::train
