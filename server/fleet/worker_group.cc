#include "server/fleet/worker_group.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "scheduler/base/check.h"
#include "scheduler/base/log.h"
#include "scheduler/base/text/utf8.h"

namespace switchyard::server {
namespace {

// Pauses between tries to form after a failed one: 100 ms, doubling to 5 s.
absl::Duration PauseAfter(int failed_tries) {
  return std::min(absl::Milliseconds(100) * (1 << std::min(failed_tries, 6)), absl::Duration(absl::Seconds(5)));
}

// A step's rows may be this many times slower than those of the slowest step so far.
constexpr int kRowSlack = 16;
// The workers' own limit is shorter by this, since they can name the rank for which they wait.
constexpr absl::Duration kWorkersFirst = absl::Seconds(1);

// Bytes of a worker's message that clients' errors and the log get.
constexpr size_t kMostFaultBytes = 1024;

}  // namespace

WorkerGroup::WorkerGroup(Options options, Listener* listener) : options_(std::move(options)), listener_(listener) {}

WorkerGroup::Member* WorkerGroup::Find(WorkerId id) {
  const auto it = members_.find(id);
  return it == members_.end() ? nullptr : &it->second;
}

void WorkerGroup::Heartbeat(WorkerId id, absl::Time now) {
  Member* member = Find(id);
  if (member == nullptr) return;
  member->last_seen = now;
  if (member->suspect) LogInfo("worker ", id, " answers again");
  member->suspect = false;
}

void WorkerGroup::GoDown(const std::string& reason, absl::Time now, absl::Duration pause) {
  if (state_ == State::kWaiting) return;
  const bool was_ready = state_ == State::kReady;
  state_ = State::kWaiting;
  steps_.clear();
  next_try_ = now + pause;
  LogWarn("group of epoch ", epoch_, " ends: ", reason);
  for (auto& [id, member] : members_) {
    member.ready = false;
    member.load = {};
    member.client->AbortGroup(epoch_, reason);
  }
  if (was_ready) listener_->OnGroupDown(reason);
}

void WorkerGroup::Fault(WorkerId id, int64_t epoch, const std::string& message, absl::Time now) {
  const Member* member = Find(id);
  if (member == nullptr || epoch != epoch_ || state_ == State::kWaiting) return;
  Break(absl::StrCat("rank ", member->rank, ": ", CutText(message, kMostFaultBytes)), now);
}

void WorkerGroup::Break(const std::string& reason, absl::Time now) {
  if (state_ == State::kWaiting) return;
  broken_epoch_ = epoch_;
  GoDown(reason, now, PauseAfter(failed_tries_++));
}

void WorkerGroup::Evict(WorkerId id, const absl::Status& status, absl::Time now) {
  const Member* member = Find(id);
  if (member == nullptr) return;
  LogWarn("worker ", id, " (rank ", member->rank, ", pid ", member->info.pid, ") is sent away: ", status.message());
  const std::shared_ptr<WorkerClient> client = member->client;
  const std::string reported = absl::StrCat("worker of rank ", member->rank, " was sent away: ", status.message());
  members_.erase(id);
  client->Close(status);
  GoDown(reported, now, absl::ZeroDuration());
}

void WorkerGroup::Dismiss() {
  dismissed_ = true;
  state_ = State::kWaiting;
  steps_.clear();
}

void WorkerGroup::Lost(WorkerId id, const std::string& reason, absl::Time now) {
  const Member* member = Find(id);
  if (member == nullptr) return;
  if (dismissed_) {
    members_.erase(id);
    return;
  }
  // LocalFleet reports why a local worker ended before it served.
  const bool by_fleet = !has_served_ && IsOwn(member->info) && now - member->last_seen <= options_.fence_after;
  if (!by_fleet) LogWarn("worker ", id, " (rank ", member->rank, ", pid ", member->info.pid, ") is lost: ", reason);
  if (state_ == State::kWaiting && member->rank >= 0 && broken_epoch_ == epoch_) {
    // Its peers noticed first.
    broken_epoch_ = 0;
    --failed_tries_;
    next_try_ = now;
  }
  // Clients see this, so it names no process.
  const std::string reported = by_fleet ? absl::StrCat("worker of rank ", member->rank, " ended before it served")
                                        : absl::StrCat("worker of rank ", member->rank, " was lost: ", reason);
  members_.erase(id);
  GoDown(reported, now, absl::ZeroDuration());
}

void WorkerGroup::Result(WorkerId id, int64_t epoch, int64_t step, batching::RankResult result, absl::Time now) {
  Heartbeat(id, now);
  const Member* member = Find(id);
  if (member == nullptr || state_ != State::kReady || epoch != epoch_) return;
  for (Step& waiting : steps_) {
    if (waiting.result.step != step) continue;
    if (waiting.have[member->rank])
      return Break(absl::StrCat("rank ", member->rank, " answered step ", step, " twice"), now);
    waiting.have[member->rank] = true;
    waiting.result.ranks[member->rank] = std::move(result);
    --waiting.missing;
    break;
  }
  while (state_ == State::kReady && !steps_.empty() && steps_.front().missing == 0) {
    const Step& first = steps_.front();
    if (first.rows > 0) slowest_row_ = std::max(slowest_row_, (now - first.begun) / static_cast<double>(first.rows));
    const batching::StepResult done = std::move(steps_.front().result);
    steps_.erase(steps_.begin());
    if (!steps_.empty()) steps_.front().begun = now;
    for (const batching::RankResult& rank : done.ranks) {
      if (rank.ledger_hash != done.ranks[0].ledger_hash) {
        return Break(absl::StrCat("the ranks launched different collectives in step ", done.step), now);
      }
    }
    failed_tries_ = 0;  // not earlier: a group that forms may fail at its first step, again and again
    listener_->OnStepDone(done);
  }
}

absl::Duration WorkerGroup::LimitOf(int64_t rows) const {
  absl::Duration row = options_.row_timeout;
  if (slowest_row_ > absl::ZeroDuration()) row = std::min(row, kRowSlack * slowest_row_);
  return options_.step_timeout + rows * row;
}

void WorkerGroup::Execute(const batching::StepPlan& plan, absl::Time now) {
  SY_CHECK(state_ == State::kReady);
  SY_CHECK_EQ(static_cast<int>(plan.ranks.size()), options_.world);
  Step step;
  step.begun = now;
  for (const batching::RankPlan& rank : plan.ranks) step.rows += rank.NumRows();
  const absl::Duration limit = step.limit = LimitOf(step.rows);
  step.missing = options_.world;
  step.have.assign(options_.world, false);
  step.result.step = plan.step;
  step.result.group_epoch = plan.group_epoch;
  step.result.ranks.resize(options_.world);
  steps_.push_back(std::move(step));
  for (auto& [id, member] : members_) member.client->Execute(plan, member.rank, limit);
}

void WorkerGroup::SendMasks(const batching::StepMasks& masks) {
  SY_CHECK(state_ == State::kReady);
  SY_CHECK_EQ(static_cast<int>(masks.ranks.size()), options_.world);
  for (auto& [id, member] : members_) {
    if (!masks.ranks[member.rank].items.empty()) member.client->SendMasks(masks, member.rank);
  }
}

void WorkerGroup::GiveSlice(absl::Duration slice) {
  SY_CHECK(state_ == State::kReady);
  batching::StepPlan plan;
  plan.group_epoch = epoch_;
  plan.train_slice_ms = static_cast<int32_t>(absl::ToInt64Milliseconds(slice));
  plan.ranks.resize(options_.world);
  for (auto& [id, member] : members_) member.client->Execute(plan, member.rank, options_.step_timeout);
}

// Extends every wait for workers by this process's pause.
void WorkerGroup::Forgive(absl::Duration pause, absl::Time now) {
  if (pause > options_.suspect_after) LogWarn("this process stood still for ", absl::FormatDuration(pause));
  for (auto& [id, member] : members_) member.last_seen = WithoutPause(member.last_seen, pause, now);
  joining_since_ = WithoutPause(joining_since_, pause, now);
  for (Step& step : steps_) step.begun = WithoutPause(step.begun, pause, now);
}

void WorkerGroup::Tick(absl::Time now) {
  if (const absl::Duration pause = server_stall_.Look(now); pause > absl::ZeroDuration()) Forgive(pause, now);
  std::vector<WorkerId> dead;
  for (auto& [id, member] : members_) {
    if (now - member.last_seen > options_.suspect_after && listener_->HasUnread(member.info)) member.last_seen = now;
    const absl::Duration silent = now - member.last_seen;
    if (silent > options_.fence_after) {
      dead.push_back(id);
    } else if (silent > options_.suspect_after && !member.suspect) {
      member.suspect = true;
      LogWarn("worker ", id, " (rank ", member.rank, ") is silent for ", absl::FormatDuration(silent));
    }
  }
  for (WorkerId id : dead) {
    const Member member = members_.at(id);
    Lost(id, absl::StrCat("no heartbeat for ", absl::FormatDuration(options_.fence_after), ", fenced"), now);
    member.client->Close(absl::UnavailableError("fenced: no heartbeat"));
    listener_->OnFenced(member.info);
  }
  if (state_ == State::kJoining && now - joining_since_ > options_.form_timeout) {
    Break(absl::StrCat("not formed within ", absl::FormatDuration(options_.form_timeout), "; ", NotReadyReason()), now);
  }
  if (state_ == State::kReady && !steps_.empty() && now - steps_.front().begun > steps_.front().limit + kWorkersFirst) {
    const Step& late = steps_.front();
    Break(absl::StrCat("step ", late.result.step, " not done within ", absl::FormatDuration(late.limit),
                       ", missing rank ", RanksWithout(late.have)),
          now);
  }
  TryForm(now);
}

}  // namespace switchyard::server
