#include "server/jobs/trainer_pool.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"
#include "scheduler/base/log.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::server {

absl::Status TrainerPool::Register(WorkerId id, std::shared_ptr<TrainerClient> client, fleet::WorkerInfo info,
                                   absl::Time now) {
  RETURN_IF_ERROR(options_.tokens.Check(info.join_token, &info.local_index));
  if (options_.configured == 0) {
    return absl::FailedPreconditionError(
        options_.serving ? "this server's serving workers do not train (--train_on_serving)"
                         : "this server has no training workers (--local_train_workers, --train_workers)");
  }
  if (!options_.serving) RETURN_IF_ERROR(CheckRoom(info));
  LogInfo("training worker ", id, " registered: pid ", info.pid, " on ", info.host, ", ", info.device, " ", info.isa,
          options_.serving ? ", serves as well" : "", " (", NumRegistered() + 1, " of ", options_.configured, ")");
  trainers_[id] = {.id = id, .client = std::move(client), .info = std::move(info), .last_seen = now};
  return absl::OkStatus();
}

absl::Status TrainerPool::CheckRoom(const fleet::WorkerInfo& info) const {
  for (const auto& [other, trainer] : trainers_) {
    if (trainer.info.incarnation == info.incarnation) {
      return absl::AlreadyExistsError(absl::StrCat("worker ", info.incarnation, " is registered"));
    }
  }
  if (NumRegistered() >= options_.configured) {
    // A code with which the worker tries again: its link may have broken before the server has noticed.
    return absl::ResourceExhaustedError(absl::StrCat("all ", options_.configured, " training workers are there"));
  }
  return absl::OkStatus();
}

void TrainerPool::Heartbeat(WorkerId id, absl::Time now) {
  if (const auto it = trainers_.find(id); it != trainers_.end()) it->second.last_seen = now;
}

std::optional<TrainingWorker> TrainerPool::Remove(WorkerId id) {
  const auto it = trainers_.find(id);
  if (it == trainers_.end()) return std::nullopt;
  TrainingWorker trainer = std::move(it->second);
  trainers_.erase(it);
  return trainer;
}

std::vector<WorkerId> TrainerPool::Silent(absl::Time now,
                                          const std::function<bool(const fleet::WorkerInfo&)>& has_unread) {
  std::vector<WorkerId> silent;
  if (options_.serving) return silent;
  const absl::Duration pause = server_stall_.Look(now);
  for (auto& [id, trainer] : trainers_) {
    trainer.last_seen = WithoutPause(trainer.last_seen, pause, now);
    if (now - trainer.last_seen <= options_.silence) continue;
    if (has_unread(trainer.info)) {
      trainer.last_seen = now;
    } else {
      silent.push_back(id);
    }
  }
  return silent;
}

std::vector<WorkerId> TrainerPool::LargestIdleKind() const {
  std::map<std::pair<std::string, std::string>, std::vector<WorkerId>> kinds;
  for (const auto& [id, trainer] : trainers_) {
    // "cuda:1" and "cuda:0" are of one kind.
    const std::string device = trainer.info.device.substr(0, trainer.info.device.find(':'));
    if (!trainer.busy) kinds[{device, trainer.info.isa}].push_back(id);
  }
  std::vector<WorkerId> largest;
  if (options_.serving && NumBusy() > 0) return largest;
  for (auto& [kind, ids] : kinds) {
    if (ids.size() > largest.size()) largest = std::move(ids);
  }
  return largest;
}

int TrainerPool::NumIdle() const { return static_cast<int>(LargestIdleKind().size()); }

std::vector<TrainingWorker> TrainerPool::Take(int count) {
  std::vector<WorkerId> ids = LargestIdleKind();
  SY_CHECK_GE(static_cast<int>(ids.size()), count);
  const auto place = [this](WorkerId id) {
    const int index = trainers_.at(id).info.local_index;
    return std::make_tuple(index < 0, index, id);
  };
  std::sort(ids.begin(), ids.end(), [&](WorkerId a, WorkerId b) { return place(a) < place(b); });
  std::vector<TrainingWorker> taken;
  for (int i = 0; i < count; ++i) {
    TrainingWorker& trainer = trainers_.at(ids[i]);
    trainer.busy = true;
    taken.push_back(trainer);
  }
  return taken;
}

void TrainerPool::Release(WorkerId id) {
  if (const auto it = trainers_.find(id); it != trainers_.end() && !it->second.stranded) it->second.busy = false;
}

void TrainerPool::Strand(WorkerId id) {
  if (const auto it = trainers_.find(id); it != trainers_.end()) it->second.stranded = true;
}

void TrainerPool::OnEnded(WorkerId id) {
  const auto it = trainers_.find(id);
  if (it == trainers_.end() || !std::exchange(it->second.stranded, false)) return;
  it->second.busy = false;
}

int TrainerPool::NumBusy() const {
  return static_cast<int>(
      std::count_if(trainers_.begin(), trainers_.end(), [](const auto& entry) { return entry.second.busy; }));
}

std::optional<TrainingWorker> TrainerPools::Remove(WorkerId id) {
  std::optional<TrainingWorker> trainer = alone.Remove(id);
  return trainer.has_value() ? trainer : serving.Remove(id);
}

}  // namespace switchyard::server
