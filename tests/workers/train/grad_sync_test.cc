// Sums of gradients beside backward: every mode gives the same bits, whatever comes late; what starts when; and what
// goes wrong ends on all ranks.
#include "workers/train/grad_sync.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/base/status_macros.h"
#include "tests/workers/comm/comm_test_util.h"
#include "tests/workers/model/fixture.h"
#include "tests/workers/train/training_group.h"
#include "workers/comm/faulty_communicator.h"
#include "workers/comm/local_communicator.h"

namespace switchyard {
namespace {

using test::Backend;
using testing::AllOf;
using testing::HasSubstr;

using Values = std::map<std::string, std::vector<double>>;

constexpr CommMode kModes[] = {
    CommMode::kFair,      CommMode::kFixed,      CommMode::kArLast, CommMode::kPriority, CommMode::kPriorityTicketed,
    CommMode::kPartition, CommMode::kPipelining, CommMode::kFull,   CommMode::kPreempt};

struct Outcome {
  std::vector<double> losses;
  Values gradients, masters;
};

class GradSyncTest : public ::testing::TestWithParam<CommMode> {
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
      if (options.trainer.communication.mode == CommMode::kFull) {  // 1, 2, 4 replicas, as many as there are ranks for
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

  // What every rank has is the same on all.
  static void ExpectReplicated(TrainingGroup* group, int world) {
    const auto replicated = [&](int rank) {
      std::vector<const ParameterBlock*> blocks;
      for (const ParameterBlock& block : group->parameters(rank).blocks()) {
        if (block.shard == Shard::kReplicated) blocks.push_back(&block);
      }
      return blocks;
    };
    for (int r = 1; r < world; ++r) {
      const std::vector<const ParameterBlock*> first = replicated(0), here = replicated(r);
      ASSERT_EQ(here.size(), first.size());
      for (size_t b = 0; b < first.size(); ++b) {
        const TensorView one = first[b]->master, other = here[b]->master;
        EXPECT_EQ(std::memcmp(one.raw(), other.raw(), static_cast<size_t>(NumBytes(one))), 0)
            << first[b]->parts[0].name << " on rank " << r;
      }
    }
  }

  void ExpectSame(const Outcome& outcome, const Outcome& reference, double tolerance) const {
    for (size_t i = 0; i < kSteps; ++i) {
      EXPECT_NEAR(outcome.losses[i], reference.losses[i], tolerance * reference.losses[i]) << "step " << i;
    }
    // Rows of an expert are added chunk by chunk; of a packed one, replica by replica.
    if (GetParam() == CommMode::kPipelining || GetParam() == CommMode::kFull) return;
    EXPECT_EQ(outcome.losses, reference.losses);
    EXPECT_EQ(outcome.gradients, reference.gradients);
    EXPECT_EQ(outcome.masters, reference.masters);
  }
};

INSTANTIATE_TEST_SUITE_P(Modes, GradSyncTest, ::testing::ValuesIn(kModes),
                         [](const auto& info) { return std::string(CommModeName(info.param)); });

std::unique_ptr<Communicator> Late(std::unique_ptr<Communicator> inner, int64_t seed) {
  return MakeFaultyCommunicator(std::move(inner),
                                {.kind = CommFault::Kind::kJitter, .at_launch = seed, .delay = absl::Milliseconds(1)});
}

TEST_P(GradSyncTest, LossesAreOneRanksAndBitsAreTheSameInAllModes) {
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

TEST_P(GradSyncTest, DelaysChangeNoBit) {
  const TrainingGolden golden = LoadTrainingGolden("qwen2-shared");
  for (const int world : {2, 4}) {
    const Outcome prompt = Train(golden, Options(world));
    for (int64_t seed = 1; seed <= 3; ++seed) {
      TrainingGroupOptions options = Options(world);
      int64_t ranks = 0;
      options.wrap = [&](std::unique_ptr<Communicator> inner) { return Late(std::move(inner), 100 * seed + ranks++); };
      const Outcome late = Train(golden, options);
      EXPECT_EQ(late.losses, prompt.losses);
      EXPECT_EQ(late.gradients, prompt.gradients);
      EXPECT_EQ(late.masters, prompt.masters);
    }
  }
}

TEST_P(GradSyncTest, TheSameOverConnections) {
  const TrainingGolden golden = LoadTrainingGolden("mixtral-window");
  for (const int world : {2, 4}) {
    TrainingGroupOptions options = Options(world);
    const Outcome local = Train(golden, options);
    for (const Backend backend : {Backend::kGloo, Backend::kSocket}) {
      options.form = [&](int ranks) { return test::MakeGroup(backend, ranks); };
      int64_t ranks = 0;
      options.wrap = [&](std::unique_ptr<Communicator> inner) { return Late(std::move(inner), ranks++); };
      const Outcome remote = Train(golden, options);
      EXPECT_EQ(remote.losses, local.losses) << test::BackendName(backend);
      EXPECT_EQ(remote.masters, local.masters) << test::BackendName(backend);
    }
  }
}

// Layers that run again exchange rows in backward, too.
TEST_P(GradSyncTest, TheSameWithLayersRunAgain) {
  const TrainingGolden golden = LoadTrainingGolden("qwen3-qknorm");
  TrainingGroupOptions options = Options(2);
  const Outcome all = Train(golden, options);
  options.trainer.save = SavePolicy::kLayerInputs;
  const Outcome inputs = Train(golden, options);
  EXPECT_EQ(inputs.losses, all.losses);
  EXPECT_EQ(inputs.masters, all.masters);
}

// Whichever launch fails, of a sum or not: all ranks end, and none has changed a parameter.
TEST_P(GradSyncTest, ARankThatIsLostEndsTheStepOnAll) {
  const TrainingGolden golden = LoadTrainingGolden("olmoe-clip");
  const TrainRows rows = RowsOfStep(golden, 0);
  const absl::Time begin = absl::Now();
  int failed = 0;
  for (int64_t at = 0; at < 200; at += at < 10 ? 1 : 11) {
    TrainingGroupOptions options = Options(3);
    int ranks = 0;
    options.wrap = [&](std::unique_ptr<Communicator> inner) {
      if (ranks++ != 1) return inner;
      return MakeFaultyCommunicator(std::move(inner), {.kind = CommFault::Kind::kFail, .at_launch = at, .delay = {}});
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
  EXPECT_GT(failed, 8);
  EXPECT_LT(absl::Now() - begin, absl::Seconds(55));  // a wait's deadline is 60
}

// A sum goes out as the next one and the next one in its place, as if this rank had another order.
class SwappingCommunicator : public Communicator {
 public:
  SwappingCommunicator(std::unique_ptr<Communicator> inner, uint32_t first)
      : Communicator(inner->group(), MessagePool::Create()), inner_(std::move(inner)), first_(first) {}
  void Abort(absl::string_view reason) override { inner_->Abort(reason); }
  absl::Status status() const override { return inner_->status(); }
  WorkOr StartExchange(Exchange exchange) override {
    const uint32_t tag = exchange.key.tag;
    if (tag == first_ || tag == first_ + 1) exchange.key.tag = 2 * first_ + 1 - tag;
    return inner_->StartExchange(std::move(exchange));
  }

 private:
  const std::unique_ptr<Communicator> inner_;
  const uint32_t first_;
};

TEST_P(GradSyncTest, ARankWithAnotherOrderIsNamed) {
  const TrainingGolden golden = LoadTrainingGolden("qwen3-qknorm");
  const uint32_t first = GetParam() == CommMode::kArLast ? 1 : 5;  // whose bucket holds the whole model
  TrainingGroupOptions options = Options(2);
  int ranks = 0;
  options.wrap = [&](std::unique_ptr<Communicator> inner) -> std::unique_ptr<Communicator> {
    if (ranks++ != 1) return inner;
    return std::make_unique<SwappingCommunicator>(std::move(inner), first);
  };
  TrainingGroup group(golden.dir, options);
  const Values before = group.Masters();
  int named = 0;
  for (const absl::StatusOr<StepReport>& report : group.StepEach({RowsOfStep(golden, 0)}, kLearningRate)) {
    ASSERT_FALSE(report.ok());
    if (report.status().code() != absl::StatusCode::kInternal) continue;  // saw the other end first
    ++named;
    EXPECT_THAT(std::string(report.status().message()),
                AllOf(HasSubstr("collectives differ"), HasSubstr("rank 1 launched"), HasSubstr("all_reduce_sum"),
                      HasSubstr(absl::StrCat("with tag ", first)), HasSubstr(absl::StrCat("with tag ", first + 1))));
  }
  EXPECT_GE(named, 1);
  EXPECT_EQ(group.Masters(), before);
}

// Gradients of a model of one dense layer and, if asked, experts; by values that tell who gave them.
class FakeGradients {
 public:
  FakeGradients(int rank, int64_t experts = 0) : rank_(rank) {
    gradients.embedding = Next(40);
    gradients.final_norm = Next(4);
    gradients.lm_head.gradient = Next(300);
    LayerGradients& layer = gradients.layers.emplace_back();
    layer.attention.norm = Next(4);
    layer.attention.qkv.gradient = Next(700);
    layer.attention.o.gradient = Next(16);
    layer.ffn_norm = Next(4);
    if (experts == 0) {
      layer.dense.emplace();
      layer.dense->gate_up.gradient = Next(64);
      layer.dense->down.gradient = Next(32);
      return;
    }
    layer.moe.emplace().router.gradient = Next(16);
    layer.moe->experts.resize(static_cast<size_t>(experts));
    for (FfnGradients& expert : layer.moe->experts) {
      expert.gate_up.gradient = Next(64);
      expert.down.gradient = Next(32);
    }
  }
  // Sum over `ranks` of what they began with.
  void ExpectSums(const std::vector<TensorView>& views, const std::vector<int>& ranks) const {
    for (const TensorView& view : views) {
      const size_t which = static_cast<size_t>(
          std::find_if(memory_.begin(), memory_.end(), [&](const auto& each) { return each.data() == view.raw(); }) -
          memory_.begin());
      ASSERT_LT(which, memory_.size());
      for (size_t i = 0; i < memory_[which].size(); ++i) {
        double sum = 0;
        for (const int rank : ranks) sum += ValueOf(rank, which, i);
        ASSERT_EQ(memory_[which][i], sum) << "gradient " << which << " element " << i << " on rank " << rank_;
      }
    }
  }

  ModelGradients gradients;

 private:
  static double ValueOf(int rank, size_t which, size_t i) {
    return static_cast<double>((rank + 1) * (which + 1) * 1000 + i);
  }
  TensorView Next(int64_t elements) {
    std::vector<double>& values = memory_.emplace_back(static_cast<size_t>(elements));
    for (size_t i = 0; i < values.size(); ++i) values[i] = ValueOf(rank_, memory_.size() - 1, i);
    return TensorView(values.data(), DType::kF64, {elements});
  }

  const int rank_;
  std::deque<std::vector<double>> memory_;
};

// Whether a sum was launched, and in which phase of a script the first one was.
class Launches {
 public:
  void Enter(std::string phase) {
    absl::MutexLock lock(&mu_);
    phase_ = std::move(phase);
  }
  void Count() {
    absl::MutexLock lock(&mu_);
    if (first_.empty()) first_ = phase_;
  }
  // Blocks until there is one, at most so long.
  bool Await(absl::Duration most) {
    absl::MutexLock lock(&mu_);
    const auto any = [&] {
      mu_.AssertHeld();
      return !first_.empty();
    };
    return mu_.AwaitWithTimeout(absl::Condition(&any), most);
  }
  std::string first() {
    absl::MutexLock lock(&mu_);
    return first_;
  }

 private:
  absl::Mutex mu_;
  std::string phase_ ABSL_GUARDED_BY(mu_), first_ ABSL_GUARDED_BY(mu_);
};

class CountingCommunicator : public Communicator {
 public:
  CountingCommunicator(std::unique_ptr<Communicator> inner, Launches* launches)
      : Communicator(inner->group(), MessagePool::Create()), inner_(std::move(inner)), launches_(launches) {}
  void Abort(absl::string_view reason) override { inner_->Abort(reason); }
  absl::Status status() const override { return inner_->status(); }
  WorkOr StartExchange(Exchange exchange) override {
    if (exchange.key.comm_class == CommClass::kAllReduce) launches_->Count();
    return inner_->StartExchange(std::move(exchange));
  }

 private:
  const std::unique_ptr<Communicator> inner_;
  Launches* const launches_;
};

std::vector<std::unique_ptr<Communicator>> CountedPair(std::vector<Launches>* launches) {
  std::vector<std::unique_ptr<Communicator>> pair = MakeLocalGroup(2);
  for (size_t r = 0; r < 2; ++r) {
    pair[r] = std::make_unique<CountingCommunicator>(std::move(pair[r]), &(*launches)[r]);
  }
  return pair;
}

// All gradients are complete while an all-to-all is about to come, or runs: which is the first phase with a sum?
TEST_P(GradSyncTest, StartsWhenTheRuleLetsIt) {
  const std::map<CommMode, std::pair<std::string, std::string>> expected = {
      {CommMode::kFair, {"imminent", "running"}},
      {CommMode::kFixed, {"imminent", "layer done"}},
      {CommMode::kArLast, {"finish", "finish"}},
      {CommMode::kPriority, {"between", "between"}},
      {CommMode::kPriorityTicketed, {"between", "between"}},
      {CommMode::kPartition, {"between", "between"}},
      {CommMode::kPipelining, {"between", "between"}},
      {CommMode::kFull, {"between", "between"}},
      {CommMode::kPreempt, {"imminent", "running"}},
  };
  for (const bool imminent : {true, false}) {
    const std::string& wanted = imminent ? expected.at(GetParam()).first : expected.at(GetParam()).second;
    std::vector<Launches> launches(2);
    std::vector<std::unique_ptr<Communicator>> pair = CountedPair(&launches);
    const auto statuses = test::RunRanks(&pair, [&](Communicator* comm) -> absl::Status {
      FakeGradients fake(comm->rank());
      Launches& mine = launches[static_cast<size_t>(comm->rank())];
      std::unique_ptr<GradSync> sync;
      ASSIGN_OR_RETURN(sync, GradSync::Create({.mode = GetParam(), .piece_bytes = 1024},
                                              {.world = comm, .experts = comm}, fake.gradients));
      bool started = false;
      const auto enter = [&](const std::string& phase) { mine.Enter(phase); };
      // A follower goes by what rank 0 sees, which may be ahead of it.
      const bool follows = GetParam() == CommMode::kPriorityTicketed && comm->rank() != 0;
      // What ought to start here does before the next phase; what ought not to has had time to.
      const auto leave = [&](const std::string& phase) {
        started = started || phase == wanted;
        if (follows && !started) return;
        EXPECT_EQ(mine.Await(started ? absl::Seconds(20) : absl::Milliseconds(10)), started) << phase;
      };
      const auto complete = [&] {
        for (const BackwardStage& stage : BackwardStages(1)) sync->StageDone(stage);
      };
      enter("imminent");
      sync->Start(test::Soon());
      sync->Imminent();
      if (imminent) complete();
      leave("imminent");
      RETURN_IF_ERROR(sync->Begin());
      enter("running");
      if (!imminent) complete();
      leave("running");
      enter("between");
      sync->End();
      leave("between");
      enter("layer done");
      sync->LayerEnd();
      leave("layer done");
      enter("finish");
      RETURN_IF_ERROR(sync->Finish());
      fake.ExpectSums({fake.gradients.embedding, fake.gradients.lm_head.gradient, fake.gradients.final_norm,
                       fake.gradients.layers[0].attention.qkv.gradient, fake.gradients.layers[0].ffn_norm,
                       fake.gradients.layers[0].dense->down.gradient},
                      {0, 1});
      return absl::OkStatus();
    });
    for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(launches[0].first(), wanted) << (imminent ? "about to come" : "running");
  }
}

// Four ranks, experts on two of them twice; the second and third rank have the same ones.
TEST_P(GradSyncTest, ExpertsAreSummedOverThoseThatHaveThem) {
  std::vector<std::unique_ptr<Communicator>> ranks = test::MakeGroup(Backend::kGloo, 4);
  const auto statuses = test::RunRanks(&ranks, [&](Communicator* comm) -> absl::Status {
    const int group = comm->rank() == 1 || comm->rank() == 2 ? 1 : 0;
    std::unique_ptr<Communicator> replicas;
    ASSIGN_OR_RETURN(replicas, comm->Split(group, comm->rank(), test::Soon()));
    FakeGradients fake(comm->rank(), /*experts=*/2 + group);
    std::unique_ptr<GradSync> sync;
    ASSIGN_OR_RETURN(sync,
                     GradSync::Create({.mode = GetParam(), .piece_bytes = 128},
                                      {.world = comm, .experts = comm, .replicas = replicas.get()}, fake.gradients));
    sync->Start(test::Soon());
    for (const BackwardStage& stage : BackwardStages(1)) {
      sync->Imminent();
      RETURN_IF_ERROR(sync->Begin());
      sync->End();
      sync->LayerEnd();
      sync->StageDone(stage);
    }
    RETURN_IF_ERROR(sync->Finish());
    std::vector<TensorView> experts;
    for (const FfnGradients& expert : fake.gradients.layers[0].moe->experts) {
      experts.push_back(expert.gate_up.gradient);
      experts.push_back(expert.down.gradient);
    }
    fake.ExpectSums(experts, group == 1 ? std::vector<int>{1, 2} : std::vector<int>{0, 3});
    fake.ExpectSums({fake.gradients.embedding, fake.gradients.layers[0].moe->router.gradient}, {0, 1, 2, 3});
    return absl::OkStatus();
  });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
}

// Backward hangs: the sums do not hang with it, and say what they waited for.
TEST_P(GradSyncTest, EndsAtTheDeadline) {
  std::vector<std::unique_ptr<Communicator>> pair = MakeLocalGroup(2);
  const auto statuses = test::RunRanks(&pair, [&](Communicator* comm) -> absl::Status {
    FakeGradients fake(comm->rank());
    std::unique_ptr<GradSync> sync;
    ASSIGN_OR_RETURN(sync, GradSync::Create({.mode = GetParam()}, {.world = comm, .experts = comm}, fake.gradients));
    sync->Start(absl::Now() + absl::Milliseconds(50));
    // Neither does the group: it is ended, which whoever computes sees.
    const absl::Time limit = test::Soon();
    while (comm->status().ok() && absl::Now() < limit) absl::SleepFor(absl::Milliseconds(1));
    sync->Cancel();
    return comm->status();
  });
  int named = 0;
  for (const absl::Status& status : statuses) {
    EXPECT_FALSE(status.ok());
    named += testing::Value(std::string(status.message()), HasSubstr("waited for backward until the deadline")) ? 1 : 0;
  }
  EXPECT_GE(named, 1);
}

TEST(GradSyncErrorsTest, PiecesWithoutRoomAreRefused) {
  FakeGradients fake(0);
  std::vector<std::unique_ptr<Communicator>> pair = MakeLocalGroup(2);
  EXPECT_EQ(GradSync::Create({.mode = CommMode::kFull, .piece_bytes = 7},
                             {.world = pair[0].get(), .experts = pair[0].get()}, fake.gradients)
                .status()
                .code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace switchyard
