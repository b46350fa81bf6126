// Sums of gradients beside backward: when each starts, over which ranks, and when it is cancelled.
#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/base/status_macros.h"
#include "tests/workers/comm/comm_test_util.h"
#include "tests/workers/train/comm_modes.h"
#include "workers/comm/local/local_communicator.h"
#include "workers/train/reduce/gradient_reducer.h"

namespace switchyard::train {
namespace {

using test::Backend;
using testing::HasSubstr;

class GradientReducerRulesTest : public ::testing::TestWithParam<jobs::CommMode> {};

INSTANTIATE_TEST_SUITE_P(Modes, GradientReducerRulesTest, ::testing::ValuesIn(AllCommModes()),
                         [](const auto& info) { return std::string(jobs::CommModeName(info.param)); });

// Gradients of a model of one dense layer and, optionally, experts, with values that depend on the rank.
class FakeGradients {
 public:
  FakeGradients(int rank, int64_t experts = 0) : rank_(rank) {
    gradients.embedding = Next(40);
    gradients.final_norm = Next(4);
    gradients.lm_head.gradient = Next(300);
    model::LayerGradients& layer = gradients.layers.emplace_back();
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
    for (ops::FfnGradients& expert : layer.moe->experts) {
      expert.gate_up.gradient = Next(64);
      expert.down.gradient = Next(32);
    }
  }
  // Expects the sums over `ranks` of their initial values.
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

  model::ModelGradients gradients;

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

class CountingCommunicator : public comm::Communicator {
 public:
  CountingCommunicator(std::unique_ptr<Communicator> inner, Launches* launches)
      : Communicator(inner->group(), comm::MessagePool::Create()), inner_(std::move(inner)), launches_(launches) {}
  void Abort(absl::string_view reason) override { inner_->Abort(reason); }
  absl::Status status() const override { return inner_->status(); }
  comm::WorkOr StartExchange(Exchange exchange) override {
    if (exchange.key.comm_class == comm::CommClass::kAllReduce) launches_->Count();
    return inner_->StartExchange(std::move(exchange));
  }

 private:
  const std::unique_ptr<Communicator> inner_;
  Launches* const launches_;
};

std::vector<std::unique_ptr<comm::Communicator>> CountedPair(std::vector<Launches>* launches) {
  std::vector<std::unique_ptr<comm::Communicator>> pair = comm::MakeLocalGroup(2);
  for (size_t r = 0; r < 2; ++r) {
    pair[r] = std::make_unique<CountingCommunicator>(std::move(pair[r]), &(*launches)[r]);
  }
  return pair;
}

// All gradients are complete while an all-to-all is about to come, or runs: which is the first phase with a sum?
TEST_P(GradientReducerRulesTest, StartsWhenTheRuleLetsIt) {
  const std::map<jobs::CommMode, std::pair<std::string, std::string>> expected = {
      {jobs::CommMode::kFair, {"imminent", "running"}},
      {jobs::CommMode::kFixed, {"imminent", "layer done"}},
      {jobs::CommMode::kArLast, {"finish", "finish"}},
      {jobs::CommMode::kPriority, {"between", "between"}},
      {jobs::CommMode::kPriorityTicketed, {"between", "between"}},
      {jobs::CommMode::kPartition, {"between", "between"}},
      {jobs::CommMode::kPipelining, {"between", "between"}},
      {jobs::CommMode::kFull, {"between", "between"}},
      {jobs::CommMode::kPreempt, {"between", "between"}},
  };
  for (const bool imminent : {true, false}) {
    const std::string& wanted = imminent ? expected.at(GetParam()).first : expected.at(GetParam()).second;
    std::vector<Launches> launches(2);
    std::vector<std::unique_ptr<comm::Communicator>> pair = CountedPair(&launches);
    const auto statuses = test::RunRanks(&pair, [&](comm::Communicator* comm) -> absl::Status {
      FakeGradients fake(comm->rank());
      Launches& mine = launches[static_cast<size_t>(comm->rank())];
      std::unique_ptr<GradientReducer> sync;
      ASSIGN_OR_RETURN(sync, GradientReducer::Create({.mode = GetParam(), .piece_bytes = 1024},
                                                     {.world = comm, .experts = comm}, fake.gradients));
      bool started = false;
      const auto enter = [&](const std::string& phase) { mine.Enter(phase); };
      // A follower obeys rank 0, which may be ahead of it.
      const bool follows = GetParam() == jobs::CommMode::kPriorityTicketed && comm->rank() != 0;
      // A sum that must start here does so before the next phase; one that must not has had the time to.
      const auto leave = [&](const std::string& phase) {
        started = started || phase == wanted;
        if (follows && !started) return;
        EXPECT_EQ(mine.Await(started ? absl::Seconds(20) : absl::Milliseconds(10)), started) << phase;
      };
      const auto complete = [&] {
        for (const model::BackwardStage& stage : model::BackwardStages(1)) sync->StageDone(stage);
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

// Four ranks, with every expert on two of them; the second and third rank have the same ones.
TEST_P(GradientReducerRulesTest, ExpertsAreSummedOverThoseThatHaveThem) {
  std::vector<std::unique_ptr<comm::Communicator>> ranks = test::MakeGroup(test::Backend::kSocket, 4);
  const auto statuses = test::RunRanks(&ranks, [&](comm::Communicator* comm) -> absl::Status {
    const int group = comm->rank() == 1 || comm->rank() == 2 ? 1 : 0;
    std::unique_ptr<comm::Communicator> replicas;
    ASSIGN_OR_RETURN(replicas, comm->Split(group, comm->rank(), test::Soon()));
    FakeGradients fake(comm->rank(), /*experts=*/2 + group);
    std::unique_ptr<GradientReducer> sync;
    ASSIGN_OR_RETURN(
        sync, GradientReducer::Create({.mode = GetParam(), .piece_bytes = 128},
                                      {.world = comm, .experts = comm, .replicas = replicas.get()}, fake.gradients));
    sync->Start(test::Soon());
    for (const model::BackwardStage& stage : model::BackwardStages(1)) {
      sync->Imminent();
      RETURN_IF_ERROR(sync->Begin());
      sync->End();
      sync->LayerEnd();
      sync->StageDone(stage);
    }
    RETURN_IF_ERROR(sync->Finish());
    std::vector<TensorView> experts;
    for (const ops::FfnGradients& expert : fake.gradients.layers[0].moe->experts) {
      experts.push_back(expert.gate_up.gradient);
      experts.push_back(expert.down.gradient);
    }
    fake.ExpectSums(experts, group == 1 ? std::vector<int>{1, 2} : std::vector<int>{0, 3});
    fake.ExpectSums({fake.gradients.embedding, fake.gradients.layers[0].moe->router.gradient}, {0, 1, 2, 3});
    return absl::OkStatus();
  });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
}

// Backward hangs: the sums end at their deadline, and their error names what they waited for.
TEST_P(GradientReducerRulesTest, EndsAtTheDeadline) {
  std::vector<std::unique_ptr<comm::Communicator>> pair = comm::MakeLocalGroup(2);
  const auto statuses = test::RunRanks(&pair, [&](comm::Communicator* comm) -> absl::Status {
    FakeGradients fake(comm->rank());
    std::unique_ptr<GradientReducer> sync;
    ASSIGN_OR_RETURN(sync,
                     GradientReducer::Create({.mode = GetParam()}, {.world = comm, .experts = comm}, fake.gradients));
    sync->Start(absl::Now() + absl::Milliseconds(50));
    // The group ends, too, and backward sees its status.
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

TEST(GradientReducerErrorsTest, PiecesWithoutRoomAreRefused) {
  FakeGradients fake(0);
  std::vector<std::unique_ptr<comm::Communicator>> pair = comm::MakeLocalGroup(2);
  EXPECT_EQ(GradientReducer::Create({.mode = jobs::CommMode::kFull, .piece_bytes = 7},
                                    {.world = pair[0].get(), .experts = pair[0].get()}, fake.gradients)
                .status()
                .code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace switchyard::train
