// Passes the workers' messages to the engine: posts each event to the engine's inbox, where the part of the engine that
// it concerns handles it.
//
// Thread-safe; never blocks.  Keeps the order of each link's events.  Events for another group than the serving one are
// dropped, here or by WorkerGroup.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "scheduler/base/clock.h"
#include "scheduler/batching/step.h"
#include "scheduler/fleet/load_progress.h"
#include "scheduler/placement/per_step/expert_report.h"
#include "server/balancer/expert_load_balancing.h"
#include "server/engine/engine_inbox.h"
#include "server/engine/profile_collector.h"
#include "server/fleet/serving_group.h"
#include "server/fleet/worker_client.h"

namespace switchyard::server {

class LinkEvents {
 public:
  // All borrowed; they outlive this.
  LinkEvents(EngineInbox* inbox, ServingGroup* group, ExpertLoadBalancing* experts, ProfileCollector* profiles)
      : inbox_(inbox), group_(group), experts_(experts), profiles_(profiles) {}

  void OnRegister(WorkerId id, std::shared_ptr<WorkerClient> client, fleet::WorkerInfo info) {
    inbox_->Post([this, id, client = std::move(client), info = std::move(info)]() mutable {
      group_->Register(id, std::move(client), std::move(info));
    });
  }
  void OnHeartbeat(WorkerId id) { PostToGroup(&WorkerGroup::Heartbeat, id); }
  void OnLoadProgress(WorkerId id, const fleet::LoadProgress& progress) {
    PostToGroup(&WorkerGroup::LoadProgress, id, progress);
  }
  void OnGroupReady(WorkerId id, const fleet::GroupReady& ready) { PostToGroup(&WorkerGroup::Ready, id, ready); }
  void OnStepResult(WorkerId id, int64_t epoch, int64_t step, batching::RankResult result) {
    PostToGroup(&WorkerGroup::Result, id, epoch, step, std::move(result));
  }
  void OnGroupFault(WorkerId id, int64_t epoch, std::string message) {
    PostToGroup(&WorkerGroup::Fault, id, epoch, std::move(message));
  }
  // Comes every few seconds at most; was checked against the worker's registration.
  void OnExpertReport(WorkerId id, int64_t group_epoch, std::shared_ptr<const placement::ExpertReport> report) {
    PostForRank(id, group_epoch,
                [this, report = std::move(report)](int rank) { experts_->Report(rank, report, MonotonicNow()); });
  }
  void OnProfilePart(WorkerId id, int64_t group_epoch, ProfilePart part) {
    PostForRank(id, group_epoch, [this, part = std::move(part)](int rank) mutable {
      profiles_->OnPart(rank, std::move(part), MonotonicNow());
    });
  }
  void OnLinkLost(WorkerId id, std::string reason) {
    inbox_->Post([this, id, reason = std::move(reason)] { group_->Lost(id, reason); });
  }

 private:
  // Posts a call of `method` with `args` and the time of the call.
  template <class Method, class... Args>
  void PostToGroup(Method method, Args... args) {
    inbox_->Post([this, method, ... args = std::move(args)]() mutable {
      (group_->workers().*method)(std::move(args)..., MonotonicNow());
    });
  }
  // Posts a call of `handle` with the worker's rank; it runs only if the group of that epoch still serves.
  template <class Handler>
  void PostForRank(WorkerId id, int64_t group_epoch, Handler handle) {
    inbox_->Post([this, id, group_epoch, handle = std::move(handle)]() mutable {
      if (const int rank = group_->RankIn(id, group_epoch); rank >= 0) handle(rank);
    });
  }

  EngineInbox* const inbox_;
  ServingGroup* const group_;
  ExpertLoadBalancing* const experts_;
  ProfileCollector* const profiles_;
};

}  // namespace switchyard::server
