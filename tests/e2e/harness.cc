#include "tests/e2e/harness.h"

#include <netdb.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <iostream>
#include <random>

#include "absl/strings/str_cat.h"
#include "grpcpp/create_channel.h"
#include "gtest/gtest.h"
#include "proto/support/host_port.h"

namespace switchyard {
namespace {

constexpr char kAddressMark[] = "gRPC on ", kAdminMark[] = "jobs and administration on ", kWorkerMark[] = "workers on ";
constexpr char kMetricsMark[] = "metrics on http";

// Returns the text after `mark` up to one of `ends`.
std::string After(const std::string& text, const std::string& mark, const char* ends) {
  const size_t at = text.find(mark);
  if (at == std::string::npos) return "";
  const size_t begin = at + mark.size();
  return text.substr(begin, text.find_first_of(ends, begin) - begin);
}

}  // namespace

std::unique_ptr<TestServer> TestServer::Start(const Options& options) {
  auto server = std::unique_ptr<TestServer>(new TestServer());
  std::vector<std::string> args = {Binary("switchyard-server"), "--model=" + options.model, "--port=0",
                                   "--metrics_port=0", absl::StrCat("--local_workers=", options.workers)};
  args.insert(args.end(), options.flags.begin(), options.flags.end());
  server->process_ = Process::Start(args);
  if (server->process_ == nullptr || !server->process_->WaitForOutput(kMetricsMark, kStartLimit)) {
    ADD_FAILURE() << args[0] << " did not start:\n" << (server->process_ ? server->process_->Output() : "cannot fork");
    return nullptr;
  }
  const std::string log = server->process_->Output();
  server->address_ = After(log, kAddressMark, ",\n");
  server->admin_address_ = After(log, kAdminMark, ",\n");
  server->worker_address_ = After(log, absl::StrCat(", ", kWorkerMark), ",\n");
  // "://" or "s://"
  server->metrics_address_ = After(After(log, kMetricsMark, " \n"), "://", "/");
  server->http_address_ = After(After(log, "HTTP on ", ",\n"), "://", ",");
  server->tls_ = options.tls;
  server->client_ = server->Connect(options.request_timeout);
  if (server->client_ == nullptr || (options.wait_ready && !server->WaitReady(true, kStartLimit))) {
    ADD_FAILURE() << "the server did not become ready:\n" << server->process_->Output();
    return nullptr;
  }
  return server;
}

TestServer::~TestServer() {
  if (testing::Test::HasFailure() && process_ != nullptr)
    std::cerr << "---- the server's log ----\n" << process_->Output() << "----\n";
  client_.reset();
  admin_client_.reset();
  if (process_ != nullptr) process_->Signal(SIGKILL);  // its workers die with it; another test covers an orderly stop
}

std::unique_ptr<client::Client> TestServer::Connect(absl::Duration request_timeout) const {
  client::ClientOptions options;
  options.connect_timeout = kStartLimit;
  options.generate_timeout = request_timeout;
  options.tls = tls_;
  auto client = client::Client::Connect(address_, options);
  if (client.ok()) return *std::move(client);
  ADD_FAILURE() << client.status();
  return nullptr;
}

client::Client& TestServer::admin_client() {
  if (admin_client_ == nullptr) {
    client::ClientOptions options;
    options.connect_timeout = kStartLimit;
    options.tls = tls_;
    auto client = client::Client::Connect(admin_address_, options);
    EXPECT_TRUE(client.ok()) << client.status();
    admin_client_ = *std::move(client);
  }
  return *admin_client_;
}

std::shared_ptr<grpc::Channel> TestServer::worker_channel() const {
  return grpc::CreateChannel(worker_address_, grpc::InsecureChannelCredentials());
}

std::vector<pid_t> TestServer::WorkerPids() {
  std::vector<pid_t> pids;
  const auto load = client_->GetLoad();
  if (!load.ok()) return pids;
  for (const v1::WorkerLoad& worker : load->workers()) {
    if (worker.rank() < 0) continue;
    pids.resize(std::max(pids.size(), static_cast<size_t>(worker.rank()) + 1));
    pids[static_cast<size_t>(worker.rank())] = static_cast<pid_t>(worker.pid());
  }
  return pids;
}

bool TestServer::WaitReady(bool ready, absl::Duration timeout) {
  return WaitUntil(
             [&] {
               const auto serving = client_->IsServing("readiness");
               return (serving.ok() && *serving == ready) || process_->Wait(absl::ZeroDuration()).has_value();
             },
             timeout) &&
         !process_->Wait(absl::ZeroDuration()).has_value();
}

bool TestServer::WaitIdle(absl::Duration timeout) {
  return WaitUntil(
      [&] {
        const auto load = client_->GetLoad();
        if (!load.ok() || load->running_requests() != 0 || load->waiting_requests() != 0) return false;
        for (const v1::WorkerLoad& worker : load->workers()) {
          if (worker.kv_blocks_used() != 0 || worker.running_requests() != 0) return false;
        }
        return true;
      },
      timeout);
}

void StreamSeen::Add(const v1::GenerateResponse& message) {
  if (!message.request_id().empty()) {
    request_id = message.request_id();
    model = message.model();
    seed = message.seed();
  }
  for (const v1::PositionLogprobs& position : message.prompt_logprobs()) prompt_logprobs.push_back(position);
  const auto at = static_cast<size_t>(message.choice());
  if (at >= choices.size()) choices.resize(at + 1);
  Choice& choice = choices[at];
  if (choice.finished) fault = absl::StrCat("choice ", at, " goes on after its finish");
  if (message.token_ids_size() > 0 && static_cast<size_t>(message.index()) != choice.token_ids.size()) {
    fault = absl::StrCat("choice ", at, ": index ", message.index(), " after ", choice.token_ids.size(), " tokens");
  }
  choice.token_ids.insert(choice.token_ids.end(), message.token_ids().begin(), message.token_ids().end());
  choice.text += message.text();
  choice.logprobs.insert(choice.logprobs.end(), message.logprobs().begin(), message.logprobs().end());
  if (message.has_expert_paths()) {
    v1::ExpertPaths& paths = choice.paths;
    const v1::ExpertPaths& more = message.expert_paths();
    const size_t row_bytes = static_cast<size_t>(more.num_moe_layers()) * static_cast<size_t>(more.top_k()) * 2;
    if (paths.experts().empty()) paths.set_first_position(more.first_position());
    const size_t next = static_cast<size_t>(paths.first_position()) + paths.experts().size() / row_bytes;
    if (static_cast<size_t>(more.first_position()) != next || more.experts().size() % row_bytes != 0) {
      fault = absl::StrCat("choice ", at, ": expert paths of position ", more.first_position(), ", ", next, " is next");
    }
    paths.set_num_moe_layers(more.num_moe_layers());
    paths.set_top_k(more.top_k());
    paths.mutable_experts()->append(more.experts());
  }
  if (message.has_finish()) {
    choice.finished = true;
    choice.finish = message.finish();
  }
}

StreamSeen Generate(client::Client& client, const v1::GenerateRequest& request) {
  return GenerateAll(client, {request})[0];
}

std::vector<StreamSeen> GenerateAll(client::Client& client, const std::vector<v1::GenerateRequest>& requests) {
  std::vector<StreamSeen> seen(requests.size());
  std::vector<std::unique_ptr<client::GenerateStream>> streams;
  for (size_t i = 0; i < requests.size(); ++i) {
    StreamSeen* one = &seen[i];
    streams.push_back(client.StartGenerate(
        requests[i],
        {.on_message = [one](const v1::GenerateResponse& message) { one->Add(message); }, .on_done = nullptr}));
  }
  for (size_t i = 0; i < requests.size(); ++i) seen[i].end = streams[i]->Wait();
  return seen;
}

v1::GenerateRequest TextRequest(const std::string& text, int max_tokens) {
  v1::GenerateRequest request;
  request.set_text(text);
  request.set_max_tokens(max_tokens);
  request.set_ignore_eos(true);
  request.mutable_sampling()->set_temperature(0);
  return request;
}

v1::GenerateRequest IdsRequest(const std::vector<int32_t>& ids, int max_tokens) {
  v1::GenerateRequest request = TextRequest("", max_tokens);
  request.mutable_token_ids()->mutable_ids()->Assign(ids.begin(), ids.end());
  return request;
}

std::vector<int32_t> RandomIds(int length, int vocab, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<int32_t> ids(static_cast<size_t>(length));
  for (int32_t& id : ids) id = 3 + static_cast<int32_t>(random() % static_cast<uint64_t>(vocab - 3));
  return ids;
}

std::string Scrape(const std::string& address) {
  const auto at = rpc::SplitHostPort(address);
  if (!at.ok()) return "";
  addrinfo hints = {};
  hints.ai_flags = AI_NUMERICHOST;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(at->host.c_str(), absl::StrCat(at->port).c_str(), &hints, &found) != 0) return "";
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> to(found, &freeaddrinfo);
  const int fd = socket(to->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const timeval limit = {absl::ToInt64Seconds(kStartLimit), 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  std::string page;
  const std::string get = absl::StrCat("GET /metrics HTTP/1.0\r\nHost: ", address, "\r\nConnection: close\r\n\r\n");
  if (connect(fd, to->ai_addr, to->ai_addrlen) == 0 &&
      write(fd, get.data(), get.size()) == static_cast<ssize_t>(get.size())) {
    char buffer[8192];
    for (ssize_t got; (got = read(fd, buffer, sizeof(buffer))) > 0;) page.append(buffer, static_cast<size_t>(got));
  }
  close(fd);
  const size_t body = page.find("\r\n\r\n");
  return body == std::string::npos ? "" : page.substr(body + 4);
}

}  // namespace switchyard
