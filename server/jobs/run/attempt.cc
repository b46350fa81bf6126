#include "server/jobs/run/attempt.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/support/host_port.h"
#include "scheduler/base/check.h"

namespace switchyard::server {

Attempt::Attempt(int64_t epoch, std::vector<TrainingWorker> members, const Limits& limits, absl::Time now)
    : epoch_(epoch), limits_(limits) {
  Await("all ranks to start", limits.form, now);
  for (TrainingWorker& trainer : members) members_.push_back({.trainer = std::move(trainer)});
}

void Attempt::Start(jobs::TrainingAssignment assignment) {
  assignment.epoch = epoch_;
  assignment.world = static_cast<int>(members_.size());
  for (const Member& member : members_) {
    const std::string& address = member.trainer.info.collective_address;
    if (assignment.reach.empty() && !address.empty() && !rpc::IsLoopback(address)) assignment.reach = address;
  }
  for (size_t rank = 0; rank < members_.size(); ++rank) {
    assignment.rank = static_cast<int>(rank);
    members_[rank].trainer.client->Start(assignment);
  }
}

Attempt::Member* Attempt::Find(WorkerId id) {
  for (Member& member : members_) {
    if (member.trainer.id == id && !member.over) return &member;
  }
  return nullptr;
}

std::string Attempt::NameOf(const Member& member) const {
  return absl::StrCat("rank ", &member - members_.data(), " (pid ", member.trainer.info.pid, " on ",
                      member.trainer.info.host, ")");
}

void Attempt::Await(std::string what, absl::Duration limit, absl::Time now) {
  awaited_ = std::move(what);
  limit_ = limit;
  deadline_ = now + limit;
}

void Attempt::OnStarted(WorkerId id, int64_t step, absl::Time now) {
  Member* member = Find(id);
  if (member == nullptr || aborted_) return;
  member->started = true;
  if (member == &members_[0]) first_step_ = step;
  if (all_started_ || !std::all_of(members_.begin(), members_.end(), [](const Member& m) { return m.started; })) return;
  all_started_ = true;
  Await("a step", limits_.stall, now);
}

bool Attempt::OnWord(WorkerId id, bool is_note, absl::Time now) {
  if (aborted_ || Find(id) != &members_[0]) return false;
  // A step needs all ranks, though another rank's report of its start may still be on its way.
  if (!is_note) all_started_ = true;
  if (stopping_) {
    const bool waits_for_last =
        std::any_of(members_.begin(), members_.end(), [](const Member& member) { return member.over; });
    if (waits_for_last || !is_note || cancelled_ || stop_ == jobs::StopKind::kNow) return true;
  }
  Await(is_note ? awaited_ : "a step", all_started_ ? limits_.stall : limits_.form, now);
  return true;
}

void Attempt::OnEnded(WorkerId id, jobs::TrainEnd end, absl::Time now) {
  Member* member = Find(id);
  if (member == nullptr) return;
  member->over = true;
  member->end = std::move(end);
  const jobs::TrainOutcome outcome = member->end.outcome;
  if (outcome == jobs::TrainOutcome::kFinished || outcome == jobs::TrainOutcome::kStopped) {
    if (aborted_) return;
    Await(absl::StrCat("all ranks to end as ", NameOf(*member), " did"), limits_.last_ranks, now);
    return;
  }
  const absl::Status& status = member->end.status;
  if (outcome == jobs::TrainOutcome::kFailed && failure_.ok()) failure_ = status;
  if (outcome == jobs::TrainOutcome::kBlocked && block_.ok()) block_ = status;
  Abort(absl::Status(status.code(), absl::StrCat(NameOf(*member), ": ", status.message())), now);
}

void Attempt::OnLost(WorkerId id, const std::string& reason, absl::Time now) {
  Member* member = Find(id);
  if (member == nullptr) return;
  member->over = true;
  member->end = {jobs::TrainOutcome::kLost, absl::UnavailableError(reason)};
  Abort(absl::UnavailableError(absl::StrCat(NameOf(*member), ": ", reason)), now);
}

void Attempt::Stop(jobs::StopKind kind, absl::Time now) {
  if (aborted_ || (stopping_ && (stop_ == jobs::StopKind::kNow || kind == stop_))) return;
  stopping_ = true;
  stop_ = kind;
  Await("all ranks to stop", kind == jobs::StopKind::kNow ? limits_.stop_now : limits_.stall, now);
  for (const Member& member : members_) {
    if (!member.over) member.trainer.client->StopTraining(epoch_, kind);
  }
}

void Attempt::Cancel(absl::Time now) {
  if (aborted_ || cancelled_) return;
  cancelled_ = true;
  Stop(jobs::StopKind::kSave, now);
  if (stop_ == jobs::StopKind::kSave) deadline_ = std::min(deadline_, now + limits_.cancel_save);
}

void Attempt::Abort(absl::Status reason, absl::Time now) {
  if (aborted_) return;
  aborted_ = true;
  fault_ = std::move(reason);
  deadline_ = now + limits_.abort;
  for (const Member& member : members_) {
    if (!member.over) member.trainer.client->AbortTraining(epoch_, std::string(fault_.message()));
  }
}

void Attempt::Postpone(absl::Duration by) {
  if (!aborted_ && !cancelled_ && !(stopping_ && stop_ == jobs::StopKind::kNow)) deadline_ += by;
}

std::vector<TrainingWorker> Attempt::CheckTime(absl::Time now) {
  std::vector<TrainingWorker> given_up;
  if (now < deadline_ || over()) return given_up;
  if (!aborted_ && cancelled_ && stop_ == jobs::StopKind::kSave) {
    Stop(jobs::StopKind::kNow, now);
    return given_up;
  }
  if (!aborted_) {
    std::string late;
    for (const Member& member : members_) {
      if (!member.over && (all_started_ || !member.started)) absl::StrAppend(&late, ", ", NameOf(member));
    }
    Abort(absl::DeadlineExceededError(absl::StrCat("waited ", absl::FormatDuration(limit_), " for ", awaited_, late)),
          now);
    return given_up;
  }
  for (Member& member : members_) {
    if (member.over) continue;
    member.over = true;
    member.end = {jobs::TrainOutcome::kLost, absl::DeadlineExceededError("did not end when it was told")};
    given_up.push_back(member.trainer);
  }
  return given_up;
}

bool Attempt::over() const {
  return std::all_of(members_.begin(), members_.end(), [](const Member& member) { return member.over; });
}

jobs::TrainEnd Attempt::Verdict() const {
  SY_CHECK(over());
  if (!failure_.ok()) return {jobs::TrainOutcome::kFailed, failure_};
  if (!block_.ok()) return {jobs::TrainOutcome::kBlocked, block_};
  const jobs::TrainOutcome first = members_[0].end.outcome;
  // Rank 0's last checkpoint is on the disk, however the other ranks ended.
  if (first == jobs::TrainOutcome::kFinished || (first == jobs::TrainOutcome::kStopped && stopping_))
    return {first, {}, members_[0].end.note};
  if (aborted_) return {jobs::TrainOutcome::kLost, fault_};
  return {jobs::TrainOutcome::kLost, absl::UnavailableError("its workers stopped without having been asked")};
}

std::vector<WorkerId> Attempt::member_ids() const {
  std::vector<WorkerId> ids;
  for (const Member& member : members_) ids.push_back(member.trainer.id);
  return ids;
}

}  // namespace switchyard::server
