#include "tests/simulation/nodes/worker_process.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/link/fleet_codec.h"
#include "tests/simulation/nodes/server_process.h"

namespace switchyard::simulation {
namespace {

constexpr absl::Duration kFirstRetry = absl::Milliseconds(100), kLongestRetry = absl::Seconds(2);

}  // namespace

WorkerProcess::WorkerProcess(World* world, ServerProcess* server, Identity identity)
    : Process(world), server_(*server), identity_(std::move(identity)) {}

std::string WorkerProcess::name() const {
  return absl::StrCat(identity_.role.empty() ? "worker" : "trainer", " ", identity_.index);
}

void WorkerProcess::Boot() {
  if (alive()) return;
  BeginLife();
  // Unique: other workers' pids differ in the last digits.
  pid_ = (pid_ / 100 + 1) * 100 + (identity_.role.empty() ? 0 : 50) + identity_.index;
  pause_ = kFirstRetry;
  world_.Note(name(), ": starts");
  After(world_.random().Skewed(absl::Milliseconds(5), absl::Milliseconds(200)), [this] { Connect(); });
}

void WorkerProcess::OnDeath(const std::string& how) {
  world_.Note(name(), ": ends with ", how);
  EndSession();
  if (connection_ != nullptr) connection_->Abandon(Connection::kWorker);
  connection_ = nullptr;
  arrived_.clear();
  end_ = nullptr;
  draining_ = registered_ = false;
  ++session_;
  if (identity_.local) server_.OnLocalDeath(this, how);
}

void WorkerProcess::Connect() {
  ++session_;
  connected_ = world_.now();
  arrived_.clear();
  end_ = nullptr;
  registered_ = false;
  connection_ = std::make_shared<Connection>(&world_, &host_, pid_);
  connection_->Attach(Connection::kWorker, this);
  const absl::Duration cut = std::max(absl::ZeroDuration(), host_.cut_until - world_.now());
  world_.After(cut + world_.random().Skewed(host_.least_latency, host_.most_latency),
               [this, connection = connection_] { server_.Connect(connection); });
  fleet::WorkerInfo info;
  info.incarnation = absl::StrCat(name(), "-", pid_, "-", session_);
  info.host = "host";
  info.pid = pid_;
  info.role = identity_.role;
  info.join_token = identity_.token;
  info.local_index = identity_.local ? identity_.index : -1;
  info.device = "cpu";
  info.isa = "avx2";
  info.collective_address = "127.0.0.1";
  Describe(&info);
  v1::LinkRequest message;
  *message.mutable_register_() = link::ToProto(info);
  Say(message);
}

void WorkerProcess::Say(const v1::LinkRequest& message) {
  if (connection_ != nullptr) connection_->Send(Connection::kWorker, message.SerializeAsString());
}

void WorkerProcess::OnBytes(std::string bytes) {
  arrived_.push_back(std::move(bytes));
  Drain();
}

void WorkerProcess::OnEnd(const absl::Status& status) {
  end_ = std::make_unique<absl::Status>(status);
  Drain();
}

// Takes what has come, one message at a time, then the link's end.
void WorkerProcess::Drain() {
  if (draining_ || !alive()) return;
  draining_ = true;
  Soon([this] {
    draining_ = false;
    if (arrived_.empty()) {
      if (end_ != nullptr) OnSessionEnd(*std::exchange(end_, nullptr));
      return;
    }
    v1::LinkResponse message;
    world_.Require(message.ParseFromString(arrived_.front()), "a worker gets what is no message");
    arrived_.pop_front();
    if (message.has_registered()) {
      registered_ = true;
      Beat(session_);
      BeginSession();
    } else {
      Take(message);
    }
    if (alive() && (!arrived_.empty() || end_ != nullptr)) Drain();
  });
}

void WorkerProcess::Beat(uint64_t session) {
  if (session != session_ || connection_ == nullptr) return;
  v1::LinkRequest beat;
  beat.mutable_heartbeat();
  Say(beat);
  After(absl::Milliseconds(250), [this, session] { Beat(session); });
}

void WorkerProcess::OnSessionEnd(const absl::Status& status) {
  world_.Note(name(), ": its link ends: ", status.message());
  EndSession();
  connection_ = nullptr;
  registered_ = false;
  ++session_;
  if (world_.now() - connected_ > kLongestRetry) pause_ = kFirstRetry;
  After(pause_, [this] { Connect(); });
  pause_ = std::min(2 * pause_, kLongestRetry);
}

void WorkerProcess::BreakLink(const std::string& why) {
  if (connection_ != nullptr) connection_->Break(why);
}

void WorkerProcess::CheckKeepalive() {
  if (connection_ == nullptr) return;
  const absl::Time since = world_.now() - kKeepalive;
  const bool cut = host_.is_cut(world_.now()) && host_.cut_since < since;
  const std::shared_ptr<Connection> connection = connection_;
  if (cut || (server_.stopped() && server_.still_since() < since)) connection->Lapse(Connection::kWorker);
  if (cut || (stopped() && still_since() < since)) connection->Lapse(Connection::kServer);
}

void WorkerProcess::SetInStore(const std::string& token, const std::string& key,
                               std::function<void(absl::Status)> done) {
  v1::StoreSetRequest request;
  request.set_store_token(token);
  request.set_key(key);
  request.set_value(absl::StrCat(name(), "-", pid_));
  server_.StoreSet(host_, this, std::move(request), std::move(done));
}

void WorkerProcess::AwaitInStore(const std::string& token, const std::vector<std::string>& keys, absl::Duration limit,
                                 std::function<void(absl::Status)> done) {
  v1::StoreGetRequest request;
  request.set_store_token(token);
  for (const std::string& key : keys) request.add_keys(key);
  request.set_timeout_ms(absl::ToInt64Milliseconds(limit));
  server_.StoreGet(host_, this, std::move(request), std::move(done));
}

}  // namespace switchyard::simulation
