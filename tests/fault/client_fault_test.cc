// Clients that die, stop or do not read, and a server that is asked to stop.
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "clients/cpp/client_error.h"
#include "gmock/gmock.h"
#include "grpcpp/create_channel.h"
#include "gtest/gtest.h"
#include "proto/support/errors.h"
#include "proto/support/host_port.h"
#include "scheduler/base/io/unique_fd.h"
#include "tests/e2e/harness.h"

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
  std::unique_ptr<Process> StartCli() {
    return Process::Start({Binary("switchyard"), "generate", "The", "--server=" + server_->address(),
                           "--max_tokens=900", "--n=8", "--ignore_eos"});
  }

  std::unique_ptr<TestServer> server_;
};

TEST_F(ClientFaultTest, AKilledClientsWorkIsFreed) {
  const auto cli = StartCli();
  ASSERT_NE(cli, nullptr);
  ASSERT_TRUE(WaitBusy()) << cli->Output();
  cli->Signal(SIGKILL);
  EXPECT_TRUE(server_->WaitIdle(absl::Seconds(3)));
}

// A client that is stopped closes nothing: the server's keepalive finds it (2 s), or its unread stream does.
TEST_F(ClientFaultTest, AStoppedClientsWorkIsFreed) {
  const auto cli = StartCli();
  ASSERT_NE(cli, nullptr);
  ASSERT_TRUE(WaitBusy()) << cli->Output();
  cli->Signal(SIGSTOP);
  EXPECT_TRUE(server_->WaitIdle(absl::Seconds(6)));
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

// A peer that speaks HTTP/2 and asks for answers all the time but reads none, so the server cannot send to it.
class NeverReader {
 public:
  explicit NeverReader(const std::string& server) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const auto at = rpc::SplitHostPort(server);
    const int small = 4096;
    setsockopt(fd_.get(), SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
    sockaddr_in to = {};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(at->port));
    inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
    connected_ = connect(fd_.get(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0;
    fcntl(fd_.get(), F_SETFL, O_NONBLOCK);
    connected_ = connected_ && Send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + Frame(0, 4, ""));
  }
  bool connected() const { return connected_; }
  // PINGs until the server takes no more, as it cannot get rid of its answers, or `most_bytes`.
  void Flood(size_t most_bytes) {
    std::string pings;
    for (int i = 0; i < 1000; ++i) pings += Frame(8, 6, "12345678");
    for (size_t sent = 0; sent < most_bytes && Send(pings); sent += pings.size()) {
    }
  }

 private:
  static std::string Frame(char bytes, char type, const std::string& payload) {
    return std::string("\0\0", 2) + bytes + type + std::string("\0\0\0\0\0", 5) + payload;
  }
  // Returns false if the other end has read nothing for a second, or is gone.
  bool Send(const std::string& bytes) {
    for (size_t at = 0; at < bytes.size();) {
      pollfd wait = {fd_.get(), POLLOUT, 0};
      if (poll(&wait, 1, 1000) <= 0) return false;
      const ssize_t sent = send(fd_.get(), bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
      if (sent < 0) return false;
      at += static_cast<size_t>(sent);
    }
    return true;
  }
  UniqueFd fd_;
  bool connected_ = false;
};

TEST(NeverReadingPeerTest, SigtermEndsTheServerWithoutWaitingForIt) {
  const auto server = TestServer::Start({.model = kDemoModel, .workers = 1, .flags = {"--drain_timeout=1s"}});
  ASSERT_NE(server, nullptr);
  NeverReader peer(server->address());
  ASSERT_TRUE(peer.connected());
  peer.Flood(64 << 20);
  server->process().Signal(SIGTERM);
  EXPECT_EQ(server->process().Wait(absl::Seconds(20)).value_or(-1), 0) << "it still waits for the peer";
}

}  // namespace
}  // namespace switchyard
