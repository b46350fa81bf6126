#include "server/admission/listener.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "grpc/health/v1/health.pb.h"
#include "grpcpp/security/server_credentials.h"
#include "proto/support/host_port.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::server {
namespace {

constexpr char kHealthService[] = "grpc.health.v1.Health";  // the library's
// Time limits at the end: for calls, and then for clients to read their last bytes.
constexpr absl::Duration kLastCalls = absl::Seconds(1), kLastBytes = absl::Milliseconds(1500);

struct PortOfService {
  absl::string_view service;
  absl::string_view flag;
};
constexpr PortOfService kPorts[] = {
    {"InferenceService", "port"},
    {"TrainingService", "admin_port"},
    {"AdminService", "admin_port"},
    {"WorkerService", "worker_port"},
};

void SetKeepalive(grpc::ServerBuilder* builder) {
  // A client with a call is found to be gone in about 2 s; clients may ping every 5 s.  Clients without a call are not
  // pinged, since some read only during calls (for example a chat that waits for its user).
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 1000);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 1000);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 0);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 500);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
  builder->AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
}

void SetLimits(grpc::ServerBuilder* builder, const Listener::Options& options) {
  builder->SetMaxReceiveMessageSize(static_cast<int>(options.max_message_bytes));
  builder->AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, 8 << 10);
  // Limits all kinds of streams, also Health.Watch and those whose request does not come.  Calls beyond it wait in
  // their client, so it is higher than the client's share, beyond which calls are refused.
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, options.streams_per_connection);
  builder->AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 5000);  // closes silent connections
  builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, 5 * 60 * 1000);
}

// Says that this port has no such method, and where it is if another port has it.
std::string WhyNoMethod(absl::string_view flag, absl::string_view method) {
  std::string text = absl::StrCat("no such method on this port (--", flag, ")");
  for (const auto& [service, elsewhere] : kPorts) {
    if (flag == elsewhere || !absl::StartsWith(method, absl::StrCat("/switchyard.v1.", service, "/"))) continue;
    absl::StrAppend(&text, "; ", service, " is on that of --", elsewhere);
  }
  return text;
}

}  // namespace

class Listener::Elsewhere final : public grpc::CallbackGenericService {
 public:
  explicit Elsewhere(std::string flag) : flag_(std::move(flag)) {}
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override {
    class Refusal final : public grpc::ServerGenericBidiReactor {
     public:
      explicit Refusal(const std::string& why) { Finish({grpc::StatusCode::UNIMPLEMENTED, why}); }
      void OnDone() override { delete this; }
    };
    return new Refusal(WhyNoMethod(flag_, context->method()));
  }

 private:
  const std::string flag_;
};

Listener::Listener(Options options) : options_(std::move(options)) {}

Listener::~Listener() {
  if (gate_ != nullptr) gate_->Close();  // before gRPC is gone
}

absl::StatusOr<std::unique_ptr<Listener>> Listener::Open(Options options) {
  std::unique_ptr<Listener> listener(new Listener(std::move(options)));
  RETURN_IF_ERROR(listener->Listen());
  return listener;
}

absl::Status Listener::Listen() {
  auto gate = ConnectionGate::Listen(options_.host, options_.port, options_.connections);
  if (!gate.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--", options_.flag, "=", options_.port, ": cannot listen on ",
                                                   rpc::JoinHostPort(options_.host, options_.port),
                                                   " (is it in use?): ", gate.status().message()));
  }
  gate_ = *std::move(gate);
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  SetKeepalive(&builder);
  SetLimits(&builder, options_);
  inside_ = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, grpc::InsecureServerCredentials());
  for (const auto& [name, service] : options_.services) builder.RegisterService(service);
  if (options_.reflection) AddReflection(&builder);
  elsewhere_ = std::make_unique<Elsewhere>(options_.flag);
  builder.RegisterCallbackGenericService(elsewhere_.get());
  grpc_ = builder.BuildAndStart();
  if (grpc_ == nullptr) return absl::UnavailableError("gRPC does not start; its own line in this log says why");
  SetServing("", true);
  const auto pass = [this](int connection) {
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters parameters;
    parameters.listener_fd = -1;
    parameters.fd = connection;
    inside_->HandleNewConnection(&parameters);
  };
  relayed_ = options_.front->AddListener(pass, options_.peers);
  pass_ = pass;
  return absl::OkStatus();
}

// Clients that may use this port may also ask what it serves.
void Listener::AddReflection(grpc::ServerBuilder* builder) {
  // gRPC's health service has no descriptor for reflection; this reference links ours.
  (void)grpc::health::v1::HealthCheckRequest::descriptor();
  std::vector<std::string> names = {kHealthService};
  for (const auto& [name, service] : options_.services) names.push_back(name);
  reflection_ = std::make_unique<const ReflectionAnswers>(std::move(names));
  reflection_v1_ = std::make_unique<ReflectionV1>(reflection_.get());
  reflection_v1alpha_ = std::make_unique<ReflectionV1Alpha>(reflection_.get());
  builder->RegisterService(reflection_v1_.get());
  builder->RegisterService(reflection_v1alpha_.get());
}

void Listener::Accept() {
  // Local workers are trusted, and their steps should not wait for the relay.
  gate_->Open([this](int listener, int connection) {
    gate_->IsLocal(listener) ? pass_(connection) : options_.front->relay(options_.peers).Take(relayed_, connection);
  });
}

std::string Listener::address() const { return rpc::JoinHostPort(options_.host, port()); }

// gRPC waits without a limit until clients have read every connection's last bytes, so connections of clients that do
// not read are ended.
void Listener::CancelCalls() {
  end_connections_ = std::thread([this] {
    while (!ended_.WaitForNotificationWithTimeout(kLastBytes)) gate_->EndConnections();
  });
  grpc_->Shutdown(absl::ToChronoTime(absl::Now() + kLastCalls));
}

void Listener::AwaitEnd() {
  grpc_->Wait();
  ended_.Notify();
  end_connections_.join();
}

}  // namespace switchyard::server
