// One link of a worker to the server, from its beginning to its end: messages in and out, queued.
//
// Three kinds of threads meet here: gRPC's, which bring and take messages; the one that runs the worker and pops
// commands; and the one of heartbeats.  Thread-safe.
#pragma once

#include <deque>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/channel.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/support/client_callback.h"
#include "switchyard/v1/worker.grpc.pb.h"
#include "workers/session/link_role.h"

namespace switchyard::worker {

// A channel with the link's keepalive: a server that is gone is seen in about 30 s.
std::shared_ptr<grpc::Channel> ConnectToServer(const std::string& server,
                                               const std::shared_ptr<grpc::ChannelCredentials>& credentials);

class LinkSession final : public grpc::ClientBidiReactor<v1::LinkRequest, v1::LinkResponse> {
 public:
  // `role` is borrowed: its Abort is called at once for what the server gives up.
  LinkSession(std::shared_ptr<grpc::Channel> channel, LinkRole* role);

  void Start();
  // Queues a message; false: the stream is over.  Where a server does not read, a report of progress replaces the last
  // waiting one of its kind; nothing else is ever left out.
  static constexpr size_t kMostWaiting = 1024;
  bool Send(v1::LinkRequest message);
  // Ends the stream; Pop then returns nothing more.
  void Close();
  // Returns the next command for the worker's thread, or an empty one where none comes within `patience`.  False when
  // the stream is over.
  bool Pop(v1::LinkResponse* command, absl::Duration patience);
  // Blocks until gRPC has released this object.
  grpc::Status WaitDone();

  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

 private:
  static constexpr char kEnded[] = "the link to the server ended";

  // The stream is over.  Where the server or the network ended it, nothing is cancelled: the server's status, which
  // says why, is on its way.
  void Release() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (!std::exchange(closing_, true)) RemoveHold();
  }
  // Frees the worker's thread, which may be waiting for ranks that no server leads any more.
  void FreeWorker() {
    constexpr int64_t kAll = std::numeric_limits<int64_t>::max();
    role_->Abort(kAll, kEnded);
    role_->AbortTraining(kAll, kEnded);
  }

  bool TakesPlace(const v1::LinkRequest& message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::shared_ptr<grpc::Channel> channel_;  // shared with the rendezvous store
  const std::unique_ptr<v1::WorkerService::Stub> stub_;
  LinkRole* const role_;
  grpc::ClientContext context_;
  v1::LinkResponse response_;
  absl::Mutex mu_;
  std::deque<v1::LinkRequest> outbox_ ABSL_GUARDED_BY(mu_);     // the front one is being written
  std::deque<v1::LinkResponse> commands_ ABSL_GUARDED_BY(mu_);  // bounded by the server's plans in flight
  bool closing_ ABSL_GUARDED_BY(mu_) = false;
  bool done_ ABSL_GUARDED_BY(mu_) = false;
  grpc::Status status_ ABSL_GUARDED_BY(mu_);
};

}  // namespace switchyard::worker
