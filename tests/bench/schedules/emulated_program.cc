#include "tests/bench/schedules/emulated_program.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/time/clock.h"
#include "scheduler/base/status_macros.h"
#include "tests/bench/sleep_until.h"

namespace switchyard::bench {
namespace {

using pipeline::Group;
using pipeline::MicroOp;
using pipeline::MicroOpKind;
using pipeline::Pass;

// Messages to and from some peers.
class SomeWork : public comm::OnceWork {
 public:
  explicit SomeWork(std::vector<std::unique_ptr<comm::Work>> works) : works_(std::move(works)) {}

 private:
  absl::Status Finish() override {
    absl::Status status;
    for (const std::unique_ptr<comm::Work>& work : works_) status.Update(work->Wait());
    return status;
  }
  const std::vector<std::unique_ptr<comm::Work>> works_;
};

}  // namespace

absl::StatusOr<comm::Communicator*> LayerGroups::Of(Group group, const simulator::ProgramCosts& costs,
                                                    absl::Time deadline) {
  const std::vector<std::vector<int>> groups = costs.Groups(group);
  if (groups.size() == 1 || group == Group::kSelf) return all_;
  std::unique_ptr<comm::Communicator>& made = made_[groups];
  if (made == nullptr) {
    const auto mine = std::find_if(groups.begin(), groups.end(), [this](const std::vector<int>& members) {
      return std::count(members.begin(), members.end(), all_->rank()) > 0;
    });
    ASSIGN_OR_RETURN(made, all_->Split(static_cast<int>(mine - groups.begin()), all_->rank(), deadline));
  }
  return made.get();
}

absl::StatusOr<std::unique_ptr<EmulatedProgram>> EmulatedProgram::Create(const NamedProgram* program,
                                                                         const simulator::Cluster& cluster,
                                                                         const simulator::MoeLayerShape& shape,
                                                                         LayerGroups* groups, absl::Time deadline) {
  RETURN_IF_ERROR(simulator::ProgramCosts::Check(cluster, program->mesh, program->schedule));
  std::unique_ptr<EmulatedProgram> layer(new EmulatedProgram());
  layer->one_queue_ = program->one_queue;
  layer->cut_by_peers_ = program->schedule.cut == pipeline::Cut::kPeers;
  double most_gathered = 0, most_summed = 0;
  for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
    auto costs = std::make_unique<simulator::ProgramCosts>(cluster, program->mesh, shape, program->schedule, pass);
    for (const MicroOp& op : costs->ops()) {
      if (!pipeline::IsCommunicating(op.kind)) continue;
      ASSIGN_OR_RETURN(comm::Communicator* const group, groups->Of(op.group, *costs, deadline));
      layer->groups_[op.group] = group;
      if (op.kind == MicroOpKind::kAllGather) most_gathered = std::max(most_gathered, costs->MessageBytes(op));
      if (op.kind == MicroOpKind::kAllReduce)
        most_summed = std::max(most_summed, costs->MessageBytes(op) * group->world());
    }
    layer->passes_[static_cast<size_t>(pass)] = std::move(costs);
  }
  layer->bytes_.resize(static_cast<size_t>(most_gathered));
  const auto elements = std::max<int64_t>(1, static_cast<int64_t>(most_summed) / DTypeBytes(DType::kF32));
  ASSIGN_OR_RETURN(layer->sum_, Tensor::Allocate(DType::kF32, {elements}, Device::Cpu()));
  std::memset(layer->sum_.view().raw(), 0, static_cast<size_t>(elements * DTypeBytes(DType::kF32)));
  return layer;
}

absl::Status EmulatedProgram::Run(Pass pass, absl::Time deadline) {
  costs_ = passes_[static_cast<size_t>(pass)].get();
  deadline_ = deadline;
  works_.clear();
  works_.resize(costs_->ops().size());
  copied_.assign(costs_->ops().size(), absl::InfinitePast());
  copies_end_ = absl::InfinitePast();
  after_compute_ = false;
  if (!one_queue_) return moe::RunSchedule(costs_->ops(), this);
  {
    const absl::MutexLock lock(&mu_);
    over_.assign(costs_->ops().size(), 0);
    queue_status_ = absl::OkStatus();
    ends_ = false;
  }
  std::thread queue([this] { RunQueue(); });
  absl::Status status = moe::RunSchedule(costs_->ops(), this);
  {
    const absl::MutexLock lock(&mu_);
    ends_ = true;
  }
  queue.join();
  return status;
}

void EmulatedProgram::RunQueue() {
  while (true) {
    const MicroOp* op = nullptr;
    {
      const absl::MutexLock lock(&mu_);
      const auto something = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return ends_ || !queued_.empty(); };
      mu_.Await(absl::Condition(&something));
      if (queued_.empty()) return;
      op = queued_.front();
      queued_.pop_front();
    }
    comm::WorkOr work = Communicate(*op);
    const absl::Status status = work.ok() ? (*work)->Wait() : work.status();
    const absl::MutexLock lock(&mu_);
    queue_status_.Update(status);
    over_[static_cast<size_t>(op - costs_->ops().data())] = 1;
  }
}

absl::Status EmulatedProgram::Start(const MicroOp& op) {
  const auto at = static_cast<size_t>(&op - costs_->ops().data());
  if (pipeline::IsCommunicating(op.kind)) {
    after_compute_ = false;
    if (op.group == Group::kSelf) return absl::OkStatus();
    if (one_queue_) {
      const absl::MutexLock lock(&mu_);
      queued_.push_back(&op);
      return absl::OkStatus();
    }
    ASSIGN_OR_RETURN(works_[at], Communicate(op));
    return absl::OkStatus();
  }
  const absl::Time now = absl::Now();
  if (pipeline::IsCopying(op.kind)) {
    copies_end_ = std::max(copies_end_, now) + absl::Seconds(costs_->CopySeconds(op));
    copied_[at] = copies_end_;
    return absl::OkStatus();
  }
  const absl::Duration takes = absl::Seconds(costs_->ComputeSeconds(op));
  if (takes == absl::ZeroDuration()) return absl::OkStatus();
  // Behind compute that ended as it should; behind anything else from now.
  compute_end_ = (after_compute_ ? compute_end_ : now) + takes;
  after_compute_ = true;
  SleepUntil(compute_end_);
  return absl::OkStatus();
}

comm::WorkOr EmulatedProgram::Communicate(const MicroOp& op) {
  comm::Communicator* const group = groups_[op.group];
  // In the class that layers use (workers/moe/groups/group_rows.h).
  const bool gathers = pipeline::IsGather(op.kind);
  const comm::CommCall call = {.comm_class = gathers ? comm::CommClass::kLayerSum : comm::CommClass::kAllToAll,
                               .deadline = deadline_};
  const auto bytes = static_cast<int64_t>(costs_->MessageBytes(op));
  if (op.kind == MicroOpKind::kAllReduce) {
    const int64_t elements = bytes * group->world() / DTypeBytes(DType::kF32);
    return group->AllReduceSum(call, sum_.view().Rows(0, elements));
  }
  if (op.kind == MicroOpKind::kAllGather)
    return group->AllGather(call, absl::MakeConstSpan(bytes_).first(static_cast<size_t>(bytes)));
  if (cut_by_peers_) return ExchangeWithSome(op, call, group, bytes);
  std::vector<comm::Message> messages(static_cast<size_t>(group->world()));
  for (int peer = 0; peer < group->world(); ++peer) {
    if (peer != group->rank() && costs_->Reaches(op, group->rank(), peer))
      messages[static_cast<size_t>(peer)] = group->NewMessage(bytes);
  }
  return group->AllToAllV(call, std::move(messages));
}

comm::WorkOr EmulatedProgram::ExchangeWithSome(const MicroOp& op, const comm::CommCall& call, comm::Communicator* group,
                                               int64_t bytes) {
  std::vector<std::unique_ptr<comm::Work>> works;
  const int rank = group->rank();
  for (int i = 1; i < group->world(); ++i) {
    const int to = (rank + i) % group->world(), from = (rank + group->world() - i) % group->world();
    if (costs_->Reaches(op, from, rank)) {
      ASSIGN_OR_RETURN(std::unique_ptr<comm::Work> work, group->Recv(call, from));
      works.push_back(std::move(work));
    }
    if (costs_->Reaches(op, rank, to)) {
      ASSIGN_OR_RETURN(std::unique_ptr<comm::Work> work, group->Send(call, to, group->NewMessage(bytes)));
      works.push_back(std::move(work));
    }
  }
  return std::make_unique<SomeWork>(std::move(works));
}

absl::Status EmulatedProgram::Finish(const MicroOp& op) {
  const auto at = static_cast<size_t>(&op - costs_->ops().data());
  if (pipeline::IsCopying(op.kind)) {
    if (absl::Now() < copied_[at]) after_compute_ = false;
    SleepUntil(copied_[at]);
    return absl::OkStatus();
  }
  if (one_queue_ && op.group != Group::kSelf) {
    after_compute_ = false;
    const absl::MutexLock lock(&mu_);
    const auto over = [this, at]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return over_[at] != 0; };
    mu_.Await(absl::Condition(&over));
    return queue_status_;
  }
  if (works_[at] == nullptr) return absl::OkStatus();
  after_compute_ = false;
  const absl::Status status = works_[at]->Wait();
  works_[at].reset();
  return status;
}

}  // namespace switchyard::bench
