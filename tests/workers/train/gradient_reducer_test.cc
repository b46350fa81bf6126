// Sums of gradients beside backward: every mode gives the same bits, with any delays, and errors end the step on all
// ranks.  (When sums start: gradient_reducer_rules_test.cc.)
#include "workers/train/reduce/gradient_reducer.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/base/status_macros.h"
#include "tests/workers/comm/comm_test_util.h"
#include "tests/workers/comm/faulty_communicator.h"
#include "tests/workers/model/fixture.h"
#include "tests/workers/train/comm_modes.h"
#include "tests/workers/train/training_group.h"
#include "workers/comm/core/call_tag.h"

namespace switchyard::train {
namespace {

using test::Backend;
using testing::AllOf;
using testing::HasSubstr;

using Values = std::map<std::string, std::vector<double>>;

struct Outcome {
  std::vector<double> losses;
  Values gradients, masters;
};

class GradientReducerTest : public ::testing::TestWithParam<jobs::CommMode> {
 protected:
  static constexpr size_t kSteps = 3;

  // Pieces are small, so that there are many.
  TrainingGroupOptions Options(int world, DType dtype = DType::kF32) const {
    TrainingGroupOptions options = {.dtype = dtype, .world = world};
    options.trainer.communication = {.mode = GetParam(), .piece_bytes = 1024};
    return options;
  }

  static Outcome Train(const TrainingGolden& golden, const TrainingGroupOptions& options) {
    TrainingGroup group(golden.dir, options);
    Outcome outcome;
    for (size_t i = 0; i < kSteps; ++i) {
      if (options.trainer.communication.mode ==
          jobs::CommMode::kFull) {  // 1, 2, 4 replicas, as many as there are ranks for
        const int packing = std::min(1 << i, options.world);
        for (const absl::Status& status : group.TryRepack(packing)) EXPECT_TRUE(status.ok()) << status;
        EXPECT_EQ(group.groups(0).packing(), packing);
      }
      // Several micro-batches: only the last one's backward may sum.
      const std::vector<TrainRows> rows = {RowsOfStep(golden, 2 * i), RowsOfStep(golden, 2 * i + 1)};
      outcome.losses.push_back(group.Step(rows, kLearningRate).loss);
    }
    outcome.gradients = group.Gradients();
    outcome.masters = group.Masters();
    ExpectReplicated(&group, options.world);
    return outcome;
  }

  // Replicated parameters are the same on all ranks.
  static void ExpectReplicated(TrainingGroup* group, int world) {
    const auto replicated = [&](int rank) {
      std::vector<const ParameterBlock*> blocks;
      for (const ParameterBlock& block : group->parameters(rank).blocks()) {
        if (block.shard == model::Shard::kReplicated) blocks.push_back(&block);
      }
      return blocks;
    };
    for (int r = 1; r < world; ++r) {
      const std::vector<const ParameterBlock*> first = replicated(0), here = replicated(r);
      ASSERT_EQ(here.size(), first.size());
      for (size_t b = 0; b < first.size(); ++b) {
        const TensorView one = first[b]->master, other = here[b]->master;
        EXPECT_EQ(std::memcmp(one.raw(), other.raw(), static_cast<size_t>(comm::NumBytes(one))), 0)
            << first[b]->parts[0].name << " on rank " << r;
      }
    }
  }

  void ExpectSame(const Outcome& outcome, const Outcome& reference, double tolerance) const {
    for (size_t i = 0; i < kSteps; ++i) {
      EXPECT_NEAR(outcome.losses[i], reference.losses[i], tolerance * reference.losses[i]) << "step " << i;
    }
    // Rows of an expert are added chunk by chunk; of a packed one, replica by replica.
    if (GetParam() == jobs::CommMode::kPipelining || GetParam() == jobs::CommMode::kFull) return;
    EXPECT_EQ(outcome.losses, reference.losses);
    EXPECT_EQ(outcome.gradients, reference.gradients);
    EXPECT_EQ(outcome.masters, reference.masters);
  }
};

INSTANTIATE_TEST_SUITE_P(Modes, GradientReducerTest, ::testing::ValuesIn(AllCommModes()),
                         [](const auto& info) { return std::string(jobs::CommModeName(info.param)); });

std::unique_ptr<comm::Communicator> Late(std::unique_ptr<comm::Communicator> inner, int64_t seed) {
  return comm::MakeFaultyCommunicator(
      std::move(inner), {.kind = comm::CommFault::Kind::kJitter, .at_launch = seed, .delay = absl::Milliseconds(1)});
}

TEST_P(GradientReducerTest, LossesAreOneRanksAndBitsAreTheSameInAllModes) {
  for (const std::string& name : TrainingGoldenNames()) {
    const TrainingGolden golden = LoadTrainingGolden(name);
    for (const auto& [dtype, tolerance] : {std::make_pair(DType::kF64, 1e-10), std::make_pair(DType::kF32, 1e-5)}) {
      const Outcome alone = Train(golden, Options(1, dtype));
      for (const int world : {2, 4}) {
        const Outcome last = Train(golden, {.dtype = dtype, .world = world});
        const Outcome here = Train(golden, Options(world, dtype));
        ExpectSame(here, last, tolerance);
        for (size_t i = 0; i < kSteps; ++i) {
          EXPECT_NEAR(here.losses[i], alone.losses[i], tolerance * alone.losses[i]) << name << " on " << world;
        }
      }
    }
  }
}

TEST_P(GradientReducerTest, DelaysChangeNoBit) {
  const TrainingGolden golden = LoadTrainingGolden("qwen2-shared");
  for (const int world : {2, 4}) {
    const Outcome prompt = Train(golden, Options(world));
    for (int64_t seed = 1; seed <= 3; ++seed) {
      TrainingGroupOptions options = Options(world);
      int64_t ranks = 0;
      options.wrap = [&](std::unique_ptr<comm::Communicator> inner) {
        return Late(std::move(inner), 100 * seed + ranks++);
      };
      const Outcome late = Train(golden, options);
      EXPECT_EQ(late.losses, prompt.losses);
      EXPECT_EQ(late.gradients, prompt.gradients);
      EXPECT_EQ(late.masters, prompt.masters);
    }
  }
}

TEST_P(GradientReducerTest, TheSameOverConnections) {
  const TrainingGolden golden = LoadTrainingGolden("mixtral-window");
  for (const int world : {2, 4}) {
    TrainingGroupOptions options = Options(world);
    const Outcome local = Train(golden, options);
    for (const test::Backend backend : {test::Backend::kSocket, test::Backend::kOvertaking}) {
      options.form = [&](int ranks) { return test::MakeGroup(backend, ranks); };
      int64_t ranks = 0;
      options.wrap = [&](std::unique_ptr<comm::Communicator> inner) { return Late(std::move(inner), ranks++); };
      const Outcome remote = Train(golden, options);
      EXPECT_EQ(remote.losses, local.losses) << test::BackendName(backend);
      EXPECT_EQ(remote.masters, local.masters) << test::BackendName(backend);
    }
  }
}

// Layers that run again exchange rows in backward, too.
TEST_P(GradientReducerTest, TheSameWithLayersRunAgain) {
  const TrainingGolden golden = LoadTrainingGolden("qwen3-qknorm");
  TrainingGroupOptions options = Options(2);
  const Outcome all = Train(golden, options);
  options.trainer.save = model::SavePolicy::kLayerInputs;
  const Outcome inputs = Train(golden, options);
  EXPECT_EQ(inputs.losses, all.losses);
  EXPECT_EQ(inputs.masters, all.masters);
}

// For every launch that fails, of a sum or not: all ranks end, and none has changed a parameter.
TEST_P(GradientReducerTest, ARankThatIsLostEndsTheStepOnAll) {
  const TrainingGolden golden = LoadTrainingGolden("olmoe-clip");
  const TrainRows rows = RowsOfStep(golden, 0);
  const absl::Time begin = absl::Now();
  std::vector<test::Backend> backends = {test::Backend::kLocal};
  if (GetParam() == jobs::CommMode::kPreempt) backends.push_back(test::Backend::kOvertaking);
  for (const test::Backend backend : backends) {
    int failed = 0;
    for (int64_t at = 0; at < 200; at += at < 10 ? 1 : 11) {
      TrainingGroupOptions options = Options(3);
      options.form = [&](int ranks) { return test::MakeGroup(backend, ranks); };
      int ranks = 0;
      options.wrap = [&](std::unique_ptr<comm::Communicator> inner) {
        if (ranks++ != 1) return inner;
        return comm::MakeFaultyCommunicator(std::move(inner),
                                            {.kind = comm::CommFault::Kind::kFail, .at_launch = at, .delay = {}});
      };
      TrainingGroup group(golden.dir, options);
      const Values before = group.Masters();
      const std::vector<absl::StatusOr<StepReport>> reports = group.StepEach({rows}, kLearningRate);
      if (reports[1].ok()) break;  // it launched fewer
      ++failed;
      for (const absl::StatusOr<StepReport>& report : reports) {
        EXPECT_EQ(report.status().code(), absl::StatusCode::kUnavailable) << report.status();
      }
      EXPECT_THAT(std::string(reports[1].status().message()), HasSubstr("injected fault"));
      EXPECT_EQ(group.Masters(), before);
    }
    EXPECT_GT(failed, 8) << test::BackendName(backend);
  }
  EXPECT_LT(absl::Now() - begin, absl::Seconds(55));  // a wait's deadline is 60
}

// A sum goes out as the next one and the next one in its place, as if this rank had another order.
class SwappingCommunicator : public comm::Communicator {
 public:
  SwappingCommunicator(std::unique_ptr<Communicator> inner, uint32_t first)
      : Communicator(inner->group(), comm::MessagePool::Create()), inner_(std::move(inner)), first_(first) {}
  void Abort(absl::string_view reason) override { inner_->Abort(reason); }
  absl::Status status() const override { return inner_->status(); }
  comm::WorkOr StartExchange(Exchange exchange) override {
    const uint32_t tag = exchange.key.tag;
    if (tag == first_ || tag == first_ + 1) exchange.key.tag = 2 * first_ + 1 - tag;
    return inner_->StartExchange(std::move(exchange));
  }

 private:
  const std::unique_ptr<Communicator> inner_;
  const uint32_t first_;
};

void ExpectNamed(TrainingGroup* group, const TrainRows& rows, uint32_t first) {
  const Values before = group->Masters();
  int named = 0;
  for (const absl::StatusOr<StepReport>& report : group->StepEach({rows}, kLearningRate)) {
    ASSERT_FALSE(report.ok());
    if (report.status().code() != absl::StatusCode::kInternal) continue;  // saw the other end first
    ++named;
    EXPECT_THAT(std::string(report.status().message()),
                AllOf(HasSubstr("collectives differ"), HasSubstr("rank 1 launched"), HasSubstr("all_reduce_sum"),
                      HasSubstr(comm::CallPurpose(first)), HasSubstr(comm::CallPurpose(first + 1))));
  }
  EXPECT_GE(named, 1);
  EXPECT_EQ(group->Masters(), before);
}

TEST_P(GradientReducerTest, ARankWithAnotherOrderIsNamed) {
  const TrainingGolden golden = LoadTrainingGolden("qwen3-qknorm");
  struct Swap {
    int packing;
    uint32_t first;
  };
  std::vector<Swap> swaps = {
      {1, comm::NumberedTag(comm::CallUse::kGradientSum,
                            GetParam() == jobs::CommMode::kArLast ? 0 : 4)}};  // with the whole model as one bucket
  if (GetParam() == jobs::CommMode::kFull) swaps.push_back({2, comm::NumberedTag(comm::CallUse::kReplicaSum, 0)});
  for (const test::Backend backend : test::kBackends) {
    for (const Swap& swap : swaps) {
      SCOPED_TRACE(absl::StrCat(test::BackendName(backend), ", packing ", swap.packing));
      TrainingGroupOptions options = Options(2);
      options.packing = swap.packing;
      options.form = [&](int ranks) { return test::MakeGroup(backend, ranks); };
      int ranks = 0;
      options.wrap = [&](std::unique_ptr<comm::Communicator> inner) -> std::unique_ptr<comm::Communicator> {
        if (ranks++ != 1) return inner;
        return std::make_unique<SwappingCommunicator>(std::move(inner), swap.first);
      };
      TrainingGroup group(golden.dir, options);
      ExpectNamed(&group, RowsOfStep(golden, 0), swap.first);
    }
  }
}

// Records the tags of a rank's all-to-alls.
class TagRecorder : public comm::Communicator {
 public:
  TagRecorder(std::unique_ptr<Communicator> inner, std::map<uint32_t, int>* tags)
      : Communicator(inner->group(), comm::MessagePool::Create()), inner_(std::move(inner)), tags_(tags) {}
  void Abort(absl::string_view reason) override { inner_->Abort(reason); }
  absl::Status status() const override { return inner_->status(); }
  comm::WorkOr StartExchange(Exchange exchange) override {
    if (exchange.key.op == comm::CommOp::kAllToAllV) ++(*tags_)[exchange.key.tag];
    return inner_->StartExchange(std::move(exchange));
  }

 private:
  const std::unique_ptr<Communicator> inner_;
  std::map<uint32_t, int>* const tags_;
};

TEST_P(GradientReducerTest, AllToAllsSayWhatTheyAreFor) {
  const TrainingGolden golden = LoadTrainingGolden("qwen3-qknorm");
  std::map<uint32_t, int> tags;
  TrainingGroupOptions options = Options(2);
  int ranks = 0;
  options.wrap = [&](std::unique_ptr<comm::Communicator> inner) -> std::unique_ptr<comm::Communicator> {
    if (ranks++ != 1) return inner;
    return std::make_unique<TagRecorder>(std::move(inner), &tags);
  };
  TrainingGroup group(golden.dir, options);
  group.Step({RowsOfStep(golden, 0)}, kLearningRate);
  const bool pipelines = GetParam() == jobs::CommMode::kPipelining || GetParam() == jobs::CommMode::kFull;
  const comm::CallUse uses[] = {comm::CallUse::kDispatch, comm::CallUse::kCombine, comm::CallUse::kOutputGradients,
                                comm::CallUse::kInputGradients};
  const size_t layers = static_cast<size_t>(group.model(0).config().num_moe_layers());
  size_t chunks = 0;
  while (tags.count(comm::CallTag(comm::CallUse::kDispatch, 0, static_cast<int64_t>(chunks))) > 0) ++chunks;
  EXPECT_EQ(chunks > 1, pipelines);
  EXPECT_GT(layers, 1u);
  EXPECT_EQ(tags.size(), std::size(uses) * layers * chunks);
  for (const comm::CallUse use : uses) {
    for (size_t layer = 0; layer < layers; ++layer) {
      for (size_t chunk = 0; chunk < chunks; ++chunk) {
        const uint32_t tag = comm::CallTag(use, static_cast<int64_t>(layer), static_cast<int64_t>(chunk));
        EXPECT_EQ(tags[tag], 1) << comm::CallPurpose(tag);
      }
    }
  }
}

}  // namespace
}  // namespace switchyard::train
