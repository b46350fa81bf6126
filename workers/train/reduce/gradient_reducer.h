// Sums one rank's gradients over ranks while backward runs: gradients that every rank has over all ranks, those of
// experts over the ranks that hold the same (trainer_group.h); an expert on one rank needs no sum.
//
// What is summed together, and in which order, follows from shapes alone (reduce_policy.h), so ranks have the sums that
// they share in the same order.  One thread a pass starts them in that order, each as soon as its gradients are
// complete and the mode's rule lets it go beside this rank's all-to-alls (AllToAllWatch).
//
// No wait is circular: all-to-alls and sums are classes of their own, each in one order, and an all-to-all is never
// held behind a sum (communicator.h); the rule only delays sums.  In priority_ticketed, where an all-to-all does wait
// for a sum, both follow the one order that rank 0 decides.  tests/model_check checks both, and that the paper's local
// rule does deadlock.
//
// Values depend neither on the mode nor on timing: every element is summed in rank order, whatever it travels with.
// Sums are tagged with their number, so ranks that differ in what they sum are named (Internal).
//
// One thread runs backward and calls all of this: Start → (StageDone and the watch's calls) → Finish, or Cancel after
// an error.  During a pass its thread alone uses the communicator's classes all_reduce and control.  CPU only.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "scheduler/jobs/comm_spec.h"
#include "scheduler/jobs/reduce_policy.h"
#include "workers/comm/core/call_tag.h"
#include "workers/comm/core/communicator.h"
#include "workers/model/backward/backward_stages.h"
#include "workers/model/backward/model_gradients.h"
#include "workers/moe/layer/schedule_executor.h"
#include "workers/tensor/tensor.h"
#include "workers/train/step/trainer_group.h"

namespace switchyard::train {

// A ticket of priority_ticketed: the next all-to-all or sum in the one order that rank 0 decides and followers obey
// (scheduler/PAPERS.md, "Leader's ticket log").  What is ready on rank 0 depends only on earlier tickets.
enum class Ticket : uint8_t { kAllToAll, kSum, kEnd };

class GradientReducer : public moe::AllToAllWatch {
 public:
  // Borrows gradients and group.  Errors: ReducePolicyOf's; InvalidArgument for several dtypes; ResourceExhausted.
  static absl::StatusOr<std::unique_ptr<GradientReducer>> Create(const jobs::CommunicationSpec& spec,
                                                                 const TrainerGroup& group,
                                                                 const model::ModelGradients& gradients);
  ~GradientReducer() override { Cancel(); }

  // A pass begins, behind the caller's gate (yield_point.h).  REQUIRES: none is under way.
  void Start(absl::Time deadline);
  // REQUIRES: stages come in the order of BackwardStages.
  void StageDone(const model::BackwardStage& stage);
  // Backward is done: blocks until all is summed, at most until the deadline.  Errors: the communicator's;
  // DeadlineExceeded (names the sum and what it waited for).  Either ends the group.
  absl::Status Finish();
  // After an error anywhere: gives up.  The group must have been aborted, or nothing be under way.
  void Cancel();

  // Of the pass under way; without one they do nothing.
  void Imminent() override;
  absl::Status Begin() override;
  void End() override;
  void LayerEnd() override;

  int64_t num_sums() const { return static_cast<int64_t>(sums_.size()); }

 private:
  struct Sum {
    std::vector<TensorView> parts;  // [n] each, summed together
    comm::Communicator* over = nullptr;
    uint32_t tag = 0;
    int32_t stage = 0;      // that must be done
    int64_t count() const;  // of elements
  };
  struct UnderWay {
    const Sum* sum = nullptr;
    std::unique_ptr<comm::Work> work;
  };
  struct Gradients {
    std::vector<TensorView> views;  // [n] each, as they become complete
    std::vector<int32_t> stages;    // when
  };
  GradientReducer(const jobs::ReducePolicy& policy, const TrainerGroup& group, const model::ModelGradients& gradients);
  absl::Status Plan(const Gradients& gradients, comm::Communicator* over, comm::CallUse use);
  absl::Status FinishPlan();

  void AwaitEnd();  // of the thread
  void Run();
  absl::Status RunFreely();
  absl::Status RunAsLeader();
  absl::Status RunAsFollower();
  bool MayStart(size_t sum_idx) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool MayJoin(size_t sum_idx) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status AwaitTurn(size_t sum_idx) ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<Ticket> AwaitDecision(size_t next_turn) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status RunTurn(size_t turn_idx);
  absl::Status WaitEnded(bool in_time, absl::string_view what) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Grant() ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status StartSum(size_t sum_idx);
  absl::Status FinishSum();
  absl::Status FinishAll();
  // Where a sum of several parts is made.
  TensorView BucketOf(const Sum& sum) const;
  void CopyParts(const Sum& sum, bool to_bucket) const;

  const jobs::ReducePolicy policy_;
  const TrainerGroup group_;
  const std::vector<model::BackwardStage> stages_;
  Gradients dense_, experts_;
  std::vector<Sum> sums_;
  // Where the sums of each ticket end: one over all ranks, with those over some ranks up to the next.
  std::vector<size_t> turns_;
  Tensor bucket_;  // for the largest sum of several parts

  // Of the pass.
  bool passing_ = false;
  absl::Time deadline_;
  jobs::ReduceRule rule_ = jobs::ReduceRule::kAtTheEnd;
  std::thread thread_;
  std::deque<UnderWay> under_way_;  // of the thread

  absl::Mutex mu_;
  jobs::AllToAllState all_to_alls_ ABSL_GUARDED_BY(mu_);
  int32_t stages_done_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t asked_ ABSL_GUARDED_BY(mu_) = 0;    // ticketed: all-to-alls that were ready
  int64_t granted_ ABSL_GUARDED_BY(mu_) = 0;  // and that may go
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mu_);  // of the thread
};

}  // namespace switchyard::train
