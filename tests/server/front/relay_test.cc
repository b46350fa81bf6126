// The relay before a real gRPC server: calls of real clients pass; who breaks a limit is ended and others go on; who
// does not read costs little.
#include "tests/server/front/relay_fixture.h"

namespace switchyard::server {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST_F(RelayTest, CallsPassAndTheServerKnowsWhose) {
  Start({});
  const auto channel = Plain();
  EXPECT_EQ(Call(channel, "/echo", "hello"), "hello");
  const std::string peer = Call(channel, "/peer", "");
  EXPECT_THAT(peer, StartsWith("unix-abstract:"));
  EXPECT_EQ(AddressOfPeer(peer), "127.0.0.1");
  EXPECT_EQ(ClientOfPeer(peer), "ipv4:127.0.0.1");
  EXPECT_FALSE(relay_.HasUnread(peer));
  EXPECT_FALSE(gate_->HasUnread(peer, 0));
}

TEST_F(RelayTest, LargeMessagesPassBothWaysAtOnce) {
  Start({});
  PassLargeMessages(Plain());
}

TEST_F(RelayTest, AFloodIsEndedWithAReasonAndOthersGoOn) {
  FrameGuard::Limits limits;
  limits.resets = 50;
  Start({.limits = limits});
  const auto good = Plain();
  EXPECT_EQ(Call(good, "/echo", "before"), "before");
  const RawClient flood(gate_->port());
  std::string calls = kHttp2Preface + Frame(kSettingsFrame, 0, 0);
  for (uint32_t i = 0; i < 100; ++i)
    calls += BeginCall(2 * i + 1, "/silent") + Frame(kResetFrame, 0, 2 * i + 1, kReset);
  ASSERT_TRUE(flood.Send(calls));
  const std::string seen = flood.ReadAll();
  EXPECT_THAT(seen, HasSubstr("resets: limit 50, actual 51"));
  EXPECT_EQ(relay_.num_ended(FrontLimit::kResets), 1);
  EXPECT_EQ(Call(good, "/echo", "after"), "after");
  EXPECT_TRUE(Becomes([&] { return service_.open_calls() == 0; }));
  // A new connection of this address waits for a second.
  EXPECT_EQ(relay_.num_waiting_clients(), 1);
  EXPECT_EQ(Call(Plain(), "/echo", "later"), "later");
  EXPECT_EQ(relay_.num_waiting_clients(), 0) << "it was let in too early";
}

TEST_F(RelayTest, WhileNothingMovesItUsesNoProcessor) {
  Start({});
  const auto channel = Plain();
  EXPECT_EQ(Call(channel, "/echo", "hello"), "hello");
  const std::clock_t before = std::clock();
  absl::SleepFor(absl::Seconds(2));
  const double seconds = static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC;
  EXPECT_LT(seconds, 0.2) << "a thread spins";
}

TEST_F(RelayTest, WhatIsNoHttp2NeverReachesTheServer) {
  Start({});
  const RawClient other(gate_->port());
  ASSERT_TRUE(other.Send("\x16\x03\x01"));
  EXPECT_THAT(other.ReadAll(), HasSubstr("preface"));
  // A browser, or a client of OpenAI's API, at the wrong port.
  relay_.NameHttpPort(8000);
  const RawClient web(gate_->port());
  ASSERT_TRUE(web.Send("GET / HTTP/1.1\r\n\r\n"));
  EXPECT_EQ(web.ReadAll(),
            "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 56\r\n"
            "Connection: close\r\n\r\nswitchyard: this port speaks gRPC; HTTP is on port 8000\n");
  EXPECT_EQ(relay_.num_ended(FrontLimit::kPreface), 2);
  const RawClient silent(gate_->port());
  EXPECT_EQ(silent.ReadAll(), "") << "closed after five seconds";
}

// Half of the budget is 8 MB.
TEST_F(RelayTest, WhoHoldsTooMuchForTooLongIsEnded) {
  Start({});
  const auto good = Plain();
  std::thread greedy([this] { EXPECT_THAT(Call(Plain(), "/echo", std::string(24 << 20, 'x')), StartsWith("error ")); });
  EXPECT_TRUE(Becomes([&] { return relay_.held_bytes() > 8 << 20; }));
  EXPECT_EQ(Call(good, "/echo", "fine"), "fine");
  greedy.join();
  EXPECT_EQ(relay_.num_ended(FrontLimit::kMemory), 1);
  EXPECT_LE(relay_.held_bytes(), 1 << 20);
  EXPECT_EQ(Call(good, "/echo", "fine"), "fine");
}

// It asks for 12 MB of answers that it does not read.
TEST_F(RelayTest, WhoDoesNotReadHoldsTwoBuffersAndIsClosedWithItsServer) {
  Start({});
  auto slow = std::make_unique<RawClient>(gate_->port());
  const std::string all_credit("\x7f\xff\0\0", 4);
  std::string begin = kHttp2Preface + Frame(kSettingsFrame, 0, 0, std::string("\0\x04\x7f\xff\xff\xff", 6)) +
                      Frame(kWindowFrame, 0, 0, all_credit);
  ASSERT_TRUE(slow->Send(begin));
  const std::string message = Prefixed(std::string(60'000, 'x'));
  for (uint32_t i = 0; i < 200; ++i) {
    std::string call = BeginCall(2 * i + 1, "/echo");
    for (size_t at = 0; at < message.size(); at += 16384)
      call += Frame(kDataFrame, 0, 2 * i + 1, message.substr(at, 16384));
    if (!slow->Send(call + Frame(kDataFrame, kEndStreamFlag, 2 * i + 1))) break;
  }
  EXPECT_LE(relay_.held_bytes(), 16 << 20);
  EXPECT_EQ(Call(Plain(), "/echo", "fine"), "fine");
  gate_->Close();
  gate_->EndConnections();
  EXPECT_TRUE(Becomes([&] { return gate_->num_open() == 0; }));
  EXPECT_TRUE(Becomes([&] { return relay_.held_bytes() == 0; }));
  EXPECT_TRUE(Becomes([&] { return service_.open_calls() == 0; }));
}

// The page of metrics, say: any protocol, in which a client may end what it sends and read on.
TEST_F(RelayTest, OtherProtocolsPassUnreadAndMayBeHalfClosed) {
  int far = -1;
  absl::Notification opened;
  Listen({.open =
              [&](const std::string&, int) {
                int ends[2];
                EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
                far = ends[1];
                opened.Notify();
                return ends[0];
              },
          .http2 = false});
  const RawClient client(gate_->port());
  ASSERT_TRUE(client.Send("all of the "));
  ASSERT_TRUE(opened.WaitForNotificationWithTimeout(kWait));
  ASSERT_TRUE(client.Send("request"));
  client.EndSending();
  std::string request;
  char bytes[100];
  for (ssize_t got = 0; (got = read(far, bytes, sizeof(bytes))) > 0;) request.append(bytes, static_cast<size_t>(got));
  EXPECT_EQ(request, "all of the request");
  const std::string page(3 << 20, 'p');
  std::thread server([&] {
    for (size_t at = 0; at < page.size();) {
      const ssize_t sent = write(far, page.data() + at, page.size() - at);
      if (sent <= 0) break;
      at += static_cast<size_t>(sent);
    }
    close(far);
  });
  EXPECT_EQ(client.ReadAll().size(), page.size());
  server.join();
}

// As HTTP's: what it says comes whole, and then its end, also while the copy of the client's socket is open.
TEST_F(RelayTest, AServerMayAnswerPastTheRelay) {
  UniqueFd far, answers;
  absl::Notification opened;
  Listen({.open =
              [&](const std::string&, int client_fd) {
                int ends[2];
                EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
                far = UniqueFd(ends[1]);
                answers = UniqueFd(CopyForAnswers(client_fd));
                opened.Notify();
                return ends[0];
              },
          .http2 = false});
  const RawClient client(gate_->port());
  ASSERT_TRUE(client.Send("request"));
  ASSERT_TRUE(opened.WaitForNotificationWithTimeout(kWait));
  char bytes[100];
  EXPECT_EQ(read(far.get(), bytes, sizeof(bytes)), 7);
  const std::string page(3 << 20, 'p');
  std::thread server([&] {
    size_t at = 0;
    for (pollfd room = {answers.get(), POLLOUT, 0}; at < page.size() && poll(&room, 1, 30000) == 1;) {
      const ssize_t sent = send(answers.get(), page.data() + at, page.size() - at, MSG_NOSIGNAL | MSG_DONTWAIT);
      at += sent > 0 ? static_cast<size_t>(sent) : 0;
    }
    shutdown(far.get(), SHUT_RDWR);
  });
  EXPECT_EQ(client.ReadAll().size(), page.size());
  server.join();
}

}  // namespace
}  // namespace switchyard::server
