#include "server/server.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "proto/support/host_port.h"
#include "scheduler/base/clock.h"
#include "scheduler/base/log.h"
#include "scheduler/base/status_macros.h"
#include "server/admission/join_tokens.h"
#include "server/admission/peer_name.h"
#include "server/server_flags.h"
#include "server/service_manager.h"

namespace switchyard::server {
namespace {

constexpr char kReadiness[] = "readiness";
constexpr int64_t kFileCallBytes = int64_t{64} << 20;  // of waiting calls that check jobs' files
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

// Makes a file in memory that local workers inherit: a secret belongs neither in argv nor in the environment.
absl::StatusOr<int> SecretFile(const std::string& secret) {
  const int fd = memfd_create("join_token", 0);
  // Its mode is 0777 at first, and workers take only files that nobody else may use.
  if (fd < 0 || fchmod(fd, 0600) != 0 ||
      write(fd, secret.data(), secret.size()) != static_cast<ssize_t>(secret.size())) {
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
  if (const ServerConfig& c = server->config_; !c.request_log.empty() || !c.otlp_endpoint.empty()) {
    ASSIGN_OR_RETURN(server->observer_, RequestObserver::Open({.request_log = c.request_log,
                                                               .otlp_endpoint = c.otlp_endpoint,
                                                               .sample_ratio = c.otlp_sample_ratio,
                                                               .metrics = server->metrics_.get()}));
  }
  ASSIGN_OR_RETURN(server->front_, Front::Open(server->config_));
  if (server->config_.metrics_port >= 0) RETURN_IF_ERROR(server->ExposeMetrics());
  RETURN_IF_ERROR(server->StartRooms());
  RETURN_IF_ERROR(server->Listen());
  RETURN_IF_ERROR(server->StartWorkers());
  server->engine_->Start();  // last: its thread uses all of the above
  if (server->config_.only_trains) server->SetReady(true);
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
  hooks.has_unread = [this](const fleet::WorkerInfo& info) {
    return members_->gate().HasUnread(info.peer, info.pid) ||
           front_->relay(Front::Peers::kWorkers).HasUnread(info.peer);
  };
  request_context_.has_unread = hooks.has_unread;
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
  if (text_->has_tokenizer()) constraints_ = std::make_unique<ConstraintCompiler>(text_->tokenizer());
  request_context_.constraints = constraints_.get();
  request_context_.engine = engine_.get();
  request_context_.pool = pool_.get();
  file_pool_ = std::make_unique<FrontPool>(
      1, FrontPool::Limits{.calls = 64, .bytes = kFileCallBytes, .bytes_per_client = kFileCallBytes / 2});
  request_context_.file_pool = file_pool_.get();
  request_context_.metrics = metrics_.get();
  request_context_.start_time = absl::ToUnixSeconds(absl::Now());
  request_context_.keys = keys_.get();
  request_context_.observer = observer_.get();
  request_context_.open_calls.Start();
  inference_ = std::make_unique<InferenceServiceImpl>(&request_context_);
  admin_ = std::make_unique<AdminServiceImpl>(&request_context_);
  ASSIGN_OR_RETURN(training_, TrainingSubsystem::Open(&request_context_, &store_, config_.worker_binary));
  Admission admission;
  admission.tokens = {.shared = config_.join_token, .local = config_.local_token};
  admission.on_joined = [this](const std::string& peer) {
    // Without a token anybody may claim to be a worker.
    if (!config_.join_token.empty()) members_->gate().KeepPlacesFor(AddressOfPeer(peer));
  };
  workers_ = std::make_unique<WorkerServiceImpl>(engine_->links(), training_->trainers(), &store_, SettingsOf(config_),
                                                 std::move(admission));
  return absl::OkStatus();
}

void Server::Tick(absl::Time now) {
  store_.Sweep(now);
  workers_->CheckTime(now);
  int64_t texts = pool_->num_refused(), open = 0, connections = 0;
  const auto count = [&](ConnectionGate& gate) {
    open += gate.num_open();
    connections += gate.num_refused();
  };
  for (Listener* listener : listeners()) count(listener->gate());
  if (http_) count(http_->gate());
  metrics_->open_connections->Set(static_cast<double>(open));
  front_->Count(metrics_.get());
  metrics_->waiting_text_bytes->Set(static_cast<double>(pool_->waiting_bytes()));
  metrics_->texts_refused->Increment(static_cast<double>(texts - std::exchange(refused_texts_, texts)));
  metrics_->connections_refused->Increment(
      static_cast<double>(connections - std::exchange(refused_connections_, connections)));
  if (constraints_ == nullptr) return;
  const int64_t masks = constraints_->masks_made();
  metrics_->constraint_masks->Increment(static_cast<double>(masks - std::exchange(masks_made_, masks)));
  const double seconds = constraints_->seconds();
  metrics_->constraint_seconds->Increment(seconds - std::exchange(constraint_seconds_, seconds));
}

std::vector<Listener*> Server::listeners() const {
  std::vector<Listener*> all;
  for (Listener* one : {users_.get(), operators_.get(), members_.get()}) {
    if (one != nullptr) all.push_back(one);
  }
  return all;
}

absl::Status Server::StartWorkers() {
  if (config_.local_workers > 0 || config_.local_train_workers > 0) {
    ASSIGN_OR_RETURN(token_fd_, SecretFile(config_.local_token));
  }
  // The calls of local workers come over this machine's socket; by this address they see how others may reach them.
  const std::string host = rpc::IsEveryAddress(config_.worker_host) ? "127.0.0.1" : config_.worker_host;
  const std::string server = rpc::JoinHostPort(host, members_->port() > 0 ? members_->port() : users_->port());
  RETURN_IF_ERROR(StartServingWorkers(server));
  return training_->StartWorkers({server, members_->gate().local_name(), absl::StrCat("/proc/self/fd/", token_fd_)});
}

absl::Status Server::StartServingWorkers(const std::string& server) {
  if (config_.only_trains) return absl::OkStatus();
  if (config_.local_workers == 0) {
    LogInfo("waiting for ", config_.workers, " workers: switchyard-worker --server=", members_->address(),
            " --model=", config_.model);
    return absl::OkStatus();
  }
  LocalFleet::Options options;
  options.binary = config_.worker_binary;
  options.count = config_.local_workers;
  options.args = [this, server](int index) {
    const bool trains = config_.train_on_serving && training_->trainers() != nullptr;
    std::vector<std::string> args = FlagsToWorkers(config_, kToServingWorkers | (trains ? kToServingThatTrain : 0));
    args.insert(
        args.end(),
        {absl::StrCat("--server=", server), absl::StrCat("--server_socket=", members_->gate().local_name()),
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
  options.on_restart = [this] { metrics_->local_worker_restarts->Increment(); };
  fleet_ = std::make_unique<LocalFleet>(std::move(options));
  return fleet_->Start();
}

void Server::SetReady(bool ready) {
  const bool serves = !config_.only_trains;
  users_->SetServing(kReadiness, ready);
  if (serves) users_->SetServing(kServiceName, ready);
  const std::string what = serves ? absl::StrCat("serving ", config_.served_model_name, " on ", users_->address())
                           : operators_ != nullptr ? absl::StrCat("training jobs on ", operators_->address())
                                                   : "training jobs";
  if (ready) LogInfo("ready: ", what);
  TellServiceManager(ready    ? absl::StrCat("READY=1\nSTATUS=", what)
                     : serves ? absl::StrCat("STATUS=not serving: waits for the workers of ", config_.served_model_name)
                              : "STATUS=not ready");
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

void Server::ReloadFiles() {
  front_->ReloadCertificates();
  if (observer_) observer_->Reopen();
  if (keys_ == nullptr) return;
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

void Server::ShutDownGrpc() {
  const auto at_once = [this](void (Listener::*step)()) {
    std::vector<std::thread> threads;
    for (Listener* listener : listeners()) threads.emplace_back(step, listener);
    for (std::thread& thread : threads) thread.join();
  };
  at_once(&Listener::CancelCalls);
  pool_.reset();
  file_pool_.reset();
  at_once(&Listener::AwaitEnd);
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
  for (Listener* listener : listeners()) listener->StopAccepting();
  if (page_gate_) page_gate_->Close();
  if (http_) http_->Stop();  // before the front pool, whose calls may still answer
  ShutDownGrpc();
  if (front_) front_->Stop();
  request_context_.open_calls.Stop();
  if (observer_) observer_->Stop();  // last: what the others ended is noted
  if (token_fd_ >= 0) close(token_fd_);
}

}  // namespace switchyard::server
