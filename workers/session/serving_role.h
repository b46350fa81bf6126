// A worker's process that serves a model.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "workers/process/metrics.h"
#include "workers/serving/worker.h"
#include "workers/session/core_share.h"
#include "workers/session/link_role.h"

namespace switchyard::worker {

class ServingRole final : public LinkRole {
 public:
  // All are borrowed.  share: what a process that also trains shares; null: it only serves.
  ServingRole(Worker* worker, WorkerMetrics* metrics, CoreShare* share = nullptr)
      : worker_(worker), metrics_(metrics), share_(share) {}

  void Describe(fleet::WorkerInfo* out) const override;
  std::unique_ptr<LinkHandler> Begin(std::shared_ptr<grpc::Channel> channel, Place place, LinkSendFn send) override;
  // Hands masks on at once: the worker's thread awaits them in the step before.
  void Arrived(const v1::LinkResponse& command) override;
  void Abort(int64_t epoch, const std::string& reason) override { worker_->Abort(epoch, reason); }
  bool served() const override { return served_; }
  bool lost() const override { return worker_->device_lost(); }

 private:
  Worker* const worker_;
  WorkerMetrics* const metrics_;
  CoreShare* const share_;
  bool served_ = false;
};

}  // namespace switchyard::worker
