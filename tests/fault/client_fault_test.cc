// Clients that die, stop or do not read, and a server that is asked to stop.
#include <signal.h>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "clients/cpp/client_error.h"
#include "gmock/gmock.h"
#include "grpcpp/create_channel.h"
#include "gtest/gtest.h"
#include "proto/support/errors.h"
#include "tests/e2e/harness.h"
#include "tests/e2e/http2_frames.h"
#include "tests/e2e/metrics_page.h"
#include "tests/e2e/raw_connection.h"

namespace switchyard {
namespace {

class ClientFaultTest : public testing::Test {
 protected:
  void SetUp() override {
    server_ = TestServer::Start({.model = kDemoModel, .workers = 1, .flags = {"--slow_client_timeout=1s"}});
    ASSERT_NE(server_, nullptr);
  }
  bool WaitBusy() {
    return WaitUntil(
        [this] {
          const auto load = server_->client().GetLoad();
          return load.ok() && load->running_requests() > 0;
        },
        absl::Seconds(30));
  }
  // Of seconds of work, also on a fast machine.
  std::unique_ptr<Process> StartCli() {
    return Process::Start({Binary("switchyard"), "generate", "The", "--server=" + server_->address(),
                           absl::StrCat("--max_tokens=", kTokens), absl::StrCat("--n=", kChoices), "--logprobs=20",
                           "--json", "--ignore_eos"});
  }
  // That nothing of the request of StartCli is left, and that this is not because it is done.
  void ExpectFreed() {
    EXPECT_TRUE(server_->WaitIdle(absl::Seconds(60)));
    const double made = Value(Scrape(server_->metrics_address()), "switchyard_generation_tokens_total");
    EXPECT_LT(made, kTokens * kChoices) << "its work went on to its end";
  }

  static constexpr int kTokens = 900, kChoices = 32;
  std::unique_ptr<TestServer> server_;
};

TEST_F(ClientFaultTest, AKilledClientsWorkIsFreed) {
  const auto cli = StartCli();
  ASSERT_NE(cli, nullptr);
  ASSERT_TRUE(WaitBusy()) << cli->Output();
  cli->Signal(SIGKILL);
  ExpectFreed();
}

// A client that is stopped closes nothing: the server's keepalive finds it (2 s), or its unread stream does.
TEST_F(ClientFaultTest, AStoppedClientsWorkIsFreed) {
  const auto cli = StartCli();
  ASSERT_NE(cli, nullptr);
  ASSERT_TRUE(WaitBusy()) << cli->Output();
  cli->Signal(SIGSTOP);
  ExpectFreed();
  EXPECT_TRUE(Generate(server_->client(), TextRequest("x", 4)).ok());
}

// A client that does not read its stream loses it after slow_client_timeout; others do not notice.
TEST_F(ClientFaultTest, ASlowReaderLosesItsStreamAndOthersDoNotNotice) {
  grpc::ChannelArguments args;
  args.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);  // a window of 64 KB that does not grow
  args.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 65536);
  const auto stub = v1::InferenceService::NewStub(
      grpc::CreateCustomChannel(server_->address(), grpc::InsecureChannelCredentials(), args));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  v1::GenerateRequest request = TextRequest("The", 900);
  request.set_n(16);         // seconds of work: longer than the limit on a fast machine, too
  request.set_logprobs(20);  // about 1 KB a token
  const auto reader = stub->Generate(&context, request);
  v1::GenerateResponse message;
  ASSERT_TRUE(reader->Read(&message));
  const StreamSeen other = Generate(server_->client(), TextRequest("In the beginning", 200));
  EXPECT_TRUE(other.ok()) << other.end;
  EXPECT_TRUE(server_->WaitIdle(absl::Seconds(30))) << "its work goes on";
  while (reader->Read(&message)) {
  }
  const grpc::Status end = reader->Finish();
  EXPECT_EQ(end.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << end.error_message();
  EXPECT_EQ(rpc::ViewError(end).reason, "SLOW_READER");
}

// A client without a call for a while, which reads nothing meanwhile, keeps its connection.
TEST_F(ClientFaultTest, AClientThatWaitsForItsUserIsAnswered) {
  const auto chat = Process::Start({"/bin/sh", "-c",
                                    absl::StrCat("(sleep 3; echo hello) | ", Binary("switchyard"),
                                                 " chat --max_tokens=3 --server=", server_->address())});
  ASSERT_NE(chat, nullptr);
  EXPECT_EQ(chat->Wait(absl::Seconds(60)), 0) << chat->Output();
}

// SIGTERM: new calls are refused, running ones end well, the process exits with 0.
TEST_F(ClientFaultTest, SigtermDrains) {
  absl::Notification began;
  StreamSeen seen;
  auto stream = server_->client().StartGenerate(TextRequest("The", 600), {.on_message =
                                                                              [&](const v1::GenerateResponse& message) {
                                                                                seen.Add(message);
                                                                                if (!began.HasBeenNotified())
                                                                                  began.Notify();
                                                                              },
                                                                          .on_done = nullptr});
  ASSERT_TRUE(began.WaitForNotificationWithTimeout(absl::Seconds(30)));
  const auto late = server_->Connect();
  ASSERT_NE(late, nullptr);
  server_->process().Signal(SIGTERM);
  EXPECT_TRUE(server_->WaitReady(false, absl::Seconds(5)));
  if (!stream->Done()) {
    const StreamSeen refused = Generate(*late, TextRequest("x", 4));
    EXPECT_EQ(refused.end.code(), absl::StatusCode::kUnavailable) << refused.end;
    EXPECT_TRUE(stream->Done() || client::Describe(refused.end).reason == "DRAINING") << refused.end;
  }
  EXPECT_TRUE(stream->Wait().ok()) << "a running stream was cut";
  ASSERT_FALSE(seen.choices.empty());
  EXPECT_EQ(seen.choices[0].token_ids.size(), 600u);
  EXPECT_EQ(server_->process().Wait(absl::Seconds(10)).value_or(-1), 0);
}

// The peer asks for answers all the time but reads none, so the server cannot send to it.
TEST(NeverReadingPeerTest, SigtermEndsTheServerWithoutWaitingForIt) {
  const auto server = TestServer::Start({.model = kDemoModel, .workers = 1, .flags = {"--drain_timeout=1s"}});
  ASSERT_NE(server, nullptr);
  RawConnection peer(server->address(), {.receive_buffer = 4096, .answers = false});
  ASSERT_TRUE(peer.Send(http2::Preface(), absl::Seconds(1)));
  std::string pings;
  for (int i = 0; i < 1000; ++i) pings += http2::Frame(http2::kPing, 0, 0, "12345678");
  // Until the server takes no more, as it cannot get rid of its answers.
  constexpr int64_t kMostBytes = 64 << 20;
  while (peer.bytes_sent() < kMostBytes && peer.Send(pings, absl::Seconds(1))) {
  }
  server->process().Signal(SIGTERM);
  EXPECT_EQ(server->process().Wait(absl::Seconds(20)).value_or(-1), 0) << "it still waits for the peer";
}

}  // namespace
}  // namespace switchyard
