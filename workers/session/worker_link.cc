#include "workers/session/worker_link.h"

#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/random/random.h"
#include "absl/strings/str_cat.h"
#include "proto/link/fleet_codec.h"
#include "proto/support/host_port.h"
#include "scheduler/base/clock.h"
#include "scheduler/base/log.h"
#include "scheduler/base/status_macros.h"
#include "switchyard/v1/worker.grpc.pb.h"
#include "workers/comm/group/group_forming.h"
#include "workers/process/own_address.h"
#include "workers/session/link_session.h"

namespace switchyard::worker {
namespace {

constexpr absl::Duration kFirstRetry = absl::Milliseconds(100);
constexpr absl::Duration kLongestRetry = absl::Seconds(2);

std::string DrawIncarnation() {
  absl::BitGen gen;
  return absl::StrCat(absl::Hex(absl::Uniform<uint64_t>(gen), absl::kZeroPad16));
}

// Whether the server's answer means that another try would get the same.
bool IsFinal(grpc::StatusCode code) {
  return code == grpc::StatusCode::FAILED_PRECONDITION || code == grpc::StatusCode::UNAUTHENTICATED ||
         code == grpc::StatusCode::PERMISSION_DENIED || code == grpc::StatusCode::INVALID_ARGUMENT;
}

// Says every `interval` that this process lives, from a thread of its own.
class HeartbeatSender {
 public:
  HeartbeatSender(absl::Duration interval, absl::AnyInvocable<void()> beat)
      : interval_(interval), beat_(std::move(beat)), thread_([this] { Run(); }) {}
  ~HeartbeatSender() {
    {
      const std::lock_guard lock(mu_);
      stop_ = true;
    }
    stopping_.notify_one();
    thread_.join();
  }

 private:
  void Run() {
    for (;;) {
      beat_();
      std::unique_lock lock(mu_);
      if (stopping_.wait_for(lock, absl::ToChronoNanoseconds(interval_), [this] { return stop_; })) return;
    }
  }

  const absl::Duration interval_;
  absl::AnyInvocable<void()> beat_;
  // Not Abseil's: its waits end by the wall clock, and one that is set back would silence the worker.
  std::mutex mu_;
  std::condition_variable stopping_;
  bool stop_ = false;  // guarded by mu_
  std::thread thread_;
};

absl::StatusOr<Place> FindPlace(const LinkOptions& options) {
  ASSIGN_OR_RETURN(const rpc::HostPort server, rpc::SplitHostPort(options.server));
  ASSIGN_OR_RETURN(const Route route, RouteTo(server.host, server.port));
  if (!options.insecure && !options.tls.used() && !comm::CheckGroupAddress(route.peer).ok()) {
    return absl::FailedPreconditionError(absl::StrCat(options.server, " is ", route.peer,
                                                      ", a public address; a plaintext link to it wants --insecure"));
  }
  if (options.address != kAutoAddress) return Place{options.address, false};
  // On the server's machine, whatever its address: loopback, unless a member of the group is elsewhere.
  return Place{route.own == route.peer ? "127.0.0.1" : route.own, true};
}

v1::LinkRequest RegisterMessage(const LinkOptions& options, const LinkRole& role, const std::string& address) {
  fleet::WorkerInfo info;
  info.incarnation = DrawIncarnation();
  char host[256] = "";
  gethostname(host, sizeof(host) - 1);
  info.host = host;
  info.pid = getpid();
  info.join_token = options.join_token;
  info.local_index = options.local_index;
  info.collective_address = address;
  if (options.metrics_port > 0) {
    const bool everywhere = rpc::IsEveryAddress(options.metrics_host);
    info.metrics_address = rpc::JoinHostPort(everywhere ? address : options.metrics_host, options.metrics_port);
  }
  role.Describe(&info);
  v1::LinkRequest message;
  *message.mutable_register_() = link::ToProto(info);
  return message;
}

}  // namespace

std::string Place::Toward(const std::string& reach) const {
  if (!found || reach.empty() || !rpc::IsLoopback(address)) return address;
  const absl::StatusOr<Route> route = RouteTo(reach, 1);
  return route.ok() ? route->own : address;
}

WorkerLink::WorkerLink(LinkOptions options, LinkRole* role) : options_(std::move(options)), role_(role) {}

WorkerLink::~WorkerLink() = default;

void WorkerLink::Stop() {
  absl::MutexLock lock(&mu_);
  stopping_ = true;
  if (session_) session_->Close();
}

absl::Status WorkerLink::Run() {
  absl::Duration pause = kFirstRetry;
  for (;;) {
    const absl::Time start = MonotonicNow();
    const absl::Status status = RunSession();
    absl::MutexLock lock(&mu_);
    if (stopping_) return absl::OkStatus();
    // A worker that has served gives up no more: what is wrong now may pass.
    if (role_->lost()) return status;  // another process may get the device again
    if (IsFinal(static_cast<grpc::StatusCode>(status.code())) && !role_->served()) return status;
    LogWarn("no link to ", options_.server, ": ", status.message(), "; trying again");
    if (MonotonicNow() - start > kLongestRetry) pause = kFirstRetry;
    if (mu_.AwaitWithTimeout(absl::Condition(&stopping_), pause)) return absl::OkStatus();
    pause = std::min(2 * pause, kLongestRetry);
  }
}

absl::Status WorkerLink::RunSession() {
  ASSIGN_OR_RETURN(Place place, FindPlace(options_));
  const std::string target =
      options_.socket.empty() ? options_.server : absl::StrCat("unix-abstract:", options_.socket);
  // On this machine's socket the kernel says who is at the other end.
  ASSIGN_OR_RETURN(const auto credentials, options_.socket.empty() ? rpc::MakeChannelCredentials(options_.tls)
                                                                   : grpc::InsecureChannelCredentials());
  auto session = std::make_shared<LinkSession>(ConnectToServer(target, credentials), role_);
  {
    absl::MutexLock lock(&mu_);
    if (stopping_) return absl::OkStatus();
    session_ = session;
  }
  const std::string address = place.address;
  std::unique_ptr<LinkHandler> handler =
      role_->Begin(session->channel(), std::move(place),
                   [session](v1::LinkRequest message) { return session->Send(std::move(message)); });
  session->Start();
  session->Send(RegisterMessage(options_, *role_, address));
  std::unique_ptr<HeartbeatSender> heart;
  v1::LinkResponse command;
  while (session->Pop(&command, handler->patience())) {
    if (command.has_registered()) {
      heart = std::make_unique<HeartbeatSender>(absl::Milliseconds(command.registered().heartbeat_ms()), [&session] {
        v1::LinkRequest beat;
        beat.mutable_heartbeat();
        session->Send(std::move(beat));
      });
    }
    handler->Take(command);
    if (!handler->fatal().ok()) session->Close();
  }
  heart.reset();
  const absl::Status fatal = handler->fatal();
  handler.reset();
  const grpc::Status status = session->WaitDone();
  absl::MutexLock lock(&mu_);
  session_ = nullptr;
  if (!fatal.ok()) return fatal;
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                      status.error_message().empty() ? "the link ended" : status.error_message());
}

}  // namespace switchyard::worker
