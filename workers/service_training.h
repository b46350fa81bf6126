// A worker's process that trains: it waits for an attempt at a job, runs it on a thread of its own, tells how it goes,
// and waits again (train_link.proto).
//
// Whatever ends an attempt ends nothing else: the process stays, and registers again when its link breaks.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "workers/metrics.h"
#include "workers/service_role.h"
#include "workers/tensor/thread_pool.h"
#include "workers/train/job_group.h"

namespace switchyard {

struct TrainingOptions {
  std::string dataset_root, checkpoint_root;
  int threads = 1;
  std::string software;  // version, for manifests
};

class TrainingRole final : public LinkRole {
 public:
  // metrics: borrowed.
  TrainingRole(TrainingOptions options, WorkerMetrics* metrics);

  void Describe(v1::Register* out) const override;
  std::unique_ptr<LinkDuty> Begin(std::shared_ptr<grpc::Channel> channel, Place place, LinkSendFn send) override;
  void Abort(int64_t epoch, const std::string& reason) override { group_.Abort(epoch, reason); }
  bool served() const override { return registered_; }
  bool lost() const override { return false; }

 private:
  friend class TrainingDuty;

  const TrainingOptions options_;
  WorkerMetrics* const metrics_;
  ThreadPool pool_;  // of one attempt at a time
  JobGroup group_;
  bool registered_ = false;  // once
};

}  // namespace switchyard
