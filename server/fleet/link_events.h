// Interface through which workers' links say what their workers tell (worker_service.h).  On gRPC's threads; events of
// one link come in order.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "scheduler/batching/step.h"
#include "scheduler/placement/background/expert_report.h"
#include "server/engine/profile_collector.h"
#include "server/fleet/worker_client.h"

namespace switchyard::server {

class LinkEvents {
 public:
  virtual ~LinkEvents() = default;
  virtual void OnRegister(WorkerId id, std::shared_ptr<WorkerClient> client, fleet::WorkerInfo info) = 0;
  virtual void OnHeartbeat(WorkerId id) = 0;
  virtual void OnLoadProgress(WorkerId id, int64_t done, int64_t total) = 0;
  virtual void OnGroupReady(WorkerId id, int64_t epoch, int32_t num_kv_blocks) = 0;
  virtual void OnStepResult(WorkerId id, int64_t epoch, int64_t step, batching::RankResult result) = 0;
  virtual void OnGroupFault(WorkerId id, int64_t epoch, std::string message) = 0;
  // error: empty if what arrives is there, and right.
  virtual void OnPlacementPrepared(WorkerId id, int64_t group_epoch, int64_t placement_epoch, std::string error) = 0;
  virtual void OnPlacementReleased(WorkerId id, int64_t group_epoch, int64_t placement_epoch) = 0;
  // At most every few seconds; checked against what the worker registered with.
  virtual void OnExpertReport(WorkerId id, int64_t group_epoch,
                              std::shared_ptr<const placement::ExpertReport> report) = 0;
  virtual void OnProfilePart(WorkerId id, int64_t group_epoch, ProfilePart part) = 0;
  virtual void OnLinkLost(WorkerId id, std::string reason) = 0;
};

}  // namespace switchyard::server
