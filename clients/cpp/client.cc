#include "clients/cpp/client.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/notification.h"
#include "clients/cpp/client_error.h"
#include "clients/cpp/port_probe.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/support/client_callback.h"
#include "proto/support/api_key.h"
#include "proto/support/host_port.h"
#include "switchyard/v1/admin.grpc.pb.h"
#include "switchyard/v1/inference.grpc.pb.h"
#include "switchyard/v1/training.grpc.pb.h"

namespace switchyard::client {
namespace {

constexpr int kMaxMessageBytes = 256 << 20;  // the server stays below 4 MiB; other servers may not

constexpr absl::Duration kProbeTimeout = absl::Seconds(1);

std::chrono::system_clock::time_point DeadlineIn(absl::Duration duration) {
  return std::chrono::system_clock::now() + absl::ToChronoMilliseconds(duration);
}

// Sets what every call has: its time limit, and the client's key.
void SetUp(absl::Duration timeout, const std::string& api_key, grpc::ClientContext* context) {
  context->set_deadline(DeadlineIn(timeout));
  if (!api_key.empty()) context->AddMetadata(rpc::kAuthorization, absl::StrCat(rpc::kBearer, api_key));
}

grpc::ChannelArguments ChannelSettings() {
  grpc::ChannelArguments args;
  args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 10'000);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20'000);  // a server on a busy machine may not answer for seconds
  args.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  args.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // Ignores a proxy in the environment, through which gRPC would send even loopback addresses.
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  args.SetMaxReceiveMessageSize(kMaxMessageBytes);
  return args;
}

// Accepts HOST:PORT, or one of gRPC's own targets such as dns:///NAME:PORT.
absl::Status CheckAddress(absl::string_view address) {
  if (absl::StrContains(address, ":///")) return absl::OkStatus();
  const absl::Status status = rpc::SplitHostPort(address).status();
  if (status.ok()) return status;
  return ClientError(absl::StatusCode::kInvalidArgument, "BAD_INPUT", absl::StrCat("server ", status.message()));
}

// Returns why what listens there does not speak gRPC; `no_tls`: or at least not by TLS.
std::string WhyNoGrpc(absl::string_view address, bool no_tls) {
  const PortProbe probe = ProbePort(address, kProbeTimeout);
  if (!probe.text.empty()) return probe.text;
  switch (probe.speaks) {
    case PortProbe::Speaks::kTls:
      return "it speaks TLS; give --tls_ca=FILE, or --tls for a certificate of a known CA";
    case PortProbe::Speaks::kHttp1:
      return "what listens there speaks HTTP/1, not gRPC: another program, or another port of the server";
    case PortProbe::Speaks::kHttp2:
      if (no_tls) return "it does not speak TLS; leave --tls and --tls_ca away";
      break;
    case PortProbe::Speaks::kNothing:
      break;
  }
  if (no_tls) return "what listens there speaks neither TLS nor gRPC";
  return "it closed the connection at once: it has too many (--max_connections), wants TLS (--tls), or does not speak "
         "gRPC";
}

// Returns why the last try to connect failed; gRPC reports that only to calls, so this makes one.  Empty: connected
// now.
std::string WhyNotConnected(const std::shared_ptr<grpc::Channel>& channel, absl::string_view address) {
  grpc::ClientContext context;
  context.set_deadline(DeadlineIn(absl::Seconds(1)));
  grpc::health::v1::HealthCheckResponse response;
  const grpc::Status status =
      grpc::health::v1::Health::NewStub(channel)->Check(&context, grpc::health::v1::HealthCheckRequest(), &response);
  if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) return "no answer";
  if (status.error_code() != grpc::StatusCode::UNAVAILABLE) return "";  // any other answer means that a server is there
  const std::string& text = status.error_message();
  const auto says = [&text](absl::string_view part) { return absl::StrContains(text, part); };
  if (says("DNS resolution failed")) {
    const absl::StatusOr<rpc::HostPort> parts = rpc::SplitHostPort(address);
    return absl::StrCat("no address is known for \"", parts.ok() ? parts->host : address, "\" (DNS)");
  }
  if (says("Connection refused")) return "the connection was refused";
  if (says("CERTIFICATE_VERIFY_FAILED") || says("certificate verify failed")) {
    return "TLS: its certificate is not by a CA that is known here (--tls_ca), or has expired";
  }
  if (says("Hostname Verification") || says("Peer name")) {
    return "TLS: its certificate is for another name or address than this one";
  }
  if (says("missing selected ALPN")) {
    return "it speaks TLS, but not gRPC: is that the server's HTTP port? gRPC is on its --port";
  }
  const bool no_tls = says("wrong version number") || says("WRONG_VERSION_NUMBER");
  if (says("Ssl handshake failed") && !no_tls) {
    return absl::StrCat("the TLS handshake failed (does the server want a certificate, --tls_cert?): ", text);
  }
  // "last error: OK": the other end closed right behind its first bytes.
  const bool no_grpc = says("http1.x server") || says("parsing HTTP/2") || says("Socket closed") ||
                       says("Connection reset") || says("last error: OK") || no_tls;
  if (no_grpc) return WhyNoGrpc(address, no_tls);
  return absl::StrCat("the connection failed: ", text);
}

// Waits until the channel is connected; the error says why it is not.  Returns early if every address refuses.
absl::Status WaitForConnection(const std::shared_ptr<grpc::Channel>& channel, const std::string& address,
                               absl::Duration timeout) {
  const auto deadline = DeadlineIn(timeout);
  for (;;) {
    const grpc_connectivity_state state = channel->GetState(/*try_to_connect=*/true);
    if (state == GRPC_CHANNEL_READY) return absl::OkStatus();
    if (state == GRPC_CHANNEL_TRANSIENT_FAILURE || state == GRPC_CHANNEL_SHUTDOWN) {
      const std::string why = WhyNotConnected(channel, address);
      if (why.empty()) return absl::OkStatus();
      return ClientError(absl::StatusCode::kUnavailable, "UNREACHABLE",
                         absl::StrCat("cannot reach ", address, ": ", why));
    }
    if (!channel->WaitForStateChange(state, deadline)) {
      return ClientError(absl::StatusCode::kUnavailable, "UNREACHABLE",
                         absl::StrCat("cannot reach ", address, ": no answer within ", absl::FormatDuration(timeout)));
    }
  }
}

// Makes a unary call within the client's time limit.
template <class Stub, class Request, class Response>
absl::StatusOr<Response> Unary(Stub* stub,
                               grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                               const Request& request, const Client& client) {
  grpc::ClientContext context;
  SetUp(client.options().call_timeout, client.options().api_key, &context);
  Response response;
  const grpc::Status status = (stub->*method)(&context, request, &response);
  if (!status.ok()) return FromGrpcStatus(status, client.address());
  return response;
}

// Makes a call that names a job and is answered with it.
template <class Request, class Response>
absl::StatusOr<v1::Job> OfJob(v1::TrainingService::Stub* stub,
                              grpc::Status (v1::TrainingService::Stub::*method)(grpc::ClientContext*, const Request&,
                                                                                Response*),
                              const std::string& id, const Client& client) {
  Request request;
  request.set_id(id);
  absl::StatusOr<Response> response = Unary(stub, method, request, client);
  if (!response.ok()) return response.status();
  return std::move(*response->mutable_job());
}

// A Generate call as a gRPC reactor.
class GenerateCall final : public GenerateStream, private grpc::ClientReadReactor<v1::GenerateResponse> {
 public:
  // Starts it.
  GenerateCall(v1::InferenceService::Stub* stub, const v1::GenerateRequest& request, Events events,
               const ClientOptions& options, std::string address)
      : request_(request), events_(std::move(events)), address_(std::move(address)) {
    SetUp(options.generate_timeout, options.api_key, &context_);
    stub->async()->Generate(&context_, &request_, this);
    StartRead(&message_);
    StartCall();
  }
  ~GenerateCall() override {
    if (!Done()) context_.TryCancel();
    done_.WaitForNotification();  // bounded: a cancelled call ends at once
  }

  void Cancel() override { context_.TryCancel(); }
  absl::Status Wait() override {
    done_.WaitForNotification();  // bounded by the call's deadline
    return status_;
  }
  bool Done() const override { return done_.HasBeenNotified(); }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return;  // the stream has ended: OnDone says how
    if (events_.on_message) events_.on_message(message_);
    message_.Clear();
    StartRead(&message_);
  }
  void OnDone(const grpc::Status& status) override {
    status_ = FromGrpcStatus(status, address_);
    if (events_.on_done) events_.on_done(status_);
    done_.Notify();  // last access: the owner may delete this now
  }

  const v1::GenerateRequest request_;
  const Events events_;
  const std::string address_;
  grpc::ClientContext context_;
  v1::GenerateResponse message_;
  absl::Status status_;  // written before done_
  absl::Notification done_;
};

}  // namespace

struct Client::Stubs {
  const std::unique_ptr<v1::InferenceService::Stub> inference;
  const std::unique_ptr<v1::AdminService::Stub> admin;
  const std::unique_ptr<v1::TrainingService::Stub> training;
  const std::unique_ptr<grpc::health::v1::Health::Stub> health;
};

Client::Client(std::string address, ClientOptions options, std::shared_ptr<grpc::Channel> channel)
    : address_(std::move(address)),
      options_(options),
      channel_(std::move(channel)),
      stubs_(new Stubs{v1::InferenceService::NewStub(channel_), v1::AdminService::NewStub(channel_),
                       v1::TrainingService::NewStub(channel_), grpc::health::v1::Health::NewStub(channel_)}) {}

Client::~Client() = default;

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(const std::string& address, const ClientOptions& options) {
  if (absl::Status status = CheckAddress(address); !status.ok()) return status;
  if (const absl::Status key = options.api_key.empty() ? absl::OkStatus() : rpc::CheckKeyText(options.api_key);
      !key.ok()) {
    return ClientError(key.code(), "BAD_INPUT", key.message());
  }
  const absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> tls = rpc::MakeChannelCredentials(options.tls);
  if (!tls.ok()) return ClientError(tls.status().code(), "BAD_INPUT", tls.status().message());
  std::shared_ptr<grpc::Channel> channel = grpc::CreateCustomChannel(address, *tls, ChannelSettings());
  if (absl::Status status = WaitForConnection(channel, address, options.connect_timeout); !status.ok()) return status;
  return std::unique_ptr<Client>(new Client(address, options, std::move(channel)));
}

std::unique_ptr<GenerateStream> Client::StartGenerate(const v1::GenerateRequest& request,
                                                      GenerateStream::Events events) {
  return std::make_unique<GenerateCall>(stubs_->inference.get(), request, std::move(events), options_, address_);
}

absl::Status Client::Generate(const v1::GenerateRequest& request,
                              std::function<void(const v1::GenerateResponse&)> on_message) {
  return StartGenerate(request, {.on_message = std::move(on_message), .on_done = nullptr})->Wait();
}

absl::Status Client::Abort(const std::string& request_id) {
  v1::AbortRequest request;
  request.set_request_id(request_id);
  return Unary(stubs_->inference.get(), &v1::InferenceService::Stub::Abort, request, *this).status();
}

absl::StatusOr<v1::TokenizeResponse> Client::Tokenize(const v1::TokenizeRequest& request) {
  return Unary(stubs_->inference.get(), &v1::InferenceService::Stub::Tokenize, request, *this);
}

absl::StatusOr<v1::DetokenizeResponse> Client::Detokenize(const v1::DetokenizeRequest& request) {
  return Unary(stubs_->inference.get(), &v1::InferenceService::Stub::Detokenize, request, *this);
}

absl::StatusOr<v1::GetModelInfoResponse> Client::GetModelInfo(const std::string& model) {
  v1::GetModelInfoRequest request;
  request.set_model(model);
  return Unary(stubs_->inference.get(), &v1::InferenceService::Stub::GetModelInfo, request, *this);
}

absl::StatusOr<v1::GetLoadResponse> Client::GetLoad() {
  return Unary(stubs_->inference.get(), &v1::InferenceService::Stub::GetLoad, v1::GetLoadRequest(), *this);
}

absl::StatusOr<v1::GetExpertsResponse> Client::GetExperts(const v1::GetExpertsRequest& request) {
  return Unary(stubs_->admin.get(), &v1::AdminService::Stub::GetExperts, request, *this);
}

absl::StatusOr<v1::GetPlanResponse> Client::GetPlan(const std::string& model) {
  v1::GetPlanRequest request;
  request.set_model(model);
  return Unary(stubs_->admin.get(), &v1::AdminService::Stub::GetPlan, request, *this);
}

absl::StatusOr<std::string> Client::GetProfile(const v1::GetProfileRequest& request,
                                               const std::function<void(const v1::GetProfileResponse&)>& on_message) {
  grpc::ClientContext context;
  SetUp(options_.generate_timeout, options_.api_key, &context);
  const auto reader = stubs_->admin->GetProfile(&context, request);
  std::string profile;
  int64_t total = 0;
  for (v1::GetProfileResponse message; reader->Read(&message);) {
    if (on_message != nullptr) on_message(message);
    profile += message.data();
    total = std::max(total, message.total_bytes());
  }
  if (const grpc::Status status = reader->Finish(); !status.ok()) return FromGrpcStatus(status, address_);
  if (static_cast<int64_t>(profile.size()) == total) return profile;
  return ClientError(absl::StatusCode::kDataLoss, "BAD_ANSWER",
                     absl::StrCat("the profile has ", total, " bytes, ", profile.size(), " came"));
}

absl::StatusOr<v1::SubmitJobResponse> Client::SubmitJob(const v1::SubmitJobRequest& request) {
  return Unary(stubs_->training.get(), &v1::TrainingService::Stub::SubmitJob, request, *this);
}

absl::StatusOr<v1::ForkJobResponse> Client::ForkJob(const v1::ForkJobRequest& request) {
  return Unary(stubs_->training.get(), &v1::TrainingService::Stub::ForkJob, request, *this);
}

absl::StatusOr<v1::Job> Client::GetJob(const std::string& id) {
  return OfJob(stubs_->training.get(), &v1::TrainingService::Stub::GetJob, id, *this);
}

absl::StatusOr<v1::ListJobsResponse> Client::ListJobs(const v1::ListJobsRequest& request) {
  return Unary(stubs_->training.get(), &v1::TrainingService::Stub::ListJobs, request, *this);
}

absl::StatusOr<v1::Job> Client::PauseJob(const std::string& id) {
  return OfJob(stubs_->training.get(), &v1::TrainingService::Stub::PauseJob, id, *this);
}

absl::StatusOr<v1::Job> Client::ResumeJob(const v1::ResumeJobRequest& request) {
  absl::StatusOr<v1::ResumeJobResponse> answer =
      Unary(stubs_->training.get(), &v1::TrainingService::Stub::ResumeJob, request, *this);
  if (!answer.ok()) return answer.status();
  return std::move(*answer->mutable_job());
}

absl::StatusOr<v1::Job> Client::CancelJob(const std::string& id) {
  return OfJob(stubs_->training.get(), &v1::TrainingService::Stub::CancelJob, id, *this);
}

absl::StatusOr<v1::DeleteJobResponse> Client::DeleteJob(const std::string& id) {
  v1::DeleteJobRequest request;
  request.set_id(id);
  return Unary(stubs_->training.get(), &v1::TrainingService::Stub::DeleteJob, request, *this);
}

absl::Status Client::WatchJob(const v1::WatchJobRequest& request, const std::function<void(const v1::Job&)>& on_job) {
  grpc::ClientContext context;
  SetUp(options_.watch_timeout, options_.api_key, &context);
  const auto reader = stubs_->training->WatchJob(&context, request);
  for (v1::WatchJobResponse message; reader->Read(&message);) on_job(message.job());
  return FromGrpcStatus(reader->Finish(), address_);
}

absl::StatusOr<v1::PackDataResponse> Client::PackData(
    const v1::PackDataRequest& request, const std::function<void(const v1::PackDataResponse&)>& on_message) {
  grpc::ClientContext context;
  SetUp(options_.generate_timeout, options_.api_key, &context);
  const auto reader = stubs_->training->PackData(&context, request);
  v1::PackDataResponse last;
  for (v1::PackDataResponse message; reader->Read(&message); last = message) on_message(message);
  if (const grpc::Status status = reader->Finish(); !status.ok()) return FromGrpcStatus(status, address_);
  if (last.done()) return last;
  return ClientError(absl::StatusCode::kDataLoss, "BAD_ANSWER", "the server did not say what it packed");
}

absl::StatusOr<bool> Client::IsServing(const std::string& service) {
  grpc::health::v1::HealthCheckRequest request;
  request.set_service(service);
  const auto response = Unary(stubs_->health.get(), &grpc::health::v1::Health::Stub::Check, request, *this);
  if (!response.ok()) return response.status();
  return response->status() == grpc::health::v1::HealthCheckResponse::SERVING;
}

}  // namespace switchyard::client
