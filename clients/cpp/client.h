// A typed client of a Switchyard server.
//
//   ASSIGN_OR_RETURN(auto client, Client::Connect("127.0.0.1:50051"));
//   v1::GenerateRequest request;
//   request.set_text("The sea is");
//   // needs #include "switchyard/v1/inference.pb.h": this header only declares messages
//   absl::Status end = client->Generate(request, [](const v1::GenerateResponse& m) { std::cout << m.text(); });
//
// Thread-safe.  Each call has a deadline, and keepalive pings find a silent peer within 30 s.  client_error.h explains
// errors.  Without ClientOptions::tls connections are plaintext, so a key (api_key) can be read on the way.  The client
// never retries: RetryInfo says when another try makes sense.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "clients/cpp/generate_stream.h"
#include "clients/cpp/messages_fwd.h"
#include "proto/support/channel_tls.h"

namespace grpc {
class Channel;
}

namespace switchyard::client {

struct ClientOptions {
  absl::Duration connect_timeout = absl::Seconds(5);
  absl::Duration call_timeout = absl::Seconds(30);       // of every call but those that stream
  absl::Duration generate_timeout = absl::Seconds(300);  // of a whole stream; the server's own limit is an hour
  absl::Duration watch_timeout = absl::Minutes(30);      // of one stream of WatchJob; callers then start another
  rpc::TlsFiles tls = {};                                // Connect reads the files; BAD_INPUT if one is wrong
  std::string api_key = {};  // sent with every call; empty: none.  Connect refuses one that is no key (BAD_INPUT)
};

class Client {
 public:
  // `address` is HOST:PORT, with an IPv6 address in brackets.  Blocks until connected; UNAVAILABLE (UNREACHABLE) as
  // soon as all of the host's addresses refuse.
  static absl::StatusOr<std::unique_ptr<Client>> Connect(const std::string& address, const ClientOptions& options = {});
  ~Client();

  // Starts a stream and returns at once.
  std::unique_ptr<GenerateStream> StartGenerate(const v1::GenerateRequest& request, GenerateStream::Events events);
  // Blocks until the stream has ended.  `on_message` runs on another thread, but never after Generate has returned.
  absl::Status Generate(const v1::GenerateRequest& request,
                        std::function<void(const v1::GenerateResponse&)> on_message);

  absl::Status Abort(const std::string& request_id);
  absl::StatusOr<v1::TokenizeResponse> Tokenize(const v1::TokenizeRequest& request);
  absl::StatusOr<v1::DetokenizeResponse> Detokenize(const v1::DetokenizeRequest& request);
  absl::StatusOr<v1::GetModelInfoResponse> GetModelInfo(const std::string& model = "");
  absl::StatusOr<v1::GetLoadResponse> GetLoad();
  absl::StatusOr<v1::GetExpertsResponse> GetExperts(const v1::GetExpertsRequest& request);
  absl::StatusOr<v1::GetPlanResponse> GetPlan(const std::string& model = "");
  // Returns the profile's file, joined from its parts.  `on_message` gets the messages about progress, on this thread;
  // may be null.
  absl::StatusOr<std::string> GetProfile(const v1::GetProfileRequest& request,
                                         const std::function<void(const v1::GetProfileResponse&)>& on_message);

  // Training jobs; proto/switchyard/v1/training.proto documents each call.
  absl::StatusOr<v1::SubmitJobResponse> SubmitJob(const v1::SubmitJobRequest& request);
  absl::StatusOr<v1::ForkJobResponse> ForkJob(const v1::ForkJobRequest& request);
  absl::StatusOr<v1::Job> GetJob(const std::string& id);
  absl::StatusOr<v1::ListJobsResponse> ListJobs(const v1::ListJobsRequest& request);
  absl::StatusOr<v1::Job> PauseJob(const std::string& id);
  absl::StatusOr<v1::Job> ResumeJob(const v1::ResumeJobRequest& request);
  absl::StatusOr<v1::Job> CancelJob(const std::string& id);
  absl::StatusOr<v1::DeleteJobResponse> DeleteJob(const std::string& id);
  // Blocks until the job is over, at most watch_timeout; `on_job` runs on this thread.
  absl::Status WatchJob(const v1::WatchJobRequest& request, const std::function<void(const v1::Job&)>& on_job);
  // Blocks until the data is packed, at most generate_timeout; returns the last message.  `on_message` runs on this
  // thread.
  absl::StatusOr<v1::PackDataResponse> PackData(const v1::PackDataRequest& request,
                                                const std::function<void(const v1::PackDataResponse&)>& on_message);

  // Asks the health service: `service` "" = whether the server lives, "readiness" = whether the model can answer.
  absl::StatusOr<bool> IsServing(const std::string& service);

  const std::string& address() const { return address_; }
  const ClientOptions& options() const { return options_; }
  // The channel, for calls that this class does not wrap.
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }

 private:
  Client(std::string address, ClientOptions options, std::shared_ptr<grpc::Channel> channel);

  const std::string address_;
  const ClientOptions options_;
  const std::shared_ptr<grpc::Channel> channel_;
  struct Stubs;
  const std::unique_ptr<const Stubs> stubs_;
};

}  // namespace switchyard::client
