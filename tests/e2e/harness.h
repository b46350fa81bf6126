// Real servers and workers for end-to-end tests, and the streams that clients get from them.
//
// A TestServer is one `switchyard-server` on free ports of 127.0.0.1 with its local workers.  Starting waits until the
// health service says that it is ready.  Its log is printed when a test has failed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "clients/cpp/client.h"
#include "grpcpp/channel.h"
#include "proto/support/channel_tls.h"
#include "switchyard/v1/admin.grpc.pb.h"
#include "switchyard/v1/inference.grpc.pb.h"
#include "switchyard/v1/training.grpc.pb.h"
#include "tests/e2e/process.h"

namespace switchyard {

inline constexpr char kDemoModel[] = "deploy/demo-model";                 // text, context 1024
inline constexpr char kTinyModel[] = "tests/golden/models/qwen3-qknorm";  // token ids only, context 640, fp32-exact
inline constexpr absl::Duration kStartLimit = absl::Seconds(60);

class TestServer {
 public:
  struct Options {
    std::string model = kDemoModel;
    int workers = 1;
    std::vector<std::string> flags = {};  // further ones of switchyard-server
    absl::Duration request_timeout = absl::Seconds(120);
    bool wait_ready = true;  // false: workers from elsewhere are still to come
    rpc::TlsFiles tls = {};  // of the clients; the server's files are in `flags`
  };

  // Null, with a test failure that shows the log, when it does not become ready.
  static std::unique_ptr<TestServer> Start(const Options& options);
  ~TestServer();

  client::Client& client() { return *client_; }
  client::Client& admin_client();  // of the port of jobs and administration
  Process& process() { return *process_; }
  const std::string& address() const { return address_; }
  const std::string& admin_address() const { return admin_address_; }
  const std::string& worker_address() const { return worker_address_; }  // "" if no worker from elsewhere is expected
  const std::string& metrics_address() const { return metrics_address_; }
  const std::string& http_address() const { return http_address_; }
  // Channels to the services of each port.
  const std::shared_ptr<grpc::Channel>& channel() { return client().channel(); }
  const std::shared_ptr<grpc::Channel>& admin_channel() { return admin_client().channel(); }
  std::shared_ptr<grpc::Channel> worker_channel() const;  // a new one, in plaintext
  // A client with other limits or a connection of its own.
  std::unique_ptr<client::Client> Connect(absl::Duration request_timeout = absl::Seconds(120)) const;

  // The workers' processes, by rank; 0 where there is none (kill would take that for the test's own group).
  std::vector<pid_t> WorkerPids();
  bool WaitReady(bool ready, absl::Duration timeout);
  // Waits until there are no requests, and only cached KV blocks; returns false after `timeout`.
  bool WaitIdle(absl::Duration timeout = absl::Seconds(5));

 private:
  TestServer() = default;
  std::unique_ptr<Process> process_;
  rpc::TlsFiles tls_;
  std::string address_, admin_address_, worker_address_, metrics_address_, http_address_;
  std::unique_ptr<client::Client> client_, admin_client_;
};

// One stream as a client saw it.  Checks that indices and expert paths have no gap and no repeat, and that nothing
// follows a finish (`fault` describes a failure).
struct StreamSeen {
  struct Choice {
    std::vector<int32_t> token_ids;
    std::string text;
    std::vector<v1::PositionLogprobs> logprobs;
    v1::ExpertPaths paths;  // all of them
    bool finished = false;
    v1::Finish finish;
  };
  absl::Status end;
  std::string fault;
  std::string request_id;
  std::string model;
  uint64_t seed = 0;
  std::vector<Choice> choices;
  std::vector<v1::PositionLogprobs> prompt_logprobs;

  void Add(const v1::GenerateResponse& message);
  bool ok() const { return end.ok() && fault.empty(); }
};
StreamSeen Generate(client::Client& client, const v1::GenerateRequest& request);
// Sends all requests at once, over one connection; returns the answers in the requests' order.
std::vector<StreamSeen> GenerateAll(client::Client& client, const std::vector<v1::GenerateRequest>& requests);

// Requests.
v1::GenerateRequest TextRequest(const std::string& text, int max_tokens);  // greedy, ignoring eos
v1::GenerateRequest IdsRequest(const std::vector<int32_t>& ids, int max_tokens);
// `length` ids in [3, vocab) drawn from `seed`.
std::vector<int32_t> RandomIds(int length, int vocab, uint64_t seed);

// GET http://address/metrics over a plain socket; "" on failure.
std::string Scrape(const std::string& address);

}  // namespace switchyard
