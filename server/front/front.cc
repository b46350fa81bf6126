#include "server/front/front.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/log.h"
#include "scheduler/base/status_macros.h"
#include "server/front/headroom.h"

namespace switchyard::server {
namespace {

// Of the memory that is left, so much may unfinished calls take; never less than the second.
constexpr int64_t kWorkerBytes = int64_t{96} << 20;
constexpr int64_t kHeadroomPart = 2, kLeastMemory = 8 << 20;
// That a client may open before it has read how many it may.
constexpr int kStreamsBeforeSettings = 100;
constexpr absl::Duration kWatchEvery = absl::Seconds(1);

FrameGuard::Limits LimitsOf(const ServerConfig& config) {
  FrameGuard::Limits limits;
  limits.acknowledges = true;
  limits.resets = config.MostResets();
  limits.open_streams = config.StreamsPerConnection() + kStreamsBeforeSettings;
  return limits;
}

// A call that does nothing costs about 100 us of a core.
constexpr double kLeastCallsASecond = 1000, kCallsASecondAndCore = 500;

Relay::Options RelayOptions(const ServerConfig& config) {
  const double calls = CallsASecond(config);
  return {.memory_bytes = config.max_connection_bytes, .calls_a_second = calls, .call_burst = calls};
}

int ConnectToLoopback(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in to = {};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(port));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (fd >= 0 && connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0) return fd;
  if (fd >= 0) close(fd);
  return -1;
}

}  // namespace

double CallsASecond(const ServerConfig& config) {
  return std::max({kLeastCallsASecond, 1.0 * config.StreamsPerConnection(),
                   kCallsASecondAndCore * std::thread::hardware_concurrency()});
}

Front::Front(const ServerConfig& config)
    : memory_bytes_(config.max_connection_bytes),
      limits_(LimitsOf(config)),
      relay_(RelayOptions(config)),
      worker_relay_({.threads = 1, .memory_bytes = kWorkerBytes}) {}

absl::StatusOr<std::unique_ptr<Front>> Front::Open(const ServerConfig& config) {
  std::unique_ptr<Front> front(new Front(config));
  if (!config.tls_cert.empty()) {
    ASSIGN_OR_RETURN(front->tls_, TlsServer::Load({config.tls_cert, config.tls_key, config.tls_client_ca}));
    ASSIGN_OR_RETURN(front->worker_tls_,
                     TlsServer::Load({config.tls_cert, config.tls_key, config.tls_worker_ca, "tls_worker_ca"}));
  }
  front->watch_ = std::thread([own = front.get()] { own->Watch(); });
  return front;
}

const RelayListener* Front::AddListener(std::function<void(int fd)> pass, Peers peers) {
  const TlsServer* const tls = (peers == Peers::kWorkers ? worker_tls_ : tls_).get();
  auto open = [pass = std::move(pass)](const std::string& name, int) { return OpenNamedPair(name, pass); };
  listeners_.push_back(
      std::make_unique<RelayListener>(RelayListener{.open = std::move(open),
                                                    .tls = tls,
                                                    .asks_clients = tls != nullptr && tls->can_ask_clients(),
                                                    .limits = limits_}));
  return listeners_.back().get();
}

const RelayListener* Front::AddUnread(std::function<int(const std::string& name, int client_fd)> open) {
  listeners_.push_back(
      std::make_unique<RelayListener>(RelayListener{.open = std::move(open),
                                                    .tls = tls_.get(),
                                                    .asks_clients = tls_ != nullptr && tls_->can_ask_clients(),
                                                    .http2 = false}));
  return listeners_.back().get();
}

// Answers that are streamed are many small pieces: through the relay each would cost it three calls of the system.
const RelayListener* Front::AddHttp(std::function<void(int fd, int answer_fd)> pass) {
  return AddUnread([pass = std::move(pass)](const std::string& name, int client_fd) {
    return OpenNamedPair(name, [&](int fd) { pass(fd, CopyForAnswers(client_fd)); });
  });
}

const RelayListener* Front::AddPage(int port) {
  return AddUnread([port](const std::string&, int) { return ConnectToLoopback(port); });
}

void Front::ReloadCertificates() {
  if (tls_ == nullptr) return;
  absl::Status read = tls_->Reload();
  read.Update(worker_tls_->Reload());
  if (!read.ok()) return LogError("the old certificates stay: ", read.message());
  LogInfo("the certificate is read: it expires on ", absl::FormatTime(tls_->expiry(), absl::UTCTimeZone()));
}

// Files may be on a slow disk, so neither the engine's thread nor the relay's look.
void Front::Watch() {
  absl::MutexLock lock(&mu_);
  while (!mu_.AwaitWithTimeout(absl::Condition(&stopping_), kWatchEvery)) {
    relay_.SetMemory(
        std::min(memory_bytes_, std::max(kLeastMemory, relay_.held_bytes() + MemoryHeadroom() / kHeadroomPart)));
    if (tls_ != nullptr && (tls_->FilesChanged() || worker_tls_->FilesChanged())) ReloadCertificates();
  }
}

void Front::Stop() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
  }
  if (watch_.joinable()) watch_.join();
  relay_.Stop();
  worker_relay_.Stop();
}

void Front::Count(ServerMetrics* metrics) {
  metrics->unfinished_call_bytes->Set(static_cast<double>(relay_.held_bytes() + worker_relay_.held_bytes()));
  metrics->waiting_clients->Set(relay_.num_waiting_clients() + worker_relay_.num_waiting_clients());
  if (tls_ != nullptr) metrics->certificate_expiry().Set(absl::ToDoubleSeconds(tls_->expiry() - absl::UnixEpoch()));
  const auto count = [](prometheus::Counter* counter, int64_t total, int64_t* known) {
    counter->Increment(static_cast<double>(total - std::exchange(*known, total)));
  };
  for (size_t i = 0; i < std::size(ended_); ++i) {
    const auto limit = static_cast<FrontLimit>(i);
    count(&metrics->connection_ended(std::string(NameOf(limit))),
          relay_.num_ended(limit) + worker_relay_.num_ended(limit), &ended_[i]);
  }
  count(metrics->handshakes_failed, relay_.num_failed_handshakes() + worker_relay_.num_failed_handshakes(),
        &failed_handshakes_);
  count(metrics->connections_refused, relay_.num_turned_away() + worker_relay_.num_turned_away(), &turned_away_);
}

}  // namespace switchyard::server
