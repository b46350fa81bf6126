// A port of the server: a gate that admits connections, the front that relays them, and the gRPC server that answers
// their calls.
//
// Each port has services of its own, so a client of one port cannot call those of another: such a call, like any of an
// unknown method, gets UNIMPLEMENTED with a sentence that names the port.  Thread-safe but for Open, Accept,
// StopAccepting, CancelCalls and AwaitEnd.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/synchronization/notification.h"
#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "server/admission/connection_gate.h"
#include "server/admission/reflection.h"
#include "server/front/front.h"

namespace switchyard::server {

class Listener {
 public:
  struct Options {
    std::string flag;  // sets the port: "port"
    std::string host;  // empty: only this machine's socket (connections.local)
    int port = 0;      // 0 = any free one
    ConnectionGate::Limits connections;
    int streams_per_connection = 0;
    int64_t max_message_bytes = 0;
    bool reflection = false;  // v1 and v1alpha (reflection.h)
    Front* front = nullptr;   // borrowed
    Front::Peers peers = Front::Peers::kClients;
    struct NamedService {
      std::string name;  // in full
      grpc::Service* service;
    };
    std::vector<NamedService> services;  // borrowed
  };

  // Listens; connections wait for Accept.  InvalidArgument: listening failed; the message names the flag and the
  // reason.
  static absl::StatusOr<std::unique_ptr<Listener>> Open(Options options);
  ~Listener();

  // Accepts connections and answers calls from now on.  Call once.
  void Accept();
  ConnectionGate& gate() { return *gate_; }
  // Sets what the health service of this port says of `service`; "" is the process.
  void SetServing(const std::string& service, bool serving) {
    grpc_->GetHealthCheckService()->SetServingStatus(service, serving);
  }
  int port() const { return gate_->port(); }
  std::string address() const;

  // Accepts no further connections.
  void StopAccepting() { gate_->Close(); }
  // Refuses further calls, waits a second for open ones and cancels the rest.  REQUIRES: StopAccepting.
  void CancelCalls();
  // Blocks until all calls have ended.  REQUIRES: CancelCalls.
  void AwaitEnd();

 private:
  class Elsewhere;  // answers calls of methods that this port does not have

  explicit Listener(Options options);
  absl::Status Listen();
  void AddReflection(grpc::ServerBuilder* builder);

  const Options options_;
  std::unique_ptr<ConnectionGate> gate_;
  std::unique_ptr<Elsewhere> elsewhere_;
  // Null: no reflection.
  std::unique_ptr<const ReflectionAnswers> reflection_;
  std::unique_ptr<ReflectionV1> reflection_v1_;
  std::unique_ptr<ReflectionV1Alpha> reflection_v1alpha_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> inside_;  // gRPC's end of the gate
  std::unique_ptr<grpc::Server> grpc_;
  std::function<void(int connection)> pass_;  // to gRPC
  const RelayListener* relayed_ = nullptr;
  absl::Notification ended_;
  std::thread end_connections_;  // from CancelCalls to AwaitEnd
};

}  // namespace switchyard::server
