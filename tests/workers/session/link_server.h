// The server's end of the link, as a test wants it: keeps what workers say, sends what the test asks for, and has a
// rendezvous store.  Thread-safe.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "grpcpp/server.h"
#include "switchyard/v1/worker.grpc.pb.h"

namespace switchyard::worker {

class LinkServer final : public v1::WorkerService::Service {
 public:
  explicit LinkServer(int port = 0);  // 0 = any free one
  ~LinkServer() override;             // breaks the links

  int port() const { return port_; }
  // To the worker of that local_index, which must be registered.
  void Send(int worker, const v1::LinkResponse& message);
  // The first message of that worker from `*at` on for which `wanted` is true; *at is then behind it.  Fails the test,
  // and returns an empty one, when none comes in a minute.
  v1::LinkRequest Await(int worker, size_t* at, const std::function<bool(const v1::LinkRequest&)>& wanted);
  std::vector<v1::LinkRequest> Messages(int worker);

 private:
  using Stream = grpc::ServerReaderWriter<v1::LinkResponse, v1::LinkRequest>;
  struct Peer {
    Stream* stream = nullptr;  // null: its link is over
    std::vector<v1::LinkRequest> messages;
  };

  grpc::Status Link(grpc::ServerContext* context, Stream* stream) override;
  grpc::Status StoreSet(grpc::ServerContext*, const v1::StoreSetRequest* request, v1::StoreSetResponse*) override;
  grpc::Status StoreGet(grpc::ServerContext* context, const v1::StoreGetRequest* request,
                        v1::StoreGetResponse* response) override;

  absl::Mutex mu_;
  std::map<int, Peer> peers_ ABSL_GUARDED_BY(mu_);                 // by local_index
  std::map<std::string, std::string> store_ ABSL_GUARDED_BY(mu_);  // by token and key
  bool closing_ ABSL_GUARDED_BY(mu_) = false;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace switchyard::worker
