#include "server/worker_group.h"

#include <algorithm>
#include <utility>

#include "absl/random/random.h"
#include "absl/strings/str_cat.h"
#include "proto/support/host_port.h"
#include "scheduler/base/check.h"
#include "scheduler/base/log.h"
#include "scheduler/base/status_macros.h"

namespace switchyard {
namespace {

// Pauses between tries to form after a failed one: 100 ms, doubling to 5 s.
absl::Duration PauseAfter(int failed_tries) {
  return std::min(absl::Milliseconds(100) * (1 << std::min(failed_tries, 6)), absl::Duration(absl::Seconds(5)));
}

std::string DrawToken() {
  absl::BitGen gen;
  return absl::StrCat(absl::Hex(absl::Uniform<uint64_t>(gen), absl::kZeroPad16),
                      absl::Hex(absl::Uniform<uint64_t>(gen), absl::kZeroPad16));
}

// How much slower than the slowest step so far a step's rows may be.
constexpr int kRowSlack = 16;
// The workers' own limit comes first: they know for whom they waited.
constexpr absl::Duration kWorkersFirst = absl::Seconds(1);

bool ConstantTimeEqual(const std::string& a, const std::string& b) {
  if (a.size() != b.size()) return false;
  unsigned difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned char>(a[i] ^ b[i]);
  return difference == 0;
}

}  // namespace

WorkerGroup::WorkerGroup(Options options, Listener* listener) : options_(std::move(options)), listener_(listener) {}

WorkerGroup::Member* WorkerGroup::Find(WorkerId id) {
  const auto it = members_.find(id);
  return it == members_.end() ? nullptr : &it->second;
}

absl::Status WorkerGroup::CheckCompatible(const WorkerInfo& info) const {
  if (!ConstantTimeEqual(info.join_token, options_.join_token)) {
    return absl::UnauthenticatedError(
        "the join token is not this server's; start the worker with its --join_token_file");
  }
  if (!served_weights_.empty() && info.weights_hash != served_weights_) {
    return absl::FailedPreconditionError(absl::StrCat("weights hash ", info.weights_hash, ": this server has served ",
                                                      served_weights_,
                                                      "; give the worker that --model or start the server again"));
  }
  for (const auto& [id, member] : members_) {
    const WorkerInfo& other = member.info;
    if (other.incarnation == info.incarnation)
      return absl::AlreadyExistsError(absl::StrCat("worker ", info.incarnation, " is registered"));
    if (other.weights_hash != info.weights_hash) {
      return absl::FailedPreconditionError(absl::StrCat("weights hash ", info.weights_hash, ": the group serves ",
                                                        other.weights_hash, "; give the worker the same --model"));
    }
    if (other.isa != info.isa) {
      return absl::FailedPreconditionError(absl::StrCat("ISA ", info.isa, ": the group runs ", other.isa,
                                                        ", whose bits differ; set SY_ISA alike on all workers"));
    }
    if (other.dtype != info.dtype) {
      return absl::FailedPreconditionError(absl::StrCat("dtype ", info.dtype, ": the group runs ", other.dtype));
    }
  }
  if (static_cast<int>(members_.size()) >= options_.world) {
    // Not final: the one whose link broke may come back before the old link is known to be gone.
    return absl::ResourceExhaustedError(absl::StrCat("all ", options_.world, " seats of the group are taken"));
  }
  return absl::OkStatus();
}

absl::Status WorkerGroup::Register(WorkerId id, std::shared_ptr<WorkerClient> client, WorkerInfo info, absl::Time now) {
  RETURN_IF_ERROR(CheckCompatible(info));
  LogInfo("worker ", id, " registered: pid ", info.pid, " on ", info.host, ", ", info.device, " ", info.isa, " (",
          members_.size() + 1, " of ", options_.world, ")");
  Member member;
  member.id = id;
  member.client = std::move(client);
  member.info = std::move(info);
  member.last_seen = now;
  members_.emplace(id, std::move(member));
  last_progress_ = now;
  TryForm(now);
  return absl::OkStatus();
}

void WorkerGroup::AssignRanks() {
  std::vector<bool> taken(options_.world, false);
  for (auto& [id, member] : members_) {
    if (member.rank >= 0) taken[member.rank] = true;
  }
  // Local workers like the rank of their index, so that logs and metrics read the same after a restart.
  for (auto& [id, member] : members_) {
    const int wish = member.info.local_index;
    if (member.rank < 0 && wish >= 0 && wish < options_.world && !taken[wish]) {
      member.rank = wish;
      taken[wish] = true;
    }
  }
  for (auto& [id, member] : members_) {
    if (member.rank >= 0) continue;
    member.rank = static_cast<int>(std::find(taken.begin(), taken.end(), false) - taken.begin());
    taken[member.rank] = true;
  }
}

void WorkerGroup::TryForm(absl::Time now) {
  if (dismissed_ || state_ != State::kWaiting || static_cast<int>(members_.size()) != options_.world || now < next_try_)
    return;
  AssignRanks();
  ++epoch_;
  state_ = State::kJoining;
  joining_since_ = now;
  GroupSeat seat;
  seat.epoch = epoch_;
  seat.world = options_.world;
  seat.store_token = DrawToken();
  seat.form_deadline_ms = absl::ToInt64Milliseconds(options_.form_timeout);
  seat.reach = AddressFromElsewhere();
  listener_->OnEpoch(seat.store_token);
  for (auto& [id, member] : members_) {
    member.ready = false;
    member.load_done = member.load_total = 0;
    seat.rank = member.rank;
    seat.num_layers = member.info.num_layers;
    member.client->Join(seat);
  }
  LogInfo("group of ", options_.world, " forms, epoch ", epoch_);
}

void WorkerGroup::Heartbeat(WorkerId id, absl::Time now) {
  Member* member = Find(id);
  if (member == nullptr) return;
  member->last_seen = now;
  if (member->suspect) LogInfo("worker ", id, " answers again");
  member->suspect = false;
}

void WorkerGroup::LoadProgress(WorkerId id, int64_t done, int64_t total, absl::Time now) {
  Member* member = Find(id);
  if (member == nullptr) return;
  if (done > member->load_done) joining_since_ = last_progress_ = now;
  member->load_done = done;
  member->load_total = total;
}

void WorkerGroup::Ready(WorkerId id, int64_t epoch, int32_t num_kv_blocks, absl::Time now) {
  Member* member = Find(id);
  if (member == nullptr || state_ != State::kJoining || epoch != epoch_) return;
  member->ready = true;
  member->num_kv_blocks = num_kv_blocks;
  joining_since_ = last_progress_ = now;
  int32_t blocks = num_kv_blocks;
  const WorkerInfo* first = nullptr;
  for (const auto& [other_id, other] : members_) {
    if (!other.ready) return;
    blocks = std::min(blocks, other.num_kv_blocks);
    if (other.rank == 0) first = &other.info;
  }
  SY_CHECK(first != nullptr);
  state_ = State::kReady;
  served_weights_ = first->weights_hash;
  LogInfo("group ready: epoch ", epoch_, ", ", options_.world, " workers, ", blocks, " KV blocks each");
  listener_->OnGroupUp(epoch_, options_.world, blocks, *first);
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
    member.client->AbortGroup(epoch_, reason);
  }
  if (was_ready) listener_->OnGroupDown(reason);
}

void WorkerGroup::Fault(WorkerId id, int64_t epoch, const std::string& message, absl::Time now) {
  const Member* member = Find(id);
  if (member == nullptr || epoch != epoch_ || state_ == State::kWaiting) return;
  GoDown(absl::StrCat("rank ", member->rank, ": ", message), now, PauseAfter(failed_tries_++));
}

void WorkerGroup::Break(const std::string& reason, absl::Time now) { GoDown(reason, now, PauseAfter(failed_tries_++)); }

void WorkerGroup::Remove(WorkerId id) { members_.erase(id); }

void WorkerGroup::Dismiss() {
  dismissed_ = true;
  state_ = State::kWaiting;
  steps_.clear();
}

void WorkerGroup::Lost(WorkerId id, const std::string& reason, absl::Time now) {
  const Member* member = Find(id);
  if (member == nullptr) return;
  if (dismissed_) return Remove(id);
  LogWarn("worker ", id, " (rank ", member->rank, ", pid ", member->info.pid, ") is lost: ", reason);
  // What clients are told names no process.
  const std::string told = absl::StrCat("worker of rank ", member->rank, " was lost: ", reason);
  Remove(id);
  GoDown(told, now, absl::ZeroDuration());
}

void WorkerGroup::Result(WorkerId id, int64_t epoch, int64_t step, RankResult result, absl::Time now) {
  const Member* member = Find(id);
  if (member == nullptr || state_ != State::kReady || epoch != epoch_) return;
  for (Step& waiting : steps_) {
    if (waiting.step != step) continue;
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
    const StepResult done = std::move(steps_.front().result);
    steps_.erase(steps_.begin());
    if (!steps_.empty()) steps_.front().begun = now;
    for (const RankResult& rank : done.ranks) {
      if (rank.ledger_hash != done.ranks[0].ledger_hash) {
        return Break(absl::StrCat("the ranks launched different collectives in step ", done.step), now);
      }
    }
    failed_tries_ = 0;  // not before: a group that forms well may fault at its first step, again and again
    listener_->OnStepDone(done);
  }
}

absl::Duration WorkerGroup::LimitOf(int64_t rows) const {
  absl::Duration row = options_.row_timeout;
  if (slowest_row_ > absl::ZeroDuration()) row = std::min(row, kRowSlack * slowest_row_);
  return options_.step_timeout + rows * row;
}

std::string WorkerGroup::AddressFromElsewhere() const {
  for (const auto& [id, member] : members_) {
    if (!member.info.collective_address.empty() && !IsLoopback(member.info.collective_address))
      return member.info.collective_address;
  }
  return "";
}

void WorkerGroup::Execute(const StepPlan& plan, absl::Time now) {
  SY_CHECK(state_ == State::kReady);
  SY_CHECK_EQ(static_cast<int>(plan.ranks.size()), options_.world);
  Step step;
  step.step = plan.step;
  step.begun = now;
  for (const RankPlan& rank : plan.ranks) step.rows += rank.NumRows();
  const absl::Duration limit = step.limit = LimitOf(step.rows);
  step.missing = options_.world;
  step.have.assign(options_.world, false);
  step.result.step = plan.step;
  step.result.group_epoch = plan.group_epoch;
  step.result.ranks.resize(options_.world);
  steps_.push_back(std::move(step));
  for (auto& [id, member] : members_) member.client->Execute(plan, member.rank, limit);
}

void WorkerGroup::Tick(absl::Time now) {
  std::vector<WorkerId> dead;
  for (auto& [id, member] : members_) {
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
    if (member.info.local_index >= 0) listener_->OnLocalWorkerFenced(member.info.local_index, member.info.pid);
  }
  if (state_ == State::kJoining && now - joining_since_ > options_.form_timeout) {
    GoDown(absl::StrCat("not formed within ", absl::FormatDuration(options_.form_timeout), "; ", NotReadyReason()), now,
           PauseAfter(failed_tries_++));
  }
  if (state_ == State::kReady && !steps_.empty() && now - steps_.front().begun > steps_.front().limit + kWorkersFirst) {
    std::string missing;
    for (size_t r = 0; r < steps_.front().have.size(); ++r) {
      if (!steps_.front().have[r]) absl::StrAppend(&missing, missing.empty() ? "" : ", ", r);
    }
    Break(absl::StrCat("step ", steps_.front().step, " not done within ", absl::FormatDuration(steps_.front().limit),
                       ", missing rank ", missing),
          now);
  }
  TryForm(now);
}

void WorkerGroup::NoteStart(absl::Time now) {
  if (last_progress_ == absl::InfinitePast()) last_progress_ = now;
}

// The ranks that AssignRanks would leave free.
std::string WorkerGroup::MissingRanks() const {
  std::vector<bool> taken(options_.world, false);
  int others = 0;
  for (const auto& [id, member] : members_) {
    const int seat = member.rank >= 0 ? member.rank : member.info.local_index;
    const bool fits = seat >= 0 && seat < options_.world && !taken[seat];
    if (fits) taken[seat] = true;
    others += fits ? 0 : 1;
  }
  std::string missing;
  for (int rank = 0; rank < options_.world; ++rank) {
    if (taken[rank] || others-- > 0) continue;
    absl::StrAppend(&missing, missing.empty() ? "" : ", ", rank);
  }
  return missing;
}

std::string WorkerGroup::NotReadyReason() const {
  if (state_ == State::kReady) return "";
  if (static_cast<int>(members_.size()) < options_.world) {
    return absl::StrCat(members_.size(), " of ", options_.world, " workers registered; none for rank ", MissingRanks());
  }
  int64_t done = 0, total = 0;
  int ready = 0;
  for (const auto& [id, member] : members_) {
    done += member.load_done;
    total += member.load_total;
    ready += member.ready ? 1 : 0;
  }
  if (total > 0 && done < total) return absl::StrCat("loading weights: ", 100 * done / total, " %");
  return absl::StrCat("the group forms: ", ready, " of ", options_.world, " workers ready");
}

}  // namespace switchyard
