// A worker's process that serves a model and trains jobs beside it, in the slices of time that the server gives
// (StepPlan.train_slice_ms).
//
// Each half has its own group, communicator, threads and faults: what ends one does not end the other, but a link that
// breaks ends both.  No step waits for training: a plan shuts the gate (core_share.h) when it comes, in gRPC's thread,
// and runs at once, beside what training has under way at a low priority: tasks for some milliseconds, its setup until
// its next note of progress, sums, copies and saves until they end.  An attempt begins with the first slice after it
// was sent, so when serving has what it needs.
#pragma once

#include <memory>
#include <string>

#include "workers/session/core_share.h"
#include "workers/session/link_role.h"
#include "workers/session/serving_role.h"
#include "workers/session/training_role.h"

namespace switchyard::worker {

class BothRole final : public LinkRole {
 public:
  // worker, on the CPU, and metrics are borrowed.  options have no share; this one makes it.
  BothRole(Worker* worker, TrainingOptions options, WorkerMetrics* metrics);

  void Describe(fleet::WorkerInfo* out) const override;
  std::unique_ptr<LinkHandler> Begin(std::shared_ptr<grpc::Channel> channel, Place place, LinkSendFn send) override;
  void Arrived(const v1::LinkResponse& command) override;
  void Abort(int64_t epoch, const std::string& reason) override { serving_.Abort(epoch, reason); }
  void AbortTraining(int64_t epoch, const std::string& reason) override { training_.Abort(epoch, reason); }
  bool served() const override { return serving_.served(); }
  bool lost() const override { return serving_.lost(); }

  const YieldPoint& gate() const { return share_.gate; }

 private:
  CoreShare share_;
  ServingRole serving_;
  TrainingRole training_;
};

}  // namespace switchyard::worker
