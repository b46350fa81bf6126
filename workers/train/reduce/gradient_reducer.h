// Sums one rank's gradients over ranks while backward runs: those of replicated parameters over all ranks, those of
// experts over the ranks with the same experts (trainer_group.h); an expert on one rank needs no sum.
//
// The buckets and their order follow from shapes alone (reduce_policy.h), so ranks have common sums in the same order.
// In each pass one thread starts them in that order, each as soon as its gradients are complete and the mode's rule
// permits it beside this rank's all-to-alls (AllToAllWatch).
//
// No wait is circular: all-to-alls and sums are classes of their own, each in one order, and an all-to-all never waits
// for a sum (communicator.h); the rule only delays sums.  In priority_ticketed an all-to-all may wait for a sum, but
// both follow the one order that rank 0 decides.  tests/model_check proves both, and that the paper's local rule
// deadlocks.
//
// Values depend neither on the mode nor on timing: every element is summed in rank order, in any bucket.
// Of gradients that are sharded (dense_shards.h) each rank gets the sums of its elements alone, with the same bits:
// the same buckets and pieces in the same order, each with a part for every rank that has some.
// The embedding's gradient may be gathered as rows (sparse_embedding.h), which takes the place of a sum: its tokens go
// when backward begins, its rows when it has ended.
// Sums are tagged with their number, so an error names ranks that differ in what they sum (Internal).
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
#include "workers/comm/core/part_collectives.h"
#include "workers/model/backward/backward_stages.h"
#include "workers/model/backward/model_gradients.h"
#include "workers/moe/layer/schedule_executor.h"
#include "workers/tensor/tensor.h"
#include "workers/train/parameters/dense_shards.h"
#include "workers/train/reduce/sparse_embedding.h"
#include "workers/train/reduce/tickets.h"
#include "workers/train/step/trainer_group.h"

namespace switchyard::train {

class GradientReducer : public moe::AllToAllWatch {
 public:
  // Borrows all.  sharded: of all dense gradients, or of none.  embedding: null where its gradient is summed.  Errors:
  // ReducePolicyOf's; InvalidArgument for several dtypes; ResourceExhausted.
  static absl::StatusOr<std::unique_ptr<GradientReducer>> Create(const jobs::CommunicationSpec& spec,
                                                                 const TrainerGroup& group,
                                                                 const model::ModelGradients& gradients,
                                                                 const ShardedGradients& sharded = {},
                                                                 SparseEmbedding* embedding = nullptr);
  ~GradientReducer() override { Cancel(); }

  // Begins a pass.  REQUIRES: none is under way.
  void Start(absl::Time deadline);
  // REQUIRES: stages come in the order of BackwardStages.
  void StageDone(const model::BackwardStage& stage);
  // Call it when backward is done: blocks until all is summed, at most until the deadline.  Errors: the communicator's;
  // DeadlineExceeded (names the sum and what it waited for).  Either ends the group.
  absl::Status Finish();
  // Ends the pass after an error.  REQUIRES: the group has been aborted, or nothing is under way.
  void Cancel();

  // Calls of the pass under way; without a pass they do nothing.
  void Imminent() override;
  absl::Status Begin() override;
  void End() override;
  void LayerEnd() override;

  int64_t num_sums() const { return static_cast<int64_t>(sums_.size()); }

 private:
  enum class Kind : uint8_t { kSum, kGatherTokens, kGatherRows };
  struct Sum {
    Kind kind = Kind::kSum;         // gathers, which stand among sums in their order, have no parts
    std::vector<TensorView> parts;  // [n] each, summed together
    comm::PartViews shards = {};    // of what is sharded: each rank's part of them
    comm::Communicator* over = nullptr;
    uint32_t tag = 0;
    int32_t stage = 0;      // of backward, after which the gradients are complete
    int64_t count() const;  // of elements
    // Whether its parts are copied to one memory, in which they are summed.
    bool bucketed() const { return shards.empty() && parts.size() > 1; }
  };
  struct UnderWay {
    const Sum* sum = nullptr;
    std::unique_ptr<comm::Work> work;
  };
  struct Gradients {
    std::vector<TensorView> views;  // [n] each, as they become complete
    std::vector<int32_t> stages;    // when
    // Of each where it is sharded, else empty.
    std::vector<std::vector<int64_t>> borders;
  };
  GradientReducer(const jobs::ReducePolicy& policy, const TrainerGroup& group, const model::ModelGradients& gradients,
                  const ShardedGradients& sharded, SparseEmbedding* embedding);
  absl::Status Plan(const Gradients& gradients, comm::Communicator* over, comm::CallUse use);
  void PlanGathers();
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
  comm::WorkOr StartWork(const Sum& sum);
  absl::Status StartSum(size_t sum_idx);
  absl::Status FinishSum();
  absl::Status FinishAll();
  // The memory in which several parts are summed.
  TensorView BucketOf(const Sum& sum) const;
  void CopyParts(const Sum& sum, bool to_bucket) const;

  const jobs::ReducePolicy policy_;
  const TrainerGroup group_;
  SparseEmbedding* const embedding_;
  const std::vector<model::BackwardStage> stages_;
  Gradients dense_, experts_;
  std::vector<Sum> sums_;
  // The end of each ticket's sums: one sum over all ranks, and the sums over some ranks that follow it.
  std::vector<size_t> turns_;
  Tensor bucket_;  // for the largest sum of several parts

  // The state of the pass.
  bool passing_ = false;
  absl::Time deadline_;
  jobs::ReduceRule rule_ = jobs::ReduceRule::kAtTheEnd;
  std::thread thread_;
  std::deque<UnderWay> under_way_;  // of the thread

  absl::Mutex mu_;
  jobs::AllToAllState all_to_alls_ ABSL_GUARDED_BY(mu_);
  int32_t stages_done_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t asked_ ABSL_GUARDED_BY(mu_) = 0;    // ticketed: all-to-alls that were ready
  int64_t granted_ ABSL_GUARDED_BY(mu_) = 0;  // ticketed: all-to-alls that may start
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mu_);  // of the thread
};

}  // namespace switchyard::train
