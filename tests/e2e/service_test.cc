// The service around Generate: ids, abort, cancellation, deadlines, text calls, health, reflection, load.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>

#include "absl/synchronization/notification.h"
#include "clients/cpp/client_error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/metrics_page.h"
#include "tests/e2e/raw_call.h"
#include "tests/e2e/shared_server.h"

namespace switchyard {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr char kGenerate[] = "/switchyard.v1.InferenceService/Generate";

// A long stream that has begun.
class RunningStream {
 public:
  RunningStream(client::Client& client, v1::GenerateRequest request) {
    stream_ = client.StartGenerate(request, {.on_message =
                                                 [this](const v1::GenerateResponse& message) {
                                                   seen_.Add(message);
                                                   if (!began_.HasBeenNotified()) began_.Notify();
                                                 },
                                             .on_done = nullptr});
  }
  bool WaitBegun() { return began_.WaitForNotificationWithTimeout(absl::Seconds(30)); }
  client::GenerateStream& stream() { return *stream_; }
  const StreamSeen& End() {
    seen_.end = stream_->Wait();
    return seen_;
  }

 private:
  StreamSeen seen_;
  absl::Notification began_;
  std::unique_ptr<client::GenerateStream> stream_;
};

class ServiceTest : public SharedServerTest {
 protected:
  // Tokens that were made for whomever; those of an idle server are all in it.
  double TokensMade() { return Value(Scrape(server_->metrics_address()), "switchyard_generation_tokens_total"); }
};

TEST_F(ServiceTest, CancelFreesEverything) {
  ASSERT_TRUE(server_->WaitIdle());
  const double before = TokensMade();
  ASSERT_GE(before, 0);
  v1::GenerateRequest request = TextRequest("The", 900);
  request.set_n(8);  // seconds of work
  RunningStream running(*client_, request);
  ASSERT_TRUE(running.WaitBegun());
  // GetLoad is up to a tick old: it has to know of the request before it can say that the request is gone.
  ASSERT_TRUE(WaitUntil([&] { return TokensMade() > before; }, absl::Seconds(30)));
  running.stream().Cancel();
  EXPECT_EQ(running.End().end.code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(server_->WaitIdle());
  EXPECT_LT(TokensMade() - before, 8 * 900) << "its work went on to its end";
}

TEST_F(ServiceTest, ADeadlineEndsTheWork) {
  const auto hasty = server_->Connect(absl::Milliseconds(150));
  ASSERT_NE(hasty, nullptr);
  ASSERT_TRUE(server_->WaitIdle());
  const double before = TokensMade();
  ASSERT_GE(before, 0);
  v1::GenerateRequest request = TextRequest("The", 900);
  request.set_n(8);
  const StreamSeen seen = Generate(*hasty, request);
  EXPECT_EQ(seen.end.code(), absl::StatusCode::kDeadlineExceeded) << seen.end;
  EXPECT_TRUE(server_->WaitIdle());
  EXPECT_LT(TokensMade() - before, 8 * 900) << "its work went on to its end";
}

TEST_F(ServiceTest, ADeadlineOfThePastIsExceededAtOnce) {
  const RawAnswer answer =
      RawCall(server_->client().channel(), kGenerate, TextRequest("x", 4).SerializeAsString(), absl::Seconds(-1));
  EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
}

TEST_F(ServiceTest, ADeadlineBeyondTheLimitIsRefused) {
  const RawAnswer answer =
      RawCall(server_->client().channel(), kGenerate, TextRequest("x", 4).SerializeAsString(), absl::Hours(3));
  EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(answer.status.error_message(), HasSubstr("deadline"));
}

TEST_F(ServiceTest, ALiveRequestIdIsTakenAndAbortFreesIt) {
  v1::GenerateRequest request = TextRequest("The", 900);
  request.set_request_id("mine");
  RunningStream running(*client_, request);
  ASSERT_TRUE(running.WaitBegun());
  const StreamSeen twin = Generate(*client_, request);
  EXPECT_EQ(twin.end.code(), absl::StatusCode::kAlreadyExists) << twin.end;
  EXPECT_EQ(client::Describe(twin.end).reason, "REQUEST_EXISTS");
  EXPECT_TRUE(client_->Abort("mine").ok());
  const StreamSeen& seen = running.End();
  EXPECT_TRUE(seen.ok()) << seen.end;
  EXPECT_EQ(seen.request_id, "mine");
  ASSERT_FALSE(seen.choices.empty());
  EXPECT_EQ(seen.choices[0].finish.reason(), v1::FINISH_REASON_ABORT);
  EXPECT_EQ(static_cast<size_t>(seen.choices[0].finish.usage().completion_tokens()), seen.choices[0].token_ids.size());
  const absl::Status gone = client_->Abort("mine");
  EXPECT_EQ(gone.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(client::Describe(gone).reason, "REQUEST_NOT_FOUND");
}

TEST_F(ServiceTest, TokenizeAndDetokenize) {
  v1::TokenizeRequest tokenize;
  tokenize.set_text("def read_file(path): return 42  # café 日本");
  const auto tokens = client_->Tokenize(tokenize);
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_GT(tokens->token_ids_size(), 5);
  EXPECT_EQ(tokens->tokens_size(), tokens->token_ids_size());
  v1::DetokenizeRequest detokenize;
  *detokenize.mutable_token_ids() = tokens->token_ids();
  const auto text = client_->Detokenize(detokenize);
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(text->text(), tokenize.text());
}

TEST_F(ServiceTest, ModelInfo) {
  const auto info = client_->GetModelInfo();
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->model(), "demo-model");
  EXPECT_GE(info->num_layers(), 8);
  EXPECT_EQ(info->num_experts(), 16);
  EXPECT_EQ(info->experts_per_token(), 2);
  EXPECT_EQ(info->num_workers(), 2);
  EXPECT_TRUE(info->has_tokenizer());
  EXPECT_FALSE(info->weights_hash().empty());
  EXPECT_EQ(client::Describe(client_->GetModelInfo("other").status()).reason, "MODEL_NOT_FOUND");
}

TEST_F(ServiceTest, LoadWhileBusy) {
  RunningStream running(*client_, TextRequest("The", 900));
  ASSERT_TRUE(running.WaitBegun());
  absl::StatusOr<v1::GetLoadResponse> load;
  // GetLoad's figures are up to 50 ms old (the engine's tick).
  EXPECT_TRUE(WaitUntil(
      [&] {
        load = client_->GetLoad();
        return !load.ok() || load->running_requests() == 1;
      },
      absl::Seconds(5)));
  ASSERT_TRUE(load.ok()) << load.status();
  EXPECT_TRUE(load->ready());
  EXPECT_EQ(load->max_waiting_requests(), 64);
  ASSERT_EQ(load->workers_size(), 2);
  int used = 0;
  for (const v1::WorkerLoad& worker : load->workers()) {
    EXPECT_EQ(worker.state(), "ready");
    EXPECT_GT(worker.pid(), 0);
    EXPECT_GT(worker.kv_blocks_total(), 0);
    EXPECT_EQ(worker.block_size(), 16);
    used += worker.kv_blocks_used();
  }
  EXPECT_GT(used, 0);
  running.stream().Cancel();
}

TEST_F(ServiceTest, LivenessAndReadinessAreServices) {
  EXPECT_TRUE(*client_->IsServing(""));
  EXPECT_TRUE(*client_->IsServing("readiness"));
  EXPECT_TRUE(*client_->IsServing("switchyard.v1.InferenceService"));
  EXPECT_EQ(client_->IsServing("nonsense").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(ServiceTest, ReflectionListsTheService) {
  // ServerReflectionRequest{list_services: "*"}
  const RawAnswer answer =
      RawCall(server_->client().channel(), "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
              std::string("\x3a\x01*", 3), absl::Seconds(10));
  EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
  ASSERT_EQ(answer.messages.size(), 1u);
  EXPECT_THAT(answer.messages[0],
              AllOf(HasSubstr("switchyard.v1.InferenceService"), HasSubstr("grpc.health.v1.Health")));
}

// Returns a connected socket that sends nothing.
int SilentSocket(const std::string& address) {
  const size_t colon = address.rfind(':');
  sockaddr_in to = {};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(colon + 1))));
  inet_pton(AF_INET, address.substr(0, colon).c_str(), &to.sin_addr);
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const timeval limit = {12, 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
  return fd;
}

// Whether the other side closes the socket within its time limit.
bool IsClosed(int fd) {
  char buffer[1024];
  ssize_t got;
  while ((got = read(fd, buffer, sizeof(buffer))) > 0) {
  }
  const bool closed = got == 0 || errno == ECONNRESET;
  close(fd);
  return closed;
}

TEST_F(ServiceTest, AScraperThatHangsHoldsNobodyAndIsCutOff) {
  const int hangs = SilentSocket(server_->metrics_address());
  ASSERT_EQ(write(hangs, "GET /met", 8), 8);
  const absl::Time start = absl::Now();
  const std::string page = Scrape(server_->metrics_address());
  EXPECT_LT(absl::Now() - start, absl::Seconds(3));
  EXPECT_GT(page.size(), 1000u);
  EXPECT_LT(page.size(), 256u << 10) << "the page is bounded";
  EXPECT_TRUE(IsClosed(hangs));
}

TEST_F(ServiceTest, AConnectionThatSaysNothingIsCutOff) { EXPECT_TRUE(IsClosed(SilentSocket(server_->address()))); }

TEST_F(ServiceTest, PromptsAndAnswersAreNotLogged) {
  v1::GenerateRequest request = TextRequest("quagga Zanzibar 73911", 4);
  const StreamSeen seen = Generate(*client_, request);
  ASSERT_TRUE(seen.ok()) << seen.end;
  request.set_max_tokens(-1);
  EXPECT_FALSE(Generate(*client_, request).ok());
  request.set_max_tokens(4);
  request.set_model("quagga Zanzibar 73911");
  EXPECT_FALSE(Generate(*client_, request).ok());
  v1::TokenizeRequest tokenize;
  tokenize.set_text("quagga Zanzibar 73911");
  EXPECT_TRUE(client_->Tokenize(tokenize).ok());
  EXPECT_THAT(server_->process().Output(), AllOf(HasSubstr("gRPC on "), Not(HasSubstr("quagga"))));
}

}  // namespace
}  // namespace switchyard
