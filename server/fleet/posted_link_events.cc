#include "server/fleet/posted_link_events.h"

#include <utility>

#include "server/clock.h"

namespace switchyard::server {

void PostedLinkEvents::OnRegister(WorkerId id, std::shared_ptr<WorkerClient> client, fleet::WorkerInfo info) {
  inbox_->Post([this, id, client = std::move(client), info = std::move(info)]() mutable {
    group_->Register(id, std::move(client), std::move(info));
  });
}

void PostedLinkEvents::OnHeartbeat(WorkerId id) {
  inbox_->Post([this, id] { group_->workers().Heartbeat(id, MonotonicNow()); });
}

void PostedLinkEvents::OnLoadProgress(WorkerId id, int64_t done, int64_t total) {
  inbox_->Post([this, id, done, total] { group_->workers().LoadProgress(id, done, total, MonotonicNow()); });
}

void PostedLinkEvents::OnGroupReady(WorkerId id, int64_t epoch, int32_t num_kv_blocks) {
  inbox_->Post([this, id, epoch, num_kv_blocks] { group_->workers().Ready(id, epoch, num_kv_blocks, MonotonicNow()); });
}

void PostedLinkEvents::OnStepResult(WorkerId id, int64_t epoch, int64_t step, batching::RankResult result) {
  inbox_->Post([this, id, epoch, step, result = std::move(result)]() mutable {
    group_->workers().Result(id, epoch, step, std::move(result), MonotonicNow());
  });
}

void PostedLinkEvents::OnGroupFault(WorkerId id, int64_t epoch, std::string message) {
  inbox_->Post(
      [this, id, epoch, message = std::move(message)] { group_->workers().Fault(id, epoch, message, MonotonicNow()); });
}

void PostedLinkEvents::OnPlacementPrepared(WorkerId id, int64_t group_epoch, int64_t placement_epoch,
                                           std::string error) {
  inbox_->Post([this, id, group_epoch, placement_epoch, error = std::move(error)] {
    const int rank = group_->RankIn(id, group_epoch);
    if (rank >= 0) experts_->residency().Prepared(rank, placement_epoch, error, MonotonicNow());
  });
}

void PostedLinkEvents::OnPlacementReleased(WorkerId id, int64_t group_epoch, int64_t placement_epoch) {
  inbox_->Post([this, id, group_epoch, placement_epoch] {
    const int rank = group_->RankIn(id, group_epoch);
    if (rank >= 0) experts_->residency().Released(rank, placement_epoch, MonotonicNow());
  });
}

void PostedLinkEvents::OnExpertReport(WorkerId id, int64_t group_epoch,
                                      std::shared_ptr<const placement::ExpertReport> report) {
  inbox_->Post([this, id, group_epoch, report = std::move(report)] {
    const int rank = group_->RankIn(id, group_epoch);
    if (rank >= 0) experts_->Report(rank, report, MonotonicNow());
  });
}

void PostedLinkEvents::OnProfilePart(WorkerId id, int64_t group_epoch, ProfilePart part) {
  inbox_->Post([this, id, group_epoch, part = std::move(part)]() mutable {
    const int rank = group_->RankIn(id, group_epoch);
    if (rank >= 0) profiles_->OnPart(rank, std::move(part), MonotonicNow());
  });
}

void PostedLinkEvents::OnLinkLost(WorkerId id, std::string reason) {
  inbox_->Post([this, id, reason = std::move(reason)] { group_->Lost(id, reason); });
}

}  // namespace switchyard::server
