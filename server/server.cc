#include "server/server.h"

#include <sys/mman.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "grpc/health/v1/health.pb.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/impl/server_builder_option.h"
#include "grpcpp/resource_quota.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server_builder.h"
#include "proto/support/host_port.h"
#include "scheduler/base/log.h"
#include "scheduler/base/status_macros.h"
#include "server/admission/client_shares.h"
#include "server/admission/join_tokens.h"
#include "server/clock.h"
#include "server/server_flags.h"

namespace switchyard::server {
namespace {

constexpr char kReadiness[] = "readiness";
constexpr int kReflectionThreads = 16;
constexpr int64_t kFileCallBytes = int64_t{64} << 20;  // of waiting calls that check jobs' files
// Time limits at the end: for calls, and then for clients to read their last bytes.
constexpr absl::Duration kLastCalls = absl::Seconds(1), kLastBytes = absl::Milliseconds(1500);
constexpr int kLocalConnections = 2;  // per worker: its old connection may still count
constexpr char kMaybeNoIpv6[] = ", or was libcivetweb built without IPv6? then give --metrics_host=127.0.0.1)";
constexpr char kServiceName[] = "switchyard.v1.InferenceService";

fleet::EngineSettings SettingsOf(const ServerConfig& config) {
  return {.block_size = config.batching.block_size,
          .kv_cache_bytes = config.kv_cache_bytes,
          .max_num_seqs = config.batching.max_num_seqs,
          .max_batched_tokens = config.batching.max_batched_tokens,
          .max_model_len = config.batching.max_model_len,
          .train_yield_ms = config.train_yield_ms,
          .placement = config.placement,
          .add_outputs = config.add_outputs};
}

// Takes reflection from one server.  (gRPC adds it to every server of a program that is linked with it.)
class WithoutReflection final : public grpc::ServerBuilderOption {
 public:
  void UpdateArguments(grpc::ChannelArguments*) override {}
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>* plugins) override {
    const std::string name = grpc::reflection::ProtoServerReflectionPlugin().name();
    std::erase_if(*plugins, [&name](const auto& plugin) { return plugin->name() == name; });
  }
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

void SetLimits(grpc::ServerBuilder* builder, const ServerConfig& config) {
  builder->SetMaxReceiveMessageSize(static_cast<int>(config.max_request_bytes));
  builder->AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, 8 << 10);
  // Limits all kinds of streams, also Health.Watch and those whose request does not come.  Calls beyond it wait in
  // their client, so it is higher than the client's share, beyond which calls are refused.
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, config.StreamsPerConnection());
  builder->AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 5000);  // closes silent connections
  builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, 5 * 60 * 1000);
  // Only reflection uses a thread for each open call; beyond these gRPC answers RESOURCE_EXHAUSTED.
  grpc::ResourceQuota quota("switchyard");
  quota.SetMaxThreads(kReflectionThreads);
  builder->SetResourceQuota(quota);
  builder->SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::NUM_CQS, 1);  // not one for each core
}

// Makes a file in memory that local workers inherit: a secret belongs neither in argv nor in the environment.
absl::StatusOr<int> SecretFile(const std::string& secret) {
  const int fd = memfd_create("join_token", 0);
  if (fd < 0 || write(fd, secret.data(), secret.size()) != static_cast<ssize_t>(secret.size())) {
    return absl::UnavailableError("cannot hold the join token in memory (memfd_create)");
  }
  return fd;
}

std::string BesideThisProgram(const std::string& name) {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? name : (self.parent_path() / name).string();
}

}  // namespace

Server::~Server() { Stop(); }

absl::StatusOr<std::unique_ptr<Server>> Server::Start(ServerConfig config) {
  const bool from_elsewhere =
      config.workers > config.local_workers || config.train_workers > config.local_train_workers;
  if (config.join_token.empty() && from_elsewhere) {
    LogWarn("no --join_token_file: anyone who reaches this port may join as a worker");
  } else if (config.join_token.empty()) {
    config.join_token = DrawToken();
  }
  config.local_token = DrawToken();
  if (config.worker_binary.empty()) config.worker_binary = BesideThisProgram("switchyard-worker");
  auto server = std::unique_ptr<Server>(new Server(std::move(config)));
  ASSIGN_OR_RETURN(server->text_, text::TextProcessor::Load(server->config_));
  if (!server->config_.api_keys_file.empty()) {
    ASSIGN_OR_RETURN(server->keys_, KeyRing::Open(server->config_.api_keys_file));
  }
  server->metrics_ = std::make_unique<ServerMetrics>(server->config_.served_model_name);
  if (server->config_.metrics_port >= 0) {
    const ServerConfig& own = server->config_;
    server->metrics_port_ = server->metrics_->Expose(own.metrics_host, own.metrics_port);
    if (server->metrics_port_ < 0) {
      return absl::InvalidArgumentError(absl::StrCat("--metrics_port=", own.metrics_port, ": cannot listen on ",
                                                     rpc::JoinHostPort(own.metrics_host, own.metrics_port),
                                                     " (is it in use",
                                                     rpc::IsIpv6(own.metrics_host) ? kMaybeNoIpv6 : "?)"));
    }
  }
  RETURN_IF_ERROR(server->StartRooms());
  RETURN_IF_ERROR(server->Listen());
  RETURN_IF_ERROR(server->StartWorkers());
  server->engine_->Start();  // last: its thread uses all of the above
  return server;
}

// Makes the services and everything that they need.
absl::Status Server::StartRooms() {
  EngineHooks hooks;
  hooks.on_ready = [this](bool ready) { SetReady(ready); };
  hooks.on_fenced = [this](int index, int64_t pid) {
    if (fleet_) fleet_->Kill(index, pid);
  };
  hooks.end_of = [this](int index, int64_t pid) { return fleet_ ? fleet_->EndOf(index, pid) : std::string(); };
  hooks.has_unread = [this](const fleet::WorkerInfo& info) { return gate_->HasUnread(info.peer, info.pid); };
  request_context_.has_unread = hooks.has_unread;
  request_context_.end_connection = [this](const std::string& peer) {
    if (!gate_->End(peer)) return;
    metrics_->connections_ended->Increment();
    LogWarn("the connection of ", peer, " is ended: more than ", config_.MostWithoutRequest(),
            " Generate calls within ", absl::FormatDuration(ResetGuard::kWindow), " were reset without a request");
  };
  hooks.on_epoch = [this](const std::string& token) {
    store_.Close(std::exchange(serving_token_, token));
    store_.Open(token);
  };
  hooks.on_tick = [this](absl::Time now) { Tick(now); };
  hooks.on_fatal = [this](std::string text) { Fail(std::move(text)); };
  hooks.on_first_group = [this] {
    if (fleet_) fleet_->Finalize();
  };
  engine_ = std::make_unique<EngineLoop>(&config_, text_.get(), metrics_.get(), std::move(hooks));
  pool_ = std::make_unique<FrontPool>(2, FrontPool::Limits{.calls = static_cast<size_t>(config_.max_streams) * 2,
                                                           .bytes = config_.max_waiting_text_bytes,
                                                           .bytes_per_client = config_.max_waiting_text_bytes / 2});
  request_context_.config = &config_;
  request_context_.text = text_.get();
  request_context_.engine = engine_.get();
  request_context_.pool = pool_.get();
  file_pool_ = std::make_unique<FrontPool>(
      1, FrontPool::Limits{.calls = 64, .bytes = kFileCallBytes, .bytes_per_client = kFileCallBytes / 2});
  request_context_.file_pool = file_pool_.get();
  request_context_.metrics = metrics_.get();
  request_context_.keys = keys_.get();
  request_context_.open_calls.Start();
  inference_ = std::make_unique<InferenceServiceImpl>(&request_context_);
  admin_ = std::make_unique<AdminServiceImpl>(&request_context_);
  ASSIGN_OR_RETURN(training_, TrainingSubsystem::Open(&request_context_, &store_, config_.worker_binary));
  Admission admission;
  admission.tokens = {.shared = config_.join_token, .local = config_.local_token};
  admission.on_joined = [this](const std::string& peer) {
    // Without a token anybody may claim to be a worker.
    if (!config_.join_token.empty()) gate_->KeepPlacesFor(AddressOfPeer(peer));
  };
  workers_ = std::make_unique<WorkerServiceImpl>(engine_->links(), training_->trainers(), &store_, SettingsOf(config_),
                                                 std::move(admission));
  return absl::OkStatus();
}

void Server::Tick(absl::Time now) {
  store_.Sweep(now);
  workers_->CheckTime(now);
  metrics_->open_connections->Set(gate_->num_open());
  metrics_->waiting_text_bytes->Set(static_cast<double>(pool_->waiting_bytes()));
  const int64_t texts = pool_->num_refused(), connections = gate_->num_refused();
  metrics_->texts_refused->Increment(static_cast<double>(texts - std::exchange(refused_texts_, texts)));
  metrics_->connections_refused->Increment(
      static_cast<double>(connections - std::exchange(refused_connections_, connections)));
}

absl::Status Server::Listen() {
  const int local = config_.local_workers + config_.local_train_workers;
  auto gate = ConnectionGate::Listen(config_.host, config_.port,
                                     {.connections = config_.max_connections,
                                      .per_client = config_.max_connections_per_client,
                                      .kept = config_.workers + config_.train_workers - local,
                                      .local = local > 0 ? kLocalConnections * local : 0});
  if (!gate.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--port=", config_.port, ": cannot listen on ",
                                                   rpc::JoinHostPort(config_.host, config_.port),
                                                   " (is it in use?): ", gate.status().message()));
  }
  gate_ = *std::move(gate);
  port_ = gate_->port();
  grpc::EnableDefaultHealthCheckService(true);
  // Clients that may use this port may also ask what it serves.
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  // gRPC's health service has no descriptor for reflection; this reference links ours.
  (void)grpc::health::v1::HealthCheckRequest::descriptor();
  if (!rpc::IsLoopback(config_.host)) {
    LogWarn(
        "plaintext on ", config_.host, ": ",
        keys_ == nullptr ? "anyone who reaches this port may use the model" : "who can read the traffic can read keys");
  }
  grpc::ServerBuilder builder;
  SetKeepalive(&builder);
  SetLimits(&builder, config_);
  // Reflection asks for no key.
  if (keys_ != nullptr) builder.SetOption(std::make_unique<WithoutReflection>());
  inside_ = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, grpc::InsecureServerCredentials());
  builder.RegisterService(inference_.get());
  builder.RegisterService(admin_.get());
  builder.RegisterService(training_->service());
  builder.RegisterService(workers_.get());
  grpc_ = builder.BuildAndStart();
  if (grpc_ == nullptr) return absl::UnavailableError("gRPC does not start; its own line in this log says why");
  grpc_->GetHealthCheckService()->SetServingStatus("", true);
  SetReady(false);
  gate_->Open([this](int listener, int connection) {
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters parameters;
    parameters.listener_fd = listener;
    parameters.fd = connection;
    inside_->HandleNewConnection(&parameters);
  });
  const std::string page = absl::StrCat(rpc::JoinHostPort(config_.metrics_host, metrics_port_), "/metrics");
  LogInfo("gRPC on ", rpc::JoinHostPort(config_.host, port_),
          metrics_port_ >= 0 ? absl::StrCat(", metrics on http://", page) : "");
  return absl::OkStatus();
}

absl::Status Server::StartWorkers() {
  if (config_.local_workers > 0 || config_.local_train_workers > 0) {
    ASSIGN_OR_RETURN(token_fd_, SecretFile(config_.local_token));
  }
  const std::string server = rpc::JoinHostPort(rpc::IsEveryAddress(config_.host) ? "127.0.0.1" : config_.host, port_);
  RETURN_IF_ERROR(StartServingWorkers(server));
  return training_->StartWorkers({server, gate_->local_name(), absl::StrCat("/proc/self/fd/", token_fd_)});
}

absl::Status Server::StartServingWorkers(const std::string& server) {
  if (config_.local_workers == 0) {
    LogInfo("waiting for ", config_.workers,
            " workers: switchyard-worker --server=", rpc::JoinHostPort(config_.host, port_),
            " --model=", config_.model);
    return absl::OkStatus();
  }
  LocalFleet::Options options;
  options.binary = config_.worker_binary;
  options.count = config_.local_workers;
  options.args = [this, server](int index) {
    const bool trains = config_.train_on_serving && training_->trainers() != nullptr;
    const uint32_t marks = kToServingWorkers | (trains ? kToServingThatTrain : 0);
    std::vector<std::string> args = FlagsToWorkers(config_, marks);
    args.insert(
        args.end(),
        {absl::StrCat("--server=", server), absl::StrCat("--server_socket=", gate_->local_name()),
         trains ? "--role=both" : "--role=serve",
         config_.device == "cpu" ? "--device=cpu" : absl::StrCat("--device=cuda:", index),
         absl::StrCat("--profile_out=",
                      config_.profile_out.empty() ? "" : absl::StrCat(config_.profile_out, ".", index)),
         absl::StrCat("--local_index=", index), absl::StrCat("--join_token_file=/proc/self/fd/", token_fd_),
         absl::StrCat("--metrics_port=", config_.worker_metrics_port + (config_.worker_metrics_port > 0 ? index : 0))});
    return args;
  };
  options.max_deaths_unfinalized = 5;
  options.on_fatal = [this](std::string text) { Fail(std::move(text)); };
  fleet_ = std::make_unique<LocalFleet>(std::move(options));
  return fleet_->Start();
}

void Server::SetReady(bool ready) {
  grpc::HealthCheckServiceInterface* health = grpc_->GetHealthCheckService();
  health->SetServingStatus(kReadiness, ready);
  health->SetServingStatus(kServiceName, ready);
  if (ready) LogInfo("ready: ", config_.served_model_name, " on ", rpc::JoinHostPort(config_.host, port_));
}

void Server::Fail(std::string text) {
  absl::MutexLock lock(&mu_);
  if (failed_.HasBeenNotified()) return;
  failure_ = std::move(text);
  failed_.Notify();
}

std::string Server::failure() const {
  absl::MutexLock lock(&mu_);
  return failure_;
}

void Server::ReloadKeys() {
  const absl::StatusOr<size_t> read = keys_->Reload();
  if (read.ok()) return LogInfo(config_.api_keys_file, ": ", *read, " keys");
  LogError("the old API keys stay: ", read.status().message());
}

void Server::Drain(const std::function<bool()>& give_up) {
  SetReady(false);
  // Shared with the engine, which may call it after the wait has ended.
  auto done = std::make_shared<absl::Notification>();
  auto trained = std::make_shared<absl::Notification>();
  engine_->Drain(config_.drain_timeout, [done] { done->Notify(); });
  training_->Drain([trained] { trained->Notify(); });
  const absl::Time end = MonotonicNow() + config_.drain_timeout + absl::Seconds(5);
  for (const auto& awaited : {done, trained}) {
    while (!awaited->WaitForNotificationWithTimeout(absl::Milliseconds(50)) && MonotonicNow() < end) {
      if (!give_up()) continue;
      LogWarn("asked again: running requests and jobs end now");
      return;
    }
  }
}

// Cancels calls that do not end.  gRPC then waits without a limit until clients have read every connection's last
// bytes, so connections of clients that do not read are ended.
void Server::ShutDownGrpc() {
  absl::Notification down;
  std::thread bound([this, &down] {
    while (!down.WaitForNotificationWithTimeout(kLastBytes)) gate_->EndConnections();
  });
  grpc_->Shutdown(absl::ToChronoTime(absl::Now() + kLastCalls));
  pool_.reset();
  file_pool_.reset();
  grpc_->Wait();
  down.Notify();
  bound.join();
}

void Server::Stop() {
  if (std::exchange(stopped_, true)) return;
  if (engine_) engine_->Dismiss();
  if (training_) training_->StopWorkers();
  // Workers with --profile_out fit their predictors first.
  if (fleet_) fleet_->Stop(config_.profile_out.empty() ? absl::Seconds(2) : absl::Minutes(15));
  // The engine stops first: it ends the remaining streams with a reason, and the workers' links.
  if (engine_) engine_->Stop();
  if (training_) training_->Stop();
  store_.CloseAll();  // ends waiting calls, for which Shutdown would wait
  if (gate_) gate_->Close();
  if (grpc_) ShutDownGrpc();
  request_context_.open_calls.Stop();
  if (token_fd_ >= 0) close(token_fd_);
}

}  // namespace switchyard::server
