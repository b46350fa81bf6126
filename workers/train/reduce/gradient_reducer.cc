#include "workers/train/reduce/gradient_reducer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/await.h"
#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"
#include "workers/tensor/copy_bytes.h"

namespace switchyard::train {
namespace {

constexpr int32_t kMaxUnderWayAtTheEnd = 2;

}  // namespace

int64_t GradientReducer::Sum::count() const {
  int64_t count = 0;
  for (const TensorView& part : parts) count += part.dim(0);
  return count;
}

absl::StatusOr<std::unique_ptr<GradientReducer>> GradientReducer::Create(const jobs::CommunicationSpec& spec,
                                                                         const TrainerGroup& group,
                                                                         const model::ModelGradients& gradients,
                                                                         const ShardedGradients& sharded,
                                                                         SparseEmbedding* embedding) {
  ASSIGN_OR_RETURN(jobs::ReducePolicy policy, jobs::ReducePolicyOf(spec));
  model::ModelGradients summed = gradients;
  if (embedding != nullptr) summed.embedding = TensorView();
  std::unique_ptr<GradientReducer> sync(new GradientReducer(policy, group, summed, sharded, embedding));
  RETURN_IF_ERROR(sync->Plan(sync->dense_, group.world, comm::CallUse::kGradientSum));
  if (embedding != nullptr) sync->PlanGathers();
  if (group.replicas != nullptr)
    RETURN_IF_ERROR(sync->Plan(sync->experts_, group.replicas, comm::CallUse::kReplicaSum));
  RETURN_IF_ERROR(sync->FinishPlan());
  return sync;
}

GradientReducer::GradientReducer(const jobs::ReducePolicy& policy, const TrainerGroup& group,
                                 const model::ModelGradients& gradients, const ShardedGradients& sharded,
                                 SparseEmbedding* embedding)
    : policy_(policy),
      group_(group),
      embedding_(embedding),
      stages_(model::BackwardStages(static_cast<int64_t>(gradients.layers.size()))) {
  const auto append = [&](const std::vector<TensorView>& views, size_t stage, Gradients* to) {
    for (const TensorView& view : views) {
      to->views.push_back(view.Reshape({view.NumElements()}));
      to->stages.push_back(static_cast<int32_t>(stage));
      const auto found = sharded.find(view.raw());
      to->borders.push_back(found == sharded.end() ? std::vector<int64_t>() : *found->second);
    }
  };
  for (size_t i = 0; i < stages_.size(); ++i) {
    append(model::DenseGradientsOf(gradients, stages_[i]), i, &dense_);
    append(model::ExpertGradientsOf(gradients, stages_[i]), i, &experts_);
  }
}

absl::Status GradientReducer::Plan(const Gradients& gradients, comm::Communicator* over, comm::CallUse use) {
  if (gradients.views.empty()) return absl::OkStatus();
  const DType dtype = gradients.views[0].dtype();
  std::vector<int64_t> elements;
  for (const TensorView& gradient : gradients.views) {
    if (gradient.dtype() != dtype) {
      return absl::InvalidArgumentError(absl::StrCat("grad_sync: gradients of ", DTypeName(dtype), " and of ",
                                                     DTypeName(gradient.dtype()), " in one model"));
    }
    elements.push_back(gradient.NumElements());
  }
  int64_t number = 0;
  for (const jobs::ReduceOp& op : jobs::PlanReduces(elements, DTypeBytes(dtype), policy_.grouping, policy_.op_bytes)) {
    Sum& sum = sums_.emplace_back();
    for (const jobs::ReducePiece& piece : op.pieces) {
      const TensorView& view = gradients.views[piece.tensor];
      const std::vector<int64_t>& borders = gradients.borders[piece.tensor];
      sum.parts.push_back(view.Rows(piece.begin, piece.count));
      if (borders.empty()) continue;
      sum.shards.resize(borders.size() - 1);
      for (size_t r = 0; r < sum.shards.size(); ++r) {
        const ElementRange run = RunOfPiece(borders, static_cast<int>(r), {piece.begin, piece.count});
        sum.shards[r].push_back(view.Rows(run.begin, run.count));
      }
    }
    SY_CHECK(sum.shards.empty() || sum.shards[0].size() == sum.parts.size());
    sum.over = over;
    sum.tag = comm::NumberedTag(use, number++);
    sum.stage = gradients.stages[op.after];
  }
  return absl::OkStatus();
}

// Behind the sums over all ranks, whose number is the same on all of them.
void GradientReducer::PlanGathers() {
  const auto number = static_cast<int64_t>(sums_.size());
  const auto add = [&](Kind kind, int64_t at, size_t stage) {
    sums_.push_back({.kind = kind,
                     .parts = {},
                     .over = group_.world,
                     .tag = comm::NumberedTag(comm::CallUse::kGradientSum, number + at),
                     .stage = static_cast<int32_t>(stage)});
  };
  add(Kind::kGatherTokens, 0, 0);
  add(Kind::kGatherRows, 1, stages_.size() - 1);
}

// Sums that ranks share keep their order: over all ranks, and among those with the same experts.
absl::Status GradientReducer::FinishPlan() {
  std::stable_sort(sums_.begin(), sums_.end(), [](const Sum& a, const Sum& b) { return a.stage < b.stage; });
  const Sum* largest = nullptr;
  for (size_t i = 0; i < sums_.size(); ++i) {
    const Sum& sum = sums_[i];
    if (i + 1 == sums_.size() || sums_[i + 1].over == group_.world) turns_.push_back(i + 1);
    if (sum.bucketed() && (largest == nullptr || sum.count() > largest->count())) largest = &sum;
  }
  if (largest == nullptr) return absl::OkStatus();
  ASSIGN_OR_RETURN(bucket_, Tensor::Allocate(largest->parts[0].dtype(), {largest->count()}, Device::Cpu()));
  return absl::OkStatus();
}

void GradientReducer::Start(absl::Time deadline) {
  SY_CHECK(!passing_);
  if (group_.world->world() == 1) return;
  passing_ = true;
  deadline_ = deadline;
  // Followers obey rank 0's tickets as soon as they can.
  rule_ = policy_.ticketed && group_.world->rank() != 0 ? jobs::ReduceRule::kAtOnce : policy_.rule;
  {
    absl::MutexLock lock(&mu_);
    all_to_alls_ = {};
    stages_done_ = 0;
    asked_ = granted_ = 0;
    cancelled_ = false;
    status_ = absl::OkStatus();
  }
  thread_ = std::thread([this] { Run(); });
}

void GradientReducer::StageDone(const model::BackwardStage& stage) {
  if (!passing_) return;
  absl::MutexLock lock(&mu_);
  SY_CHECK(stages_done_ < static_cast<int32_t>(stages_.size()) && stage == stages_[stages_done_]);
  ++stages_done_;
}

absl::Status GradientReducer::Finish() {
  if (!passing_) return absl::OkStatus();
  {
    absl::MutexLock lock(&mu_);
    SY_CHECK_EQ(stages_done_, static_cast<int32_t>(stages_.size()));
    all_to_alls_.backward_done = true;
  }
  AwaitEnd();
  passing_ = false;
  absl::MutexLock lock(&mu_);
  return status_;
}

void GradientReducer::Cancel() {
  if (!passing_) return;
  {
    absl::MutexLock lock(&mu_);
    cancelled_ = true;
  }
  AwaitEnd();
  passing_ = false;
}

void GradientReducer::AwaitEnd() { thread_.join(); }

void GradientReducer::Imminent() {
  absl::MutexLock lock(&mu_);
  all_to_alls_.imminent = true;
}

absl::Status GradientReducer::Begin() {
  if (!passing_) return absl::OkStatus();
  int64_t mine = 0;
  {
    absl::MutexLock lock(&mu_);
    all_to_alls_.imminent = false;
    all_to_alls_.in_pair = true;
    ++all_to_alls_.under_way;
    if (!policy_.ticketed) return absl::OkStatus();
    mine = ++asked_;
  }
  absl::MutexLock lock(&mu_);
  const auto decided = [&] {
    mu_.AssertHeld();
    return granted_ >= mine || !status_.ok();
  };
  const bool in_time = AwaitUntil(&mu_, absl::Condition(&decided), deadline_);
  RETURN_IF_ERROR(status_);
  return WaitEnded(in_time, "an all-to-all waited for its ticket");
}

void GradientReducer::End() {
  absl::MutexLock lock(&mu_);
  --all_to_alls_.under_way;
}

void GradientReducer::LayerEnd() {
  absl::MutexLock lock(&mu_);
  all_to_alls_.in_pair = false;
}

void GradientReducer::Run() {
  const absl::Status status = !policy_.ticketed           ? RunFreely()
                              : group_.world->rank() == 0 ? RunAsLeader()
                                                          : RunAsFollower();
  // Ends the wait of the other ranks for this one's sums.
  if (!status.ok()) group_.world->Abort(status.message());
  under_way_.clear();
  absl::MutexLock lock(&mu_);
  status_ = status;
}

absl::Status GradientReducer::RunFreely() {
  for (size_t i = 0; i < sums_.size(); ++i) {
    while (!under_way_.empty() && !MayJoin(i)) RETURN_IF_ERROR(FinishSum());
    bool now = false;
    {
      absl::MutexLock lock(&mu_);
      now = MayStart(i);
    }
    if (!now) {
      RETURN_IF_ERROR(FinishAll());  // peers may need our Wait
      RETURN_IF_ERROR(AwaitTurn(i));
    }
    RETURN_IF_ERROR(StartSum(i));
  }
  return FinishAll();
}

absl::Status GradientReducer::RunAsLeader() {
  TicketSender tickets(group_.world, deadline_);
  size_t next = 0;
  for (;;) {
    ASSIGN_OR_RETURN(const Ticket ticket, AwaitDecision(next));
    RETURN_IF_ERROR(tickets.Send(ticket));
    if (ticket == Ticket::kEnd) return tickets.Flush();
    if (ticket == Ticket::kAllToAll) {
      Grant();
    } else {
      RETURN_IF_ERROR(RunTurn(next++));
    }
  }
}

absl::Status GradientReducer::RunAsFollower() {
  size_t next = 0;
  for (;;) {
    ASSIGN_OR_RETURN(const Ticket ticket, ReceiveTicket(group_.world, deadline_));
    if (ticket == Ticket::kAllToAll) {
      Grant();
    } else if (ticket == Ticket::kSum && next < turns_.size()) {
      RETURN_IF_ERROR(AwaitTurn(turns_[next] - 1));
      RETURN_IF_ERROR(RunTurn(next++));
    } else if (ticket == Ticket::kEnd && next == turns_.size()) {
      return absl::OkStatus();
    } else {
      return absl::InternalError(absl::StrCat("grad_sync: rank 0 orders rank ", group_.world->rank(), " to ",
                                              ticket == Ticket::kEnd ? "end" : "go on", " after ", next, " of ",
                                              turns_.size(), " sums"));
    }
  }
}

absl::Status GradientReducer::RunTurn(size_t turn_idx) {
  for (size_t i = turn_idx == 0 ? 0 : turns_[turn_idx - 1]; i < turns_[turn_idx]; ++i) {
    RETURN_IF_ERROR(StartSum(i));
    RETURN_IF_ERROR(FinishAll());
  }
  return absl::OkStatus();
}

bool GradientReducer::MayStart(size_t sum_idx) const {
  return stages_done_ > sums_[sum_idx].stage && jobs::MayReduce(rule_, all_to_alls_);
}

// Whether the sum may run beside those under way.  After backward it slows no all-to-all, and two sums hide each
// other's latency; but sums of several parts share one bucket.
bool GradientReducer::MayJoin(size_t sum_idx) {
  if (static_cast<int32_t>(under_way_.size()) >= kMaxUnderWayAtTheEnd) return false;
  if (sums_[sum_idx].bucketed() || under_way_.back().sum->bucketed()) return false;
  absl::MutexLock lock(&mu_);
  return all_to_alls_.backward_done;
}

absl::Status GradientReducer::AwaitTurn(size_t sum_idx) {
  absl::MutexLock lock(&mu_);
  const auto ended = [&] {
    mu_.AssertHeld();
    return cancelled_ || MayStart(sum_idx);
  };
  const bool in_time = AwaitUntil(&mu_, absl::Condition(&ended), deadline_);
  return WaitEnded(in_time, absl::StrCat("sum ", sum_idx + 1, " of ", sums_.size(), " waited for backward"));
}

absl::StatusOr<Ticket> GradientReducer::AwaitDecision(size_t next_turn) {
  absl::MutexLock lock(&mu_);
  const bool sums_left = next_turn < turns_.size();
  const auto decided = [&] {
    mu_.AssertHeld();
    return cancelled_ || asked_ > granted_ ||
           (sums_left ? MayStart(turns_[next_turn] - 1) : all_to_alls_.backward_done);
  };
  const bool in_time = AwaitUntil(&mu_, absl::Condition(&decided), deadline_);
  RETURN_IF_ERROR(WaitEnded(in_time, absl::StrCat("the leader of ", sums_.size(), " sums waited for backward")));
  if (asked_ > granted_) return Ticket::kAllToAll;
  return sums_left ? Ticket::kSum : Ticket::kEnd;
}

absl::Status GradientReducer::WaitEnded(bool in_time, absl::string_view what) const {
  if (cancelled_) return absl::CancelledError(absl::StrCat("grad_sync: ", what, " when the step was given up"));
  if (in_time) return absl::OkStatus();
  return absl::DeadlineExceededError(absl::StrCat("grad_sync: ", what, " until the deadline: ", stages_done_, " of ",
                                                  stages_.size(), " stages were done, ", all_to_alls_.under_way,
                                                  " all-to-alls under way"));
}

void GradientReducer::Grant() {
  absl::MutexLock lock(&mu_);
  ++granted_;
}

TensorView GradientReducer::BucketOf(const Sum& sum) const { return bucket_.view().Rows(0, sum.count()); }

void GradientReducer::CopyParts(const Sum& sum, bool to_bucket) const {
  int64_t at = 0;
  for (const TensorView& part : sum.parts) {
    void* const bucket = BucketOf(sum).Rows(at, part.dim(0)).raw();
    CopyBytes(to_bucket ? bucket : part.raw(), to_bucket ? part.raw() : bucket, comm::NumBytes(part));
    at += part.dim(0);
  }
}

comm::WorkOr GradientReducer::StartWork(const Sum& sum) {
  const comm::CommCall call = {.comm_class = comm::CommClass::kAllReduce, .deadline = deadline_, .tag = sum.tag};
  if (sum.kind == Kind::kGatherTokens) return comm::AllGatherParts(sum.over, call, embedding_->tokens());
  if (sum.kind == Kind::kGatherRows) return comm::AllGatherParts(sum.over, call, embedding_->rows());
  if (!sum.shards.empty()) return comm::ReduceScatterSum(sum.over, call, sum.shards);
  if (!sum.bucketed()) return sum.over->AllReduceSum(call, sum.parts[0]);
  CopyParts(sum, /*to_bucket=*/true);
  return sum.over->AllReduceSum(call, BucketOf(sum));
}

absl::Status GradientReducer::StartSum(size_t sum_idx) {
  ASSIGN_OR_RETURN(std::unique_ptr<comm::Work> work, StartWork(sums_[sum_idx]));
  under_way_.push_back({.sum = &sums_[sum_idx], .work = std::move(work)});
  return absl::OkStatus();
}

absl::Status GradientReducer::FinishSum() {
  const UnderWay done = std::move(under_way_.front());
  under_way_.pop_front();
  RETURN_IF_ERROR(done.work->Wait());
  if (done.sum->bucketed()) CopyParts(*done.sum, /*to_bucket=*/false);
  return done.sum->kind == Kind::kGatherRows ? embedding_->AddRows() : absl::OkStatus();
}

absl::Status GradientReducer::FinishAll() {
  while (!under_way_.empty()) RETURN_IF_ERROR(FinishSum());
  return absl::OkStatus();
}

}  // namespace switchyard::train
