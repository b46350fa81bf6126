// The server's ports: of users, of jobs and administration, of workers, of HTTP and of metrics.
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "proto/support/host_port.h"
#include "scheduler/base/log.h"
#include "scheduler/base/status_macros.h"
#include "server/server.h"

namespace switchyard::server {
namespace {

constexpr int kHttpPort = 8000;           // without --http_port
constexpr int kPageConnections = 64;      // to the metrics page
constexpr int kLocalConnections = 2;      // per worker: its old connection may still count
constexpr int kConnectionsPerWorker = 2;  // on the workers' port
constexpr int kStrangers = 32;            // further ones there, from who has not joined yet
constexpr char kMaybeNoIpv6[] = ", or was libcivetweb built without IPv6? then give --metrics_host=127.0.0.1)";

}  // namespace

// With TLS the page itself is on any port of loopback, and the relay is before it.
absl::Status Server::ExposeMetrics() {
  const auto in_use = [this](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat("--metrics_port=", config_.metrics_port, ": cannot listen on ",
                                                   rpc::JoinHostPort(config_.metrics_host, config_.metrics_port),
                                                   " (is it in use", why));
  };
  if (!front_->has_tls()) {
    metrics_port_ = metrics_->Expose(config_.metrics_host, config_.metrics_port);
    if (metrics_port_ < 0) return in_use(rpc::IsIpv6(config_.metrics_host) ? kMaybeNoIpv6 : "?)");
    return absl::OkStatus();
  }
  const int page = metrics_->Expose("127.0.0.1", 0);
  auto gate = ConnectionGate::Listen(config_.metrics_host, config_.metrics_port,
                                     {.connections = kPageConnections, .per_client = kPageConnections / 2});
  if (page < 0 || !gate.ok()) return in_use("?)");
  page_gate_ = *std::move(gate);
  metrics_port_ = page_gate_->port();
  page_gate_->Open([this, listener = front_->AddPage(page)](int, int fd) {
    front_->relay(Front::Peers::kClients).Take(listener, fd);
  });
  return absl::OkStatus();
}

absl::Status Server::Listen() {
  const ServerConfig& c = config_;
  const int local = c.local_workers + c.local_train_workers;
  const int elsewhere = c.workers + c.train_workers - local;
  Listener::Options options;
  options.streams_per_connection = c.StreamsPerConnection();
  options.max_message_bytes = c.max_request_bytes;

  options.front = front_.get();
  options.flag = "worker_port";
  options.peers = Front::Peers::kWorkers;
  if (c.ExpectsWorkersFromElsewhere()) options.host = c.worker_host;
  options.port = c.worker_port;
  options.connections = {.connections = kConnectionsPerWorker * elsewhere + kStrangers,
                         .per_client = kConnectionsPerWorker * elsewhere + kStrangers / 2,
                         .kept = elsewhere,
                         .local = local > 0 ? kLocalConnections * local : 0};
  options.services = {{v1::WorkerService::service_full_name(), workers_.get()}};
  ASSIGN_OR_RETURN(members_, Listener::Open(options));

  options.peers = Front::Peers::kClients;
  // Reflection asks for no key.
  options.reflection = keys_ == nullptr;
  options.connections = {.connections = c.max_connections, .per_client = c.max_connections_per_client};
  if (c.admin_port >= 0) {
    options.flag = "admin_port";
    options.host = c.admin_host;
    options.port = c.admin_port;
    options.services = {{v1::AdminService::service_full_name(), admin_.get()},
                        {v1::TrainingService::service_full_name(), training_->service()}};
    ASSIGN_OR_RETURN(operators_, Listener::Open(options));
  }
  options.flag = "port";
  options.host = c.host;
  options.port = c.port;
  options.services = {{v1::InferenceService::service_full_name(), inference_.get()}};
  ASSIGN_OR_RETURN(users_, Listener::Open(options));
  RETURN_IF_ERROR(ListenHttp());
  Accept();
  WarnOfOpenPorts();
  const std::string page = absl::StrCat(rpc::JoinHostPort(c.metrics_host, metrics_port_), "/metrics");
  const char* const scheme = front_->has_tls() ? "https://" : "http://";
  LogInfo("gRPC on ", users_->address(),
          operators_ ? absl::StrCat(", jobs and administration on ", operators_->address()) : "",
          c.ExpectsWorkersFromElsewhere() ? absl::StrCat(", workers on ", members_->address()) : "",
          http_ ? absl::StrCat(", HTTP on ", scheme, http_->address()) : "",
          metrics_port_ >= 0 ? absl::StrCat(", metrics on ", scheme, page) : "",
          front_->has_tls() ? "; all by TLS" : "");
  return absl::OkStatus();
}

void Server::Accept() {
  if (observer_) {
    observer_->StartExport({.version = config_.version,
                            .instance_id = "",
                            .address = config_.host,
                            .grpc_port = users_->port(),
                            .http_port = http_port()});
  }
  SetReady(false);
  for (Listener* listener : listeners()) listener->Accept();
  if (http_) http_->Accept();
}

absl::Status Server::ListenHttp() {
  const ServerConfig& c = config_;
  if (c.http_port < 0) return absl::OkStatus();
  HttpApi::Options options;
  options.host = c.host;
  options.port = c.http_port == 0 && c.port != 0 ? kHttpPort : c.http_port;
  options.or_any = c.http_port == 0;
  options.grpc_port = users_->port();
  options.origins = absl::StrSplit(c.http_origins, ',', absl::SkipWhitespace());
  options.checks_hosts = rpc::IsLoopback(c.host) && c.api_keys_file.empty();
  options.hosts = absl::StrSplit(c.http_hosts, ',', absl::SkipWhitespace());
  options.connections = {.connections = c.max_connections, .per_client = c.max_connections_per_client};
  options.front = front_.get();
  options.request_context = &request_context_;
  options.training = &training_->service()->training();
  ASSIGN_OR_RETURN(http_, HttpApi::Open(std::move(options)));
  if (c.http_port == 0 && c.port != 0 && http_->port() != kHttpPort)
    LogWarn("port ", kHttpPort, " is in use: HTTP is on ", http_->port(), "; --http_port sets it");
  return absl::OkStatus();
}

// Says what --insecure has allowed.
void Server::WarnOfOpenPorts() const {
  const auto warn = [this](absl::string_view flag, const std::string& host, absl::string_view who_may) {
    if (rpc::IsLoopback(host)) return;
    if (!front_->has_tls())
      LogWarn("--", flag, "=", host, ": plaintext: who can read the traffic can read what is in it");
    if (keys_ == nullptr && config_.tls_client_ca.empty() && !who_may.empty())
      LogWarn("--", flag, "=", host, ": no keys: anyone who reaches this port may ", who_may);
  };
  warn("host", config_.host, "use the model");
  if (operators_ != nullptr) warn("admin_host", config_.admin_host, "run and end jobs");
  if (config_.ExpectsWorkersFromElsewhere()) warn("worker_host", config_.worker_host, "");
}

}  // namespace switchyard::server
