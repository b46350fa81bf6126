// A worker's process that trains: it waits for an attempt at a job, runs it on a thread of its own, reports how it
// goes, and waits again (train_link.proto).
//
// Whatever ends an attempt ends nothing else: the process stays, and registers again when its link breaks and the
// attempt has ended, so that the server gives it no other one while a disk does not answer.  In a process that serves
// as well (both_role.h) registering does not wait, the next attempt does.  Its pool has a gate, which serving opens and
// shuts, and its limits of time are long, as nobody knows when the gate opens.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "workers/process/metrics.h"
#include "workers/session/core_share.h"
#include "workers/session/link_role.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard::worker {

struct TrainingOptions {
  std::string dataset_root, checkpoint_root;
  std::string offload_dir;  // empty: nothing is offloaded
  int threads = 1;
  std::string software;        // version, for manifests
  CoreShare* share = nullptr;  // borrowed; null unless the process also serves
};

class TrainingAttempt;
struct TrainingLink;

class TrainingRole final : public LinkRole {
 public:
  // metrics: borrowed.
  TrainingRole(TrainingOptions options, WorkerMetrics* metrics);
  // Waits for the attempt that runs.
  ~TrainingRole() override;

  void Describe(fleet::WorkerInfo* out) const override;
  std::unique_ptr<LinkHandler> Begin(std::shared_ptr<grpc::Channel> channel, Place place, LinkSendFn send) override;
  void Abort(int64_t epoch, const std::string& reason) override;
  void AbortTraining(int64_t epoch, const std::string& reason) override { Abort(epoch, reason); }
  bool served() const override { return registered_; }
  bool lost() const override { return false; }

 private:
  friend class TrainingAttempt;
  friend class TrainingHandler;
  // Does not wait for the last attempt: this one's thread does.
  void Start(std::shared_ptr<TrainingAttempt> attempt);
  void SetLink(std::shared_ptr<TrainingLink> link);
  // Waits for the attempt that runs.
  void AwaitEnd();
  void Enter(int64_t epoch);
  void ReleaseGate(int64_t epoch);
  YieldPoint* gate() const { return options_.share == nullptr ? nullptr : &options_.share->gate; }

  const TrainingOptions options_;
  WorkerMetrics* const metrics_;
  ThreadPool pool_;                // of one attempt at a time
  std::atomic<int64_t> epoch_{0};  // of the attempt that goes through the gate
  bool registered_ = false;        // once
  absl::Mutex mu_;
  std::shared_ptr<TrainingLink> link_ ABSL_GUARDED_BY(mu_);  // shared with its handler; null: there is none
  std::shared_ptr<TrainingAttempt> attempt_;                 // the last: shared with its thread and its handler
  std::thread thread_;                                       // its, which joins the one before
};

}  // namespace switchyard::worker
