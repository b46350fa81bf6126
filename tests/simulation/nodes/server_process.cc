#include "tests/simulation/nodes/server_process.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "grpcpp/test/default_reactor_test_peer.h"
#include "proto/support/raw_message.h"
#include "tests/simulation/nodes/worker_process.h"

namespace switchyard::simulation {
namespace {

absl::Status FromGrpc(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

}  // namespace

// A call of the rendezvous store, until it is answered.
struct ServerProcess::StoreCall {
  explicit StoreCall(std::function<void(grpc::Status)> finish) : peer(&context, std::move(finish)) {}
  grpc::CallbackServerContext context;
  grpc::testing::DefaultReactorTestPeer peer;
  grpc::ByteBuffer request, response;
};

ServerProcess::ServerProcess(World* world, server::ServerConfig config, Shared shared)
    : Process(world), config_(std::move(config)), shared_(shared) {}

ServerProcess::~ServerProcess() = default;

server::EngineHooks ServerProcess::Hooks() {
  server::EngineHooks hooks;
  hooks.on_ready = [this](bool ready) {
    ready_ = ready;
    world_.Note("server: ready ", ready);
  };
  hooks.on_fenced = [this](int index, int64_t pid) { KillLocal("", index, pid); };
  hooks.end_of = [this](int index, int64_t pid) { return EndOf("", index, pid); };
  hooks.oom_kills = [this] { return oom_kills; };
  hooks.has_unread = [this](const fleet::WorkerInfo& info) { return HasUnread(info); };
  hooks.on_epoch = [this](const std::string& token) {
    store_->Close(std::exchange(serving_token_, token));
    store_->Open(token);
    world_.Note("server: a group forms");
    on_forming();
  };
  hooks.on_tick = [this](absl::Time now) {
    store_->Sweep(now);
    service_->CheckTime(now);
    OnStoreTick(now);
  };
  hooks.on_fatal = [this](const std::string& why) {
    world_.Note("server: fatal: ", why);
    After(absl::ZeroDuration(), [this] {
      Die("exit code 1");
      on_death(/*restart=*/true);
    });
  };
  return hooks;
}

void ServerProcess::Boot() {
  BeginLife();
  ++boots_;
  ready_ = terminating_ = false;
  next_turn_ = absl::InfiniteFuture();
  world_.Note("server: boots");
  store_ = std::make_unique<server::GroupStore>();
  engine_ = std::make_unique<server::EngineLoop>(&config_, shared_.text, shared_.metrics, Hooks());
  fleet::EngineSettings settings;
  settings.block_size = config_.batching.block_size;
  settings.max_num_seqs = config_.batching.max_num_seqs;
  settings.max_batched_tokens = config_.batching.max_batched_tokens;
  settings.max_model_len = config_.batching.max_model_len;
  service_ = std::make_unique<server::WorkerServiceImpl>(
      engine_->links(), OpenJobs(), store_.get(), settings,
      server::Admission{.tokens = {.shared = config_.join_token, .local = config_.local_token}, .on_joined = {}});
  for (Local& local : local_) {
    local.early_deaths = 0;
    StartLocal(&local);
  }
  WakeEngine();
}

void ServerProcess::StartLocal(Local* local) {
  local->started = world_.now();
  local->worker->Boot();
}

void ServerProcess::OnDeath(const std::string& how) {
  world_.Note("server: ends with ", how);
  ready_ = false;
  for (const auto& stream : streams_) stream->Drop();
  for (const auto& connection : connections_) connection->Abandon(Connection::kServer);
  connections_.clear();
  DropJobs();
  service_.reset();
  engine_.reset();
  store_.reset();
  streams_.clear();
  stream_of_.clear();
  contexts_.clear();
  calls_.clear();
  serving_token_.clear();
  for (Local& local : local_) local.worker->Die("signal 9 (Killed)");
}

void ServerProcess::Terminate() {
  if (!listens()) return;
  terminating_ = true;
  world_.Note("server: drains");
  engine_->Drain(config_.drain_timeout, [this] {
    After(absl::Milliseconds(1), [this] {
      engine_->Dismiss();
      engine_->Stop();
      WakeEngine();
      After(absl::Milliseconds(300), [this] {
        Die("exit code 0");
        on_death(/*restart=*/true);
      });
    });
  });
  WakeEngine();
}

void ServerProcess::WakeEngine() {
  if (!alive()) return;
  const absl::Time at = world_.now() + world_.random().Skewed(absl::Microseconds(1), absl::Microseconds(100));
  if (next_turn_ <= at) return;
  next_turn_ = at;
  After(at - world_.now(), [this, at] {
    if (next_turn_ == at || next_turn_ <= world_.now()) Turn();
  });
}

void ServerProcess::Turn() {
  next_turn_ = absl::InfiniteFuture();
  const absl::Time next = engine_->RunOnce();
  if (next == absl::InfiniteFuture() || next_turn_ <= next) return;
  next_turn_ = std::max(next, world_.now() + absl::Microseconds(1));
  After(next_turn_ - world_.now(), [this, at = next_turn_] {
    if (next_turn_ == at || next_turn_ <= world_.now()) Turn();
  });
}

void ServerProcess::Connect(std::shared_ptr<Connection> connection) {
  if (!alive()) return connection->Abandon(Connection::kServer);
  connections_.push_back(connection);
  Soon([this, connection = std::move(connection)] {
    if (terminating_) return connection->Abandon(Connection::kServer);
    streams_.push_back(std::make_unique<ServerStream>(&world_, this, connection, [this] { WakeEngine(); }));
    contexts_.push_back(std::make_unique<grpc::CallbackServerContext>());
    ServerStream* const stream = streams_.back().get();
    stream_of_[connection->pid()] = stream;
    stream->Bind(service_->Link(contexts_.back().get()));
  });
}

bool ServerProcess::HasUnread(const fleet::WorkerInfo& info) const {
  const auto stream = stream_of_.find(info.pid);
  return stream != stream_of_.end() && stream->second->has_unread();
}

void ServerProcess::CallStore(const Host& host, Process* caller, std::function<void(StoreCall*)> call,
                              std::function<void(absl::Status)> done) {
  const auto latency = [this, &host] {
    return std::max(absl::ZeroDuration(), host.cut_until - world_.now()) +
           world_.random().Skewed(host.least_latency, host.most_latency);
  };
  const auto answer = [caller, latency, life = caller->life(), done = std::move(done)](absl::Status status) {
    if (caller->life() == life) caller->After(latency(), [done, status = std::move(status)] { done(status); });
  };
  world_.After(latency(), [this, call = std::move(call), answer] {
    if (!alive()) return answer(absl::UnavailableError("connection refused"));
    Soon([this, call, answer] {
      calls_.push_back(std::make_unique<StoreCall>([answer](const grpc::Status& status) { answer(FromGrpc(status)); }));
      call(calls_.back().get());
    });
  });
}

void ServerProcess::StoreSet(const Host& host, Process* caller, v1::StoreSetRequest request,
                             std::function<void(absl::Status)> done) {
  CallStore(
      host, caller,
      [this, request = std::move(request)](StoreCall* call) {
        call->request = rpc::SerializeRaw(request);
        service_->StoreSet(&call->context, &call->request, &call->response);
      },
      std::move(done));
}

void ServerProcess::StoreGet(const Host& host, Process* caller, v1::StoreGetRequest request,
                             std::function<void(absl::Status)> done) {
  CallStore(
      host, caller,
      [this, request = std::move(request)](StoreCall* call) {
        call->request = rpc::SerializeRaw(request);
        service_->StoreGet(&call->context, &call->request, &call->response);
      },
      std::move(done));
}

void ServerProcess::OnLocalDeath(WorkerProcess* worker, const std::string& how) {
  for (Local& local : local_) {
    if (local.worker != worker) continue;
    local.last_pid = worker->pid();
    local.last_end = how;
    if (!alive()) return;
    const bool killed = absl::StartsWith(how, "signal 9 ") || how == "exit code 0";
    const absl::Duration young = killed ? absl::Seconds(3) : absl::Seconds(10);
    local.early_deaths = world_.now() - local.started < young ? local.early_deaths + 1 : 0;
    const int slower = std::clamp(killed ? local.early_deaths - 4 : local.early_deaths, 0, 7);
    const absl::Duration pause = std::min(absl::Milliseconds(50) * (1 << slower), absl::Duration(absl::Seconds(5)));
    After(pause + world_.random().Skewed(absl::Milliseconds(1), absl::Milliseconds(20)),
          [this, local = &local] { StartLocal(local); });
  }
}

void ServerProcess::KillLocal(const std::string& role, int index, int64_t pid) {
  for (const Local& local : local_) {
    if (local.worker->role() == role && local.worker->index() == index && local.worker->pid() == pid)
      local.worker->Die("signal 9 (Killed)");
  }
}

std::string ServerProcess::EndOf(const std::string& role, int index, int64_t pid) const {
  for (const Local& local : local_) {
    if (local.worker->role() == role && local.worker->index() == index && local.last_pid == pid) return local.last_end;
  }
  return "";
}

}  // namespace switchyard::simulation
