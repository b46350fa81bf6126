// The group's rendezvous store by RPC to the server.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/channel.h"
#include "switchyard/v1/worker.grpc.pb.h"
#include "workers/comm/group/rendezvous_store.h"

namespace switchyard::worker {

// Thread-safe.
class RemoteStore final : public comm::RendezvousStore {
 public:
  RemoteStore(std::shared_ptr<grpc::Channel> channel, std::string token);

  absl::Status Set(absl::string_view key, absl::string_view value) override;
  absl::StatusOr<std::vector<std::string>> Get(absl::Span<const std::string> keys, absl::Time deadline) override;
  void CancelWaits(absl::string_view reason) override;
  absl::Status Cancelled() override;

 private:
  // Waits for as long as the server waits at a time.
  absl::StatusOr<std::vector<std::string>> GetOnce(absl::Span<const std::string> keys, absl::Time deadline);

  const std::unique_ptr<v1::WorkerService::Stub> stub_;
  const std::string token_;
  absl::Mutex mu_;
  std::string cancelled_ ABSL_GUARDED_BY(mu_);
  std::vector<grpc::ClientContext*> waiting_ ABSL_GUARDED_BY(mu_);
};

}  // namespace switchyard::worker
