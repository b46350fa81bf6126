// Forming a group: which workers may join, which ranks they get, when all are ready.
#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/support/host_port.h"
#include "scheduler/base/check.h"
#include "scheduler/base/log.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/fleet/adapter_list.h"
#include "server/admission/join_tokens.h"
#include "server/fleet/worker_group.h"

namespace switchyard::server {
namespace {

absl::string_view NameOfQuantization(absl::string_view name) { return name.empty() ? "none" : name; }
absl::string_view NameOfKvCache(absl::string_view name) { return name.empty() ? "auto" : name; }

// Refuses a worker that differs from the group in one of these.
absl::Status CheckAlike(const fleet::WorkerInfo& info, const fleet::WorkerInfo& group) {
  if (group.weights_hash != info.weights_hash) {
    return absl::FailedPreconditionError(absl::StrCat("weights hash ", info.weights_hash, ": the group serves ",
                                                      group.weights_hash,
                                                      "; give the worker the same --model, --adapter and --adapters"));
  }
  if (group.isa != info.isa) {
    return absl::FailedPreconditionError(absl::StrCat("ISA ", info.isa, ": the group runs ", group.isa,
                                                      ", whose bits differ; set SY_ISA alike on all workers"));
  }
  if (group.dtype != info.dtype) {
    return absl::FailedPreconditionError(absl::StrCat("dtype ", info.dtype, ": the group runs ", group.dtype));
  }
  if (group.quantization != info.quantization) {
    return absl::FailedPreconditionError(absl::StrCat("quantization ", NameOfQuantization(info.quantization),
                                                      ": the group runs ", NameOfQuantization(group.quantization)));
  }
  return absl::OkStatus();
}

// Checks the numbers of a worker that the server sizes its tables by.
absl::Status CheckModel(const fleet::WorkerInfo& info) {
  constexpr int32_t kMaxLayers = 4096, kMaxExperts = 32767;
  constexpr int64_t kMaxExpertBytes = int64_t{1} << 40;
  if (info.context < 2) {
    return absl::InvalidArgumentError(absl::StrCat("model with a context of ", info.context,
                                                   " tokens: a worker that serves names its model, whose context is "
                                                   "at least 2"));
  }
  if (info.num_moe_layers == 0) return absl::OkStatus();
  if (info.num_moe_layers > 0 && info.num_moe_layers <= kMaxLayers && info.num_experts <= kMaxExperts &&
      info.experts_per_token >= 1 && info.experts_per_token <= info.num_experts && info.expert_bytes >= 0 &&
      info.expert_bytes <= kMaxExpertBytes && info.row_bytes >= 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "model of ", info.num_moe_layers, " MoE layers, ", info.experts_per_token, " of ", info.num_experts,
      " experts a token, an expert of ", info.expert_bytes, " bytes: layers must be in [0, ", kMaxLayers,
      "], experts a token in [1, experts], experts at most ", kMaxExperts, ", bytes at most ", kMaxExpertBytes));
}

double DoneShare(const fleet::LoadProgress& load) {
  return static_cast<double>(load.done) / static_cast<double>(load.total);
}

bool IsBehind(const fleet::LoadProgress& a, const fleet::LoadProgress& b) {
  return a.phase != b.phase ? a.phase < b.phase : DoneShare(a) < DoneShare(b);
}

std::string InWords(const fleet::LoadProgress& load) {
  if (load.phase == fleet::LoadPhase::kGraphs) return absl::StrCat("capturing graphs: ", load.done, " of ", load.total);
  return absl::StrCat(load.phase == fleet::LoadPhase::kExperts ? "copying experts: " : "loading weights: ",
                      static_cast<int>(100 * DoneShare(load)), " %");
}

}  // namespace

bool WorkerGroup::IsOwn(const fleet::WorkerInfo& info) const {
  return info.local_index >= 0 && info.local_index < options_.local_workers;
}

absl::Status WorkerGroup::CheckCompatible(const fleet::WorkerInfo& info) const {
  RETURN_IF_ERROR(CheckModel(info));
  RETURN_IF_ERROR(fleet::CheckAdapterNames(info.adapters));
  if (options_.encrypt_links && options_.world > 1 && !absl::StartsWith(info.device, "cpu") &&
      !info.collective_address.empty() && !rpc::IsLoopback(info.collective_address)) {
    return absl::FailedPreconditionError(
        absl::StrCat("--encrypt_links: ", info.device, " on ", info.collective_address,
                     " would reach the other workers by NCCL, which cannot encrypt; keep the group's GPUs on one ",
                     "machine, or start the server without the flag on a network that is safe by itself"));
  }
  if (!served_weights_.empty() && info.weights_hash != served_weights_) {
    return absl::FailedPreconditionError(
        absl::StrCat("weights hash ", info.weights_hash, ": this server has served ", served_weights_,
                     "; give the worker that --model, --adapter and --adapters, or start the server again"));
  }
  if (options_.dtype != "auto" && info.dtype != options_.dtype) {
    return absl::FailedPreconditionError(
        absl::StrCat("dtype ", info.dtype, ": this server's --dtype is ", options_.dtype));
  }
  if (options_.quantization != "auto" && NameOfQuantization(info.quantization) != options_.quantization) {
    return absl::FailedPreconditionError(absl::StrCat("quantization ", NameOfQuantization(info.quantization),
                                                      ": this server's --quantization is ", options_.quantization));
  }
  if (NameOfKvCache(info.kv_cache_dtype) != options_.kv_cache_dtype) {
    return absl::FailedPreconditionError(absl::StrCat("kv_cache_dtype ", NameOfKvCache(info.kv_cache_dtype),
                                                      ": this server's --kv_cache_dtype is ", options_.kv_cache_dtype));
  }
  const bool own = IsOwn(info);
  if (options_.local_workers > 0 && !own) {
    if (own_ == nullptr) {  // the worker tries again
      return absl::UnavailableError(
          absl::StrCat("0 of this server's own ", options_.local_workers,
                       " workers registered; they come first, as they say what the group runs"));
    }
    RETURN_IF_ERROR(CheckAlike(info, *own_));
  }
  for (const auto& [id, member] : members_) {
    if (member.info.incarnation == info.incarnation)
      return absl::AlreadyExistsError(absl::StrCat("worker ", info.incarnation, " is registered"));
    // AdoptOwn evicts a worker from elsewhere that differs from a local one.
    if (!own || IsOwn(member.info)) RETURN_IF_ERROR(CheckAlike(info, member.info));
  }
  if (static_cast<int>(members_.size()) >= options_.world) {
    // A code with which the worker tries again: its link may have broken before the server has noticed.
    return absl::ResourceExhaustedError(absl::StrCat("all ", options_.world, " seats of the group are taken"));
  }
  return absl::OkStatus();
}

// A local worker is about to become a member: evicts workers that differ from it.
void WorkerGroup::AdoptOwn(const fleet::WorkerInfo& info, absl::Time now) {
  own_ = std::make_unique<const fleet::WorkerInfo>(info);
  std::map<WorkerId, absl::Status> wrong;
  for (const auto& [id, member] : members_) {
    if (absl::Status status = CheckAlike(member.info, info); !status.ok()) wrong[id] = std::move(status);
  }
  for (const auto& [id, status] : wrong) Evict(id, status, now);
}

absl::Status WorkerGroup::Register(WorkerId id, std::shared_ptr<WorkerClient> client, fleet::WorkerInfo info,
                                   absl::Time now) {
  RETURN_IF_ERROR(options_.tokens.Check(info.join_token, &info.local_index));
  RETURN_IF_ERROR(CheckCompatible(info));
  if (IsOwn(info)) AdoptOwn(info, now);
  LogInfo("worker ", id, " registered: pid ", info.pid, " on ", info.host, ", ", info.device, " ", info.isa, " (",
          members_.size() + 1, " of ", options_.world, ")");
  members_.emplace(id, Member{.client = std::move(client), .info = std::move(info), .last_seen = now});
  last_progress_ = now;
  TryForm(now);
  return absl::OkStatus();
}

void WorkerGroup::AssignRanks() {
  std::vector<bool> taken(options_.world, false);
  for (auto& [id, member] : members_) {
    if (member.rank >= 0) taken[member.rank] = true;
  }
  // Local workers get the rank of their index if it is free, so that logs and metrics read the same after a restart.
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

std::string WorkerGroup::RanksWithout(const std::vector<bool>& have) {
  std::vector<size_t> ranks;
  for (size_t rank = 0; rank < have.size(); ++rank) {
    if (!have[rank]) ranks.push_back(rank);
  }
  return absl::StrJoin(ranks, ", ");
}

std::string WorkerGroup::AddressFromElsewhere() const {
  for (const auto& [id, member] : members_) {
    if (!member.info.collective_address.empty() && !rpc::IsLoopback(member.info.collective_address))
      return member.info.collective_address;
  }
  return "";
}

void WorkerGroup::TryForm(absl::Time now) {
  if (dismissed_ || state_ != State::kWaiting || static_cast<int>(members_.size()) != options_.world || now < next_try_)
    return;
  AssignRanks();
  ++epoch_;
  state_ = State::kJoining;
  joining_since_ = now;
  fleet::RankAssignment assignment;
  assignment.epoch = epoch_;
  assignment.world = options_.world;
  assignment.store_token = DrawToken();
  assignment.form_deadline_ms = absl::ToInt64Milliseconds(options_.form_timeout);
  assignment.reach = AddressFromElsewhere();
  assignment.encrypt_links = options_.encrypt_links;
  listener_->OnEpoch(assignment.store_token);
  std::vector<fleet::WorkerInfo> workers;
  for (const auto& [id, member] : members_) workers.push_back(member.info);
  listener_->OnForming(workers);
  for (auto& [id, member] : members_) {
    member.ready = false;
    assignment.rank = member.rank;
    member.client->Join(assignment);
  }
  LogInfo("group of ", options_.world, " forms, epoch ", epoch_, options_.encrypt_links ? ", encrypted links" : "");
}

// Other figures than before show that the worker is at work.  What it loads for an epoch that has ended serves this
// one, too.  But a start that fails at the same point in every epoch makes no progress.
void WorkerGroup::LoadProgress(WorkerId id, const fleet::LoadProgress& progress, absl::Time now) {
  Heartbeat(id, now);
  Member* member = Find(id);
  if (member == nullptr || state_ != State::kJoining || progress.epoch > epoch_ || progress == member->load) return;
  member->load = progress;
  joining_since_ = now;
  const auto [count, is_new] = member->furthest.try_emplace({progress.phase, progress.total}, progress.done);
  if (!is_new && progress.done <= count->second) return;
  count->second = progress.done;
  last_progress_ = now;
}

void WorkerGroup::Ready(WorkerId id, const fleet::GroupReady& ready, absl::Time now) {
  Heartbeat(id, now);
  Member* member = Find(id);
  if (member == nullptr || state_ != State::kJoining || ready.epoch != epoch_) return;
  member->ready = true;
  member->num_kv_blocks = ready.num_kv_blocks;
  member->info.experts_in_place = ready.experts_in_place;
  member->info.links = ready.links;
  joining_since_ = last_progress_ = now;
  int32_t blocks = ready.num_kv_blocks;
  const fleet::WorkerInfo* first = nullptr;
  for (const auto& [other_id, other] : members_) {
    if (!other.ready) return;
    blocks = std::min(blocks, other.num_kv_blocks);
    if (other.rank == 0) first = &other.info;
  }
  SY_CHECK(first != nullptr);
  state_ = State::kReady;
  for (auto& [other_id, other] : members_) other.furthest.clear();
  has_served_ = true;
  served_weights_ = first->weights_hash;
  LogInfo("group ready: epoch ", epoch_, ", ", options_.world, " workers, ", blocks, " KV blocks each");
  listener_->OnGroupUp(epoch_, options_.world, blocks, *first);
}

void WorkerGroup::NoteStart(absl::Time now) {
  if (last_progress_ == absl::InfinitePast()) last_progress_ = now;
}

// The ranks that AssignRanks would leave free.
std::string WorkerGroup::MissingRanks() const {
  std::vector<bool> taken(options_.world, false);
  int others = 0;
  for (const auto& [id, member] : members_) {
    const int assignment = member.rank >= 0 ? member.rank : member.info.local_index;
    const bool fits = assignment >= 0 && assignment < options_.world && !taken[assignment];
    if (fits) taken[assignment] = true;
    others += fits ? 0 : 1;
  }
  for (; others > 0; --others) *std::find(taken.begin(), taken.end(), false) = true;
  return RanksWithout(taken);
}

std::string WorkerGroup::NotReadyReason() const {
  if (state_ == State::kReady) return "";
  if (static_cast<int>(members_.size()) < options_.world) {
    return absl::StrCat(members_.size(), " of ", options_.world, " workers registered; none for rank ", MissingRanks());
  }
  const fleet::LoadProgress* last = nullptr;  // of those that are under way
  int ready = 0;
  for (const auto& [id, member] : members_) {
    ready += member.ready ? 1 : 0;
    const fleet::LoadProgress& load = member.load;
    if (!member.ready && load.done < load.total && (last == nullptr || IsBehind(load, *last))) last = &load;
  }
  if (last != nullptr) return InWords(*last);
  return absl::StrCat("the group forms: ", ready, " of ", options_.world, " workers ready");
}

}  // namespace switchyard::server
