// The sending half of a worker's link: sends commands as messages, in order.
#pragma once

#include <deque>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "server/fleet/worker_client.h"
#include "server/jobs/trainer_client.h"
#include "switchyard/v1/worker.pb.h"

namespace switchyard::server {

using LinkReactor = grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;

// Client of a serving or a training worker.  The group, the pool of training workers and the reactor share it.
// Thread-safe.
class LinkClient final : public WorkerClient, public TrainerClient {
 public:
  // `reactor` is borrowed until Detach.
  explicit LinkClient(LinkReactor* reactor) : reactor_(reactor) {}

  void Join(const fleet::RankAssignment& assignment) override;
  void Execute(const batching::StepPlan& plan, int rank, absl::Duration limit) override;
  void SendMasks(const batching::StepMasks& masks, int rank) override;
  void AbortGroup(int64_t epoch, const std::string& reason) override;
  void SendProfile(int64_t group_epoch, int64_t request, int64_t offset) override;
  void Start(const jobs::TrainingAssignment& assignment) override;
  void StopTraining(int64_t epoch, jobs::StopKind kind) override;
  void AbortTraining(int64_t epoch, const std::string& reason) override;
  void Close(const absl::Status& status) override;

  void Send(const v1::LinkResponse& message);
  void WriteDone(bool ok);
  // Forgets the reactor, which is about to be destroyed.
  void Detach();

 private:
  void SendAbort(int64_t epoch, const std::string& reason, bool training);

  absl::Mutex mu_;
  LinkReactor* reactor_ ABSL_GUARDED_BY(mu_);
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<grpc::ByteBuffer> outbox_ ABSL_GUARDED_BY(mu_);  // the front one is being written
};

}  // namespace switchyard::server
