#include "workers/service.h"

#include <unistd.h>

#include <algorithm>
#include <deque>
#include <limits>
#include <thread>
#include <utility>

#include "absl/random/random.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "grpcpp/channel.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "proto/support/host_port.h"
#include "scheduler/base/log.h"
#include "scheduler/base/status_macros.h"
#include "switchyard/v1/worker.grpc.pb.h"
#include "workers/comm/gloo_communicator.h"
#include "workers/convert.h"
#include "workers/ops/isa.h"
#include "workers/own_address.h"
#include "workers/process_stats.h"
#include "workers/remote_store.h"

namespace switchyard {
namespace {

constexpr int kProtocolVersion = 2;
constexpr absl::Duration kFirstRetry = absl::Milliseconds(100);
constexpr absl::Duration kLongestRetry = absl::Seconds(2);

std::string DrawIncarnation() {
  absl::BitGen gen;
  return absl::StrCat(absl::Hex(absl::Uniform<uint64_t>(gen), absl::kZeroPad16));
}

std::shared_ptr<grpc::Channel> Connect(const std::string& server) {
  grpc::ChannelArguments args;
  args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 1000);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 1000);
  args.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  args.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  args.SetMaxReceiveMessageSize(256 << 20);
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);  // not even for loopback
  return grpc::CreateCustomChannel(server, grpc::InsecureChannelCredentials(), args);
}

// Whether the server's answer means that another try would get the same.
bool IsFinal(grpc::StatusCode code) {
  return code == grpc::StatusCode::FAILED_PRECONDITION || code == grpc::StatusCode::UNAUTHENTICATED ||
         code == grpc::StatusCode::PERMISSION_DENIED || code == grpc::StatusCode::INVALID_ARGUMENT;
}

}  // namespace

// One stream to the server.
class WorkerLink::Session final : public grpc::ClientBidiReactor<v1::LinkRequest, v1::LinkResponse> {
 public:
  Session(std::shared_ptr<grpc::Channel> channel, Worker* worker)
      : channel_(channel), stub_(v1::WorkerService::NewStub(channel)), worker_(worker) {}

  void Start() {
    stub_->async()->Link(&context_, this);
    AddHold();  // messages are sent from outside of reactions
    StartRead(&response_);
    StartCall();
  }

  // False: the stream is over.
  bool Send(v1::LinkRequest message) {
    absl::MutexLock lock(&mu_);
    if (closing_) return false;
    outbox_.push_back(std::move(message));
    if (outbox_.size() == 1) StartWrite(&outbox_.front());
    return true;
  }

  // Ends the stream; Pop then returns nothing more.
  void Close() {
    {
      absl::MutexLock lock(&mu_);
      if (closing_) return;
      context_.TryCancel();
      LetGo();
    }
    FreeWorker();
  }

  // The next command for the worker's thread; false when the stream is over.
  bool Pop(v1::LinkResponse* command) {
    absl::MutexLock lock(&mu_);
    const auto wanted = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return closing_ || !commands_.empty(); };
    mu_.Await(absl::Condition(&wanted));
    if (closing_) return false;
    *command = std::move(commands_.front());
    commands_.pop_front();
    return true;
  }

  // Blocks until gRPC has let go of this object.
  grpc::Status WaitDone() {
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(&done_));
    return status_;
  }

  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }

  void OnReadDone(bool ok) override {
    if (!ok) {
      {
        absl::MutexLock lock(&mu_);
        LetGo();
      }
      return FreeWorker();
    }
    if (response_.has_abort_group()) {
      // At once, not in the queue: the worker's thread may be waiting for a peer that is gone.
      worker_->Abort(response_.abort_group().epoch(), response_.abort_group().reason());
    } else {
      absl::MutexLock lock(&mu_);
      commands_.push_back(response_);
    }
    StartRead(&response_);
  }
  void OnWriteDone(bool ok) override {
    absl::MutexLock lock(&mu_);
    outbox_.pop_front();
    if (!ok) return LetGo();
    if (!closing_ && !outbox_.empty()) StartWrite(&outbox_.front());
  }
  void OnDone(const grpc::Status& status) override {
    absl::MutexLock lock(&mu_);
    status_ = status;
    closing_ = true;
    done_ = true;
  }

 private:
  // The stream is over.  Of one that the server or the network ended nothing is cancelled: the server's status, which
  // says why, is on its way.
  void LetGo() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (!std::exchange(closing_, true)) RemoveHold();
  }
  // The worker's thread may be waiting for ranks that nobody leads any more.
  void FreeWorker() { worker_->Abort(std::numeric_limits<int64_t>::max(), "the link to the server ended"); }

  const std::shared_ptr<grpc::Channel> channel_;  // shared with the rendezvous store
  const std::unique_ptr<v1::WorkerService::Stub> stub_;
  Worker* const worker_;
  grpc::ClientContext context_;
  v1::LinkResponse response_;
  absl::Mutex mu_;
  std::deque<v1::LinkRequest> outbox_ ABSL_GUARDED_BY(mu_);     // the front one is being written
  std::deque<v1::LinkResponse> commands_ ABSL_GUARDED_BY(mu_);  // bounded by the server's plans in flight
  bool closing_ ABSL_GUARDED_BY(mu_) = false;
  bool done_ ABSL_GUARDED_BY(mu_) = false;
  grpc::Status status_ ABSL_GUARDED_BY(mu_);
};

namespace {

// Says every `interval` that this process lives, from a thread of its own.
class Heart {
 public:
  Heart(absl::Duration interval, absl::AnyInvocable<void(int64_t)> beat)
      : interval_(interval), beat_(std::move(beat)), thread_([this] { Run(); }) {}
  ~Heart() {
    {
      absl::MutexLock lock(&mu_);
      stop_ = true;
    }
    thread_.join();
  }

 private:
  void Run() {
    for (int64_t sequence = 0;; ++sequence) {
      beat_(sequence);
      absl::MutexLock lock(&mu_);
      if (mu_.AwaitWithTimeout(absl::Condition(&stop_), interval_)) return;
    }
  }

  const absl::Duration interval_;
  absl::AnyInvocable<void(int64_t)> beat_;
  absl::Mutex mu_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

v1::LinkRequest RegisterMessage(const LinkOptions& options, const Worker& worker, const std::string& address) {
  v1::LinkRequest message;
  v1::Register* out = message.mutable_register_();
  out->set_protocol_version(kProtocolVersion);
  out->set_incarnation(DrawIncarnation());
  char host[256] = "";
  gethostname(host, sizeof(host) - 1);
  out->set_host(host);
  out->set_pid(getpid());
  out->set_device("cpu");
  out->set_isa(IsaName(CurrentIsa()));
  out->set_memory_bytes(MachineMemoryBytes());
  for (const char* dtype : {"fp32", "bf16", "fp16", "fp64"}) out->add_dtypes(dtype);
  out->set_weights_hash(worker.weights_hash());
  out->set_join_token(options.join_token);
  out->set_local_index(options.local_index);
  out->set_collective_address(address);
  *out->mutable_model() = FactsToProto(worker);
  if (options.metrics_port > 0) {
    const bool everywhere = IsEveryAddress(options.metrics_host);
    out->set_metrics_address(
        JoinHostPort(everywhere ? out->collective_address() : options.metrics_host, options.metrics_port));
  }
  return message;
}

}  // namespace

WorkerLink::WorkerLink(LinkOptions options, Worker* worker, WorkerMetrics* metrics)
    : options_(std::move(options)), worker_(worker), metrics_(metrics) {}

WorkerLink::~WorkerLink() = default;

void WorkerLink::Stop() {
  absl::MutexLock lock(&mu_);
  stopping_ = true;
  if (session_) session_->Close();
}

absl::Status WorkerLink::Run() {
  absl::Duration pause = kFirstRetry;
  for (;;) {
    const absl::Time start = absl::Now();
    const absl::Status status = RunSession();
    absl::MutexLock lock(&mu_);
    if (stopping_) return absl::OkStatus();
    // A worker that has served gives up no more: what is wrong now may pass.
    if ((IsFinal(static_cast<grpc::StatusCode>(status.code())) && !served_) || !options_.reconnect) return status;
    LogWarn("no link to ", options_.server, ": ", status.message(), "; trying again");
    if (absl::Now() - start > kLongestRetry) pause = kFirstRetry;
    if (mu_.AwaitWithTimeout(absl::Condition(&stopping_), pause)) return absl::OkStatus();
    pause = std::min(2 * pause, kLongestRetry);
  }
}

namespace {

// Where this worker is for the others of its group.
struct Place {
  std::string address;
  bool found = false;  // by ourselves, not given

  // Loopback is no address for those who come from elsewhere.
  std::string Toward(const std::string& reach) const {
    if (!found || reach.empty() || !IsLoopback(address)) return address;
    const absl::StatusOr<Route> route = RouteTo(reach, 1);
    return route.ok() ? route->own : address;
  }
};

absl::StatusOr<Place> FindPlace(const LinkOptions& options) {
  ASSIGN_OR_RETURN(const HostPort server, SplitHostPort(options.server));
  ASSIGN_OR_RETURN(const Route route, RouteTo(server.host, server.port));
  if (!options.insecure && !CheckGroupAddress(route.peer).ok()) {
    return absl::FailedPreconditionError(absl::StrCat(options.server, " is ", route.peer,
                                                      ", a public address; a plaintext link to it wants --insecure"));
  }
  if (options.address != kAutoAddress) return Place{options.address, false};
  // Beside the server, whatever its address: loopback, unless someone comes from elsewhere.
  return Place{route.own == route.peer ? "127.0.0.1" : route.own, true};
}

// What one session does with the server's commands.
class Duty {
 public:
  using SendFn = absl::AnyInvocable<bool(v1::LinkRequest)>;  // false: the link is over
  // `served`: whether this process was ever ready; set by this.
  Duty(Worker* worker, WorkerMetrics* metrics, std::shared_ptr<grpc::Channel> channel, Place place, bool* served,
       SendFn send)
      : worker_(worker),
        metrics_(metrics),
        channel_(std::move(channel)),
        place_(std::move(place)),
        served_(served),
        send_(std::move(send)) {}

  void Join(const v1::JoinGroup& message) {
    worker_->Leave();
    epoch_ = 0;
    Seat seat = FromProto(message);
    seat.address = place_.Toward(message.reach());
    RemoteStore store(channel_, seat.token);
    const absl::Status status = worker_->Join(seat, settings_, &store, [this](int64_t done, int64_t total) {
      v1::LinkRequest progress;
      progress.mutable_load_progress()->set_bytes_done(done);
      progress.mutable_load_progress()->set_bytes_total(total);
      return send_(std::move(progress));
    });
    if (CannotServe(status) && !*served_) {
      fatal_ = absl::FailedPreconditionError(status.message());
      return;
    }
    if (!status.ok()) return Fault(seat.epoch, status);
    epoch_ = seat.epoch;
    *served_ = true;
    metrics_->rank->Set(seat.rank);
    metrics_->group_epoch->Set(static_cast<double>(seat.epoch));
    metrics_->weight_bytes->Set(static_cast<double>(worker_->weight_bytes()));
    metrics_->kv_blocks->Set(worker_->num_kv_blocks());
    v1::LinkRequest ready;
    ready.mutable_group_ready()->set_epoch(seat.epoch);
    ready.mutable_group_ready()->set_num_kv_blocks(worker_->num_kv_blocks());
    ready.mutable_group_ready()->set_weight_bytes(worker_->weight_bytes());
    send_(std::move(ready));
  }

  void Execute(const v1::StepPlan& message) {
    if (message.group_epoch() != epoch_) return;  // of a group that is over
    StepPlan head;
    const RankPlan part = FromProto(message, &head);
    absl::StatusOr<RankResult> result = worker_->Execute(head, part, absl::Milliseconds(message.timeout_ms()));
    if (!result.ok()) return Fault(epoch_, result.status());
    metrics_->ObserveStep(*result);
    for (v1::StepPart& piece : CutIntoParts(head, &*result)) {
      v1::LinkRequest before;
      *before.mutable_step_part() = std::move(piece);
      send_(std::move(before));
    }
    v1::LinkRequest reply;
    *reply.mutable_step_result() = ToProto(head, *result);
    send_(std::move(reply));
  }

  void set_settings(EngineSettings settings) { settings_ = settings; }
  // Not OK: this worker cannot serve the model, and never has.
  const absl::Status& fatal() const { return fatal_; }

 private:
  // Errors of the model's files or of the memory, as opposed to those of the network and of other workers.
  static bool CannotServe(const absl::Status& status) {
    return absl::IsInvalidArgument(status) || absl::IsResourceExhausted(status) || absl::IsDataLoss(status) ||
           absl::IsNotFound(status) || absl::IsUnimplemented(status);
  }

  void Fault(int64_t epoch, const absl::Status& status) {
    LogWarn("epoch ", epoch, " ends here: ", status.message());
    metrics_->group_faults->Increment();
    metrics_->rank->Set(-1);
    worker_->Leave();
    epoch_ = 0;
    v1::LinkRequest fault;
    fault.mutable_group_fault()->set_epoch(epoch);
    fault.mutable_group_fault()->set_message(std::string(status.message()));
    fault.mutable_group_fault()->set_code(static_cast<int>(status.code()));
    send_(std::move(fault));
  }

  Worker* const worker_;
  WorkerMetrics* const metrics_;
  const std::shared_ptr<grpc::Channel> channel_;  // shared with the session
  const Place place_;
  bool* const served_;
  SendFn send_;
  EngineSettings settings_;
  int64_t epoch_ = 0;  // 0 = in no group
  absl::Status fatal_;
};

}  // namespace

absl::Status WorkerLink::RunSession() {
  ASSIGN_OR_RETURN(Place place, FindPlace(options_));
  auto session = std::make_shared<Session>(Connect(options_.server), worker_);
  {
    absl::MutexLock lock(&mu_);
    if (stopping_) return absl::OkStatus();
    session_ = session;
  }
  worker_->ForgetEpochs();
  session->Start();
  session->Send(RegisterMessage(options_, *worker_, place.address));
  Duty duty(worker_, metrics_, session->channel(), std::move(place), &served_,
            [&session](v1::LinkRequest message) { return session->Send(std::move(message)); });
  std::unique_ptr<Heart> heart;
  v1::LinkResponse command;
  while (session->Pop(&command)) {
    if (command.has_registered()) {
      duty.set_settings(FromProto(command.registered().options()));
      heart = std::make_unique<Heart>(absl::Milliseconds(command.registered().heartbeat_ms()),
                                      [&session](int64_t sequence) {
                                        v1::LinkRequest beat;
                                        beat.mutable_heartbeat()->set_sequence(sequence);
                                        beat.mutable_heartbeat()->set_rss_bytes(ResidentBytes());
                                        session->Send(std::move(beat));
                                      });
    } else if (command.has_join_group()) {
      duty.Join(command.join_group());
    } else if (command.has_step_plan()) {
      duty.Execute(command.step_plan());
    } else if (command.has_shutdown()) {
      LogInfo("the server says: ", command.shutdown().reason());
      Stop();
    }
    if (!duty.fatal().ok()) session->Close();
  }
  heart.reset();
  worker_->Leave();
  const grpc::Status status = session->WaitDone();
  absl::MutexLock lock(&mu_);
  session_ = nullptr;
  if (!duty.fatal().ok()) return duty.fatal();
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                      status.error_message().empty() ? "the link ended" : status.error_message());
}

}  // namespace switchyard
