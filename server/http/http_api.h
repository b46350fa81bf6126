// The HTTP port of users: OpenAI's API, what load balancers and dashboards ask, and the web page (page/), over the same
// engine as gRPC.
//
// Paths are a table (http_api.cc).  With --api_keys_file all but /health, /ready, /version, /ping and the
// page's files need a key.  A page of another site cannot use the server through its reader's browser: requests with an
// Origin that is neither this host nor one of Options::origins are refused, and with Options::checks_hosts those under
// a name that its site has given to this address.  Thread-safe but for Open, Accept and Stop.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/admission/connection_gate.h"
#include "server/api/request_context.h"
#include "server/front/front.h"
#include "server/http/http_exchange.h"
#include "server/http/http_server.h"
#include "server/jobs/api/training_service.h"

namespace switchyard::server {

class HttpApi {
 public:
  struct Options {
    std::string host;
    int port = 0;                      // 0 = any free one
    int grpc_port = 0;                 // that answers to clients of gRPC name
    bool or_any = false;               // any free one if `port` is taken
    std::vector<std::string> origins;  // of pages whose scripts may call ("https://chat.example"); "*": all
    bool checks_hosts = false;         // only loopback's names and `hosts` may be asked for
    std::vector<std::string> hosts;    // "*": any
    ConnectionGate::Limits connections;
    Front* front = nullptr;                     // borrowed
    RequestContext* request_context = nullptr;  // borrowed
    const TrainingContext* training = nullptr;  // borrowed
  };
  // Listens; connections wait for Accept.  InvalidArgument: listening failed, why.
  static absl::StatusOr<std::unique_ptr<HttpApi>> Open(Options options);
  ~HttpApi();

  void Accept();
  ConnectionGate& gate() { return *gate_; }
  int port() const { return gate_->port(); }
  std::string address() const;
  // Refuses connections and further requests, gives answers that are under way a moment to end, and blocks until all
  // connections are closed.
  void Stop();

  // Handlers of paths, in http_api.cc.
  class Handlers;

 private:
  explicit HttpApi(Options options);
  void Handle(const std::shared_ptr<HttpExchange>& exchange);
  absl::StatusOr<Caller> Admit(const HttpRequest& request, absl::string_view role) const;
  // Notes a request for a generation that is refused before it gets that far.
  void ObserveRefusal(const HttpRequest& request, const absl::Status& status, int http_status) const;
  // The path, as a label of metrics: of those in the table, or "other".
  static std::string PathLabel(const std::string& path);
  // Adds what all answers have, and counts them.
  void FinishHead(const HttpRequest& request, HttpReply* reply) const;
  bool IsAllowedHost(absl::string_view host) const;
  bool IsAllowedOrigin(const HttpRequest& request, absl::string_view origin) const;

  const Options options_;
  std::unique_ptr<ConnectionGate> gate_;
  std::unique_ptr<HttpServer> server_;
  const RelayListener* relayed_ = nullptr;
};

}  // namespace switchyard::server
