// LinkEvents that are posted to the engine's inbox, and then handled by the part of the engine that they concern.
//
// Thread-safe; never blocks.  What carries the epoch of another group than the one that serves is dropped, here or by
// WorkerGroup.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "server/balancer/expert_load_balancing.h"
#include "server/engine/engine_inbox.h"
#include "server/engine/profile_collector.h"
#include "server/fleet/link_events.h"
#include "server/fleet/serving_group.h"

namespace switchyard::server {

class PostedLinkEvents final : public LinkEvents {
 public:
  // All borrowed; they outlive this.
  PostedLinkEvents(EngineInbox* inbox, ServingGroup* group, ExpertLoadBalancing* experts, ProfileCollector* profiles)
      : inbox_(inbox), group_(group), experts_(experts), profiles_(profiles) {}

  void OnRegister(WorkerId id, std::shared_ptr<WorkerClient> client, fleet::WorkerInfo info) override;
  void OnHeartbeat(WorkerId id) override;
  void OnLoadProgress(WorkerId id, int64_t done, int64_t total) override;
  void OnGroupReady(WorkerId id, int64_t epoch, int32_t num_kv_blocks) override;
  void OnStepResult(WorkerId id, int64_t epoch, int64_t step, batching::RankResult result) override;
  void OnGroupFault(WorkerId id, int64_t epoch, std::string message) override;
  void OnPlacementPrepared(WorkerId id, int64_t group_epoch, int64_t placement_epoch, std::string error) override;
  void OnPlacementReleased(WorkerId id, int64_t group_epoch, int64_t placement_epoch) override;
  void OnExpertReport(WorkerId id, int64_t group_epoch, std::shared_ptr<const placement::ExpertReport> report) override;
  void OnProfilePart(WorkerId id, int64_t group_epoch, ProfilePart part) override;
  void OnLinkLost(WorkerId id, std::string reason) override;

 private:
  EngineInbox* const inbox_;
  ServingGroup* const group_;
  ExpertLoadBalancing* const experts_;
  ProfileCollector* const profiles_;
};

}  // namespace switchyard::server
