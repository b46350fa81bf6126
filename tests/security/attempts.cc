#include "tests/security/attempts.h"

#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "proto/support/errors.h"
#include "tests/e2e/http2_frames.h"
#include "tests/e2e/raw_connection.h"
#include "tests/server/keys/test_keys.h"

namespace switchyard {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);

// The number in a block of headers that gRPC sends as text, once for a connection.
std::optional<int> GrpcStatusIn(const std::string& block) {
  constexpr char kName[] = "grpc-status";
  const size_t at = block.find(kName);
  if (at == std::string::npos) return std::nullopt;
  const size_t value = at + sizeof(kName) - 1;
  const size_t length = value < block.size() ? static_cast<uint8_t>(block[value]) : 0;
  int code = -1;
  if (!absl::SimpleAtoi(block.substr(value + 1, length), &code)) return std::nullopt;
  return code;
}

std::string FirstLine(const std::string& text) { return text.substr(0, text.find_first_of("\r\n")); }

}  // namespace

TestServer* AttackedServers::open() {
  if (open_ != nullptr) return open_.get();
  if (folder_.empty()) {
    std::string pattern = (std::filesystem::temp_directory_path() / "attempts.XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
  }
  std::ofstream(folder_ + "/token") << kJoinToken;
  chmod((folder_ + "/token").c_str(), 0600);
  open_ = TestServer::Start(
      {.model = kDemoModel, .workers = 1, .flags = {"--threads=1", "--join_token_file=" + folder_ + "/token"}});
  return open_.get();
}

TestServer* AttackedServers::keyed() {
  if (open() == nullptr || keyed_ != nullptr) return keyed_ == nullptr ? nullptr : keyed_->server();
  const std::string path = folder_ + "/keys";
  std::ofstream(path) << server::KeyLine("alice", "user") << server::KeyLine("bob", "user")
                      << server::KeyLine("poor", "user", "requests_per_minute=1") << server::KeyLine("tina", "trainer")
                      << server::KeyLine("theo", "trainer") << server::KeyLine("root", "admin");
  chmod(path.c_str(), 0600);
  keyed_ = std::make_unique<TrainingServer>(2, std::vector<std::string>{"--threads=1", "--api_keys_file=" + path});
  if (!keyed_->Start()) keyed_ = nullptr;
  return keyed_ == nullptr ? nullptr : keyed_->server();
}

const std::string& AttackedServers::job_of_tina() {
  if (!job_.empty() || keyed() == nullptr) return job_;
  v1::SubmitJobRequest request;
  *request.mutable_spec() = TrainingServer::TinySpec();
  v1::SubmitJobResponse response;
  const auto stub = v1::TrainingService::NewStub(keyed()->admin_channel());
  const grpc::Status status = stub->SubmitJob(server::ContextOf("tina").get(), request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  job_ = response.job().id();
  return job_;
}

void AttackedServers::Stop() {
  if (on_stop_) on_stop_();
  open_ = nullptr;
  keyed_ = nullptr;
  if (!folder_.empty()) std::filesystem::remove_all(folder_);
}

std::string AttackedServers::DifferenceOf(TestServer* server, const std::string& key) {
  const RawOptions options = {.metadata = {{"authorization", "Bearer " + key}}};
  const RawAnswer answer = RawCall(server->client().channel(), kGenerateMethod,
                                   TextRequest("The", 2).SerializeAsString(), kPatience, options);
  if (!answer.status.ok()) return absl::StrCat("the server answers no more: ", InWords(answer.status));
  const RawAnswer load =
      RawCall(server->client().channel(), "/switchyard.v1.InferenceService/GetLoad", "", kPatience, options);
  v1::GetLoadResponse seen;
  if (load.messages.empty() || !seen.ParseFromString(load.messages[0])) return "the server does not say its load";
  return seen.group_epoch() == 1 ? "" : absl::StrCat("the group is formed for the ", seen.group_epoch(), "th time");
}

std::string AttackedServers::Difference() {
  if (open_ != nullptr) {
    if (const std::string difference = DifferenceOf(open_.get(), ""); !difference.empty()) return difference;
  }
  return keyed_ == nullptr ? "" : DifferenceOf(keyed_->server(), "key-root");
}

std::string AttackedServers::CallAs(const std::string& name, const std::string& method, const std::string& bytes) {
  RawOptions options;
  if (!name.empty()) options.metadata = {{"authorization", "Bearer key-" + name}};
  if (keyed() == nullptr) return "no server";
  const auto& channel = absl::StartsWith(method, "InferenceService") ? keyed()->channel() : keyed()->admin_channel();
  return InWords(RawCall(channel, "/switchyard.v1." + method, bytes, kPatience, options).status);
}

std::string InWords(const grpc::Status& status) {
  if (status.ok()) return "served";
  return absl::StrCat(absl::StatusCodeToString(static_cast<absl::StatusCode>(status.error_code())), " ",
                      rpc::ViewError(status).reason, ": ", status.error_message());
}

std::string AfterFrames(const std::string& address, const std::string& bytes, bool answers, absl::Duration limit) {
  RawConnection connection(address, {.answers = answers});
  connection.Send(bytes, limit);
  std::string answer;
  for (const absl::Time end = absl::Now() + limit; absl::Now() < end && !connection.is_ended();) {
    connection.Pump(absl::Milliseconds(20));
    const RawConnection::Seen& seen = connection.seen();
    for (const auto& [stream, block] : seen.headers) {
      if (const std::optional<int> status = GrpcStatusIn(block)) return absl::StrCat("grpc-status ", *status);
    }
    for (const auto& [stream, code] : seen.resets) return absl::StrCat("reset ", code);
    if (seen.goaway) answer = absl::StrCat("goaway ", *seen.goaway, " ");
  }
  return answer + (connection.is_ended() ? "ended" : answer.empty() ? "nothing" : "");
}

std::string AfterHttp(const std::string& address, const std::string& bytes, absl::Duration limit) {
  RawConnection connection(address);
  connection.Send(bytes, limit);
  for (const absl::Time end = absl::Now() + limit; absl::Now() < end && !connection.is_ended();) {
    connection.Pump(absl::Milliseconds(20));
    if (connection.seen().bytes.find('\n') != std::string::npos) break;
  }
  const std::string line = FirstLine(connection.seen().bytes);
  if (line.rfind("HTTP/", 0) == 0) return line;
  return connection.is_ended() ? "ended" : "nothing";
}

std::string AfterStart(const std::vector<std::string>& args) {
  const std::unique_ptr<Process> process = Process::Start(args);
  if (process == nullptr) return "not started";
  const std::optional<int> code = process->Wait(kPatience);
  return code ? absl::StrCat("exit ", *code, ": ", process->Output()) : "it runs";
}

}  // namespace switchyard
