// How many sums of gradients are under way at a time: one while backward may have all-to-alls, two when it is done.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "scheduler/base/status_macros.h"
#include "tests/workers/comm/comm_test_util.h"
#include "workers/comm/local/local_communicator.h"
#include "workers/train/reduce/gradient_reducer.h"

namespace switchyard::train {
namespace {

class UnderWay {
 public:
  void Begin() {
    absl::MutexLock lock(&mu_);
    most_ = std::max(most_, ++now_);
    ++begun_;
  }
  void End() {
    absl::MutexLock lock(&mu_);
    --now_;
  }
  int most() {
    absl::MutexLock lock(&mu_);
    return most_;
  }
  // Until so many have ended.
  void AwaitEnded(int64_t count) {
    absl::MutexLock lock(&mu_);
    const auto ended = [&] {
      mu_.AssertHeld();
      return begun_ - now_ >= count;
    };
    EXPECT_TRUE(mu_.AwaitWithDeadline(absl::Condition(&ended), test::Soon()));
  }

 private:
  absl::Mutex mu_;
  int now_ ABSL_GUARDED_BY(mu_) = 0, most_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t begun_ ABSL_GUARDED_BY(mu_) = 0;
};

// Counts sums by their first exchange.
class CountingCommunicator : public comm::Communicator {
 public:
  CountingCommunicator(std::unique_ptr<Communicator> inner, UnderWay* sums)
      : Communicator(inner->group(), comm::MessagePool::Create()), inner_(std::move(inner)), sums_(sums) {}
  void Abort(absl::string_view reason) override { inner_->Abort(reason); }
  absl::Status status() const override { return inner_->status(); }
  comm::WorkOr StartExchange(Exchange exchange) override {
    const bool counts = exchange.key.comm_class == comm::CommClass::kAllReduce && exchange.round == 0;
    ASSIGN_OR_RETURN(std::unique_ptr<comm::Work> work, inner_->StartExchange(std::move(exchange)));
    if (!counts) return work;
    sums_->Begin();
    return std::make_unique<CountedWork>(std::move(work), sums_);
  }

 private:
  class CountedWork : public comm::Work {
   public:
    CountedWork(std::unique_ptr<Work> inner, UnderWay* sums) : inner_(std::move(inner)), sums_(sums) {}
    absl::Status Wait() override {
      const absl::Status status = inner_->Wait();
      if (waited_) return status;
      waited_ = true;
      received_ = std::move(inner_->received());
      sums_->End();
      return status;
    }

   private:
    const std::unique_ptr<Work> inner_;
    UnderWay* const sums_;
    bool waited_ = false;
  };
  const std::unique_ptr<Communicator> inner_;
  UnderWay* const sums_;
};

// Four tensors of 64 numbers in one layer and before it; of rank r all are r + 1.
struct Gradients {
  explicit Gradients(int rank) {
    for (Tensor& tensor : tensors) {
      auto made = Tensor::Allocate(DType::kF32, {64}, Device::Cpu());
      EXPECT_TRUE(made.ok());
      tensor = *std::move(made);
      std::fill_n(tensor.view().data<float>(), 64, static_cast<float>(rank + 1));
    }
    views.layers.resize(1);
    views.lm_head.gradient = tensors[0].view();
    views.final_norm = tensors[1].view();
    views.layers[0].ffn_norm = tensors[2].view();
    views.layers[0].attention.norm = tensors[3].view();
  }
  Tensor tensors[4];
  model::ModelGradients views;
};

// The most sums that were under way on a rank.  finished: backward is done when the first may start; else all end
// before.
int MostUnderWay(jobs::CommMode mode, bool finished) {
  UnderWay sums[2];
  std::vector<std::unique_ptr<comm::Communicator>> pair = comm::MakeLocalGroup(2);
  for (size_t r = 0; r < 2; ++r) pair[r] = std::make_unique<CountingCommunicator>(std::move(pair[r]), &sums[r]);
  const auto run = [&](comm::Communicator* comm) -> absl::Status {
    Gradients gradients(comm->rank());
    ASSIGN_OR_RETURN(const std::unique_ptr<GradientReducer> sync,
                     GradientReducer::Create({.mode = mode, .piece_bytes = mode == jobs::CommMode::kFair ? 600 : 8},
                                             {.world = comm, .experts = comm}, gradients.views));
    sync->Start(test::Soon());
    if (finished) RETURN_IF_ERROR(sync->Begin());
    for (const model::BackwardStage& stage : model::BackwardStages(1)) sync->StageDone(stage);
    if (finished) sync->End();
    if (!finished) sums[comm->rank()].AwaitEnded(sync->num_sums());
    RETURN_IF_ERROR(sync->Finish());
    for (const Tensor& tensor : gradients.tensors) {
      for (int64_t i = 0; i < 64; ++i) EXPECT_EQ(tensor.view().data<float>()[i], 3);
    }
    return absl::OkStatus();
  };
  for (const absl::Status& status : test::RunRanks(&pair, run)) EXPECT_TRUE(status.ok()) << status;
  return std::max(sums[0].most(), sums[1].most());
}

TEST(GradientReducerEndTest, OneAtATimeInBackward) {
  EXPECT_EQ(MostUnderWay(jobs::CommMode::kPreempt, false), 1);
  EXPECT_EQ(MostUnderWay(jobs::CommMode::kPartition, false), 1);
  EXPECT_EQ(MostUnderWay(jobs::CommMode::kPipelining, false), 1);
}

TEST(GradientReducerEndTest, TwoWhenBackwardIsDone) {
  EXPECT_EQ(MostUnderWay(jobs::CommMode::kPreempt, true), 2);
  EXPECT_EQ(MostUnderWay(jobs::CommMode::kPartition, true), 2);
  EXPECT_EQ(MostUnderWay(jobs::CommMode::kPipelining, true), 2);
}

// They are summed in the same memory.
TEST(GradientReducerEndTest, BucketsGoOneByOne) { EXPECT_EQ(MostUnderWay(jobs::CommMode::kFair, true), 1); }

}  // namespace
}  // namespace switchyard::train
