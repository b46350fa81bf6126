// Connecting: over both kinds of address, among strangers, and without a peer.
#include "workers/comm/tcp/socket_mesh.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/base/check.h"
#include "scheduler/base/io/unique_fd.h"
#include "tests/workers/comm/comm_test_util.h"
#include "workers/comm/core/frame_header.h"
#include "workers/comm/tcp/socket_address.h"
#include "workers/comm/tcp/socket_communicator.h"
#include "workers/comm/tcp/socket_handshake.h"
#include "workers/comm/tcp/socket_tls.h"

namespace switchyard::comm {
namespace {

using test::Stranger;
using testing::HasSubstr;

absl::StatusOr<std::unique_ptr<Communicator>> Form(const GroupOptions& options, RendezvousStore* store) {
  return FormSocketGroup({.group = options}, store);
}

absl::Status Meet(Communicator* comm) {
  auto work = comm->Barrier({.comm_class = CommClass::kControl, .deadline = test::Soon()});
  return work.ok() ? (*work)->Wait() : work.status();
}

TEST(SocketAddressTest, SaysAndReadsBothKinds) {
  for (const char* ip : {"127.0.0.1", "10.1.2.3", "::1", "fd00::12"}) {
    const auto address = SocketAddress::Of(ip, 4321);
    ASSERT_TRUE(address.ok());
    EXPECT_EQ(address->ToString(), absl::StrCat(ip, " 4321"));
    const auto again = SocketAddress::Parse(address->ToString());
    ASSERT_TRUE(again.ok());
    EXPECT_EQ(again->port(), 4321);
    EXPECT_EQ(again->ip(), ip);
  }
  for (const char* bad : {"", "127.0.0.1", "localhost 80", "127.0.0.1 0", "127.0.0.1 70000", "127.0.0.1 1 2"}) {
    EXPECT_EQ(SocketAddress::Parse(bad).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
}

TEST(SocketMeshTest, OverIPv6) {
  const int probe = socket(AF_INET6, SOCK_STREAM, 0);
  const auto here = SocketAddress::Of("::1", 0);
  const bool has_v6 = probe >= 0 && bind(probe, here->get(), here->size()) == 0;
  if (probe >= 0) close(probe);
  if (!has_v6) GTEST_SKIP() << "this machine has no ::1";
  InMemoryStore store;
  GroupOptions other = test::FormingOptions(1, 2);
  other.address = "::1";
  auto wait = std::async(std::launch::async, [&] { return Form(other, &store); });
  GroupOptions own = test::FormingOptions(0, 2);
  own.address = "::1";
  auto first = Form(own, &store);
  auto second = wait.get();
  ASSERT_TRUE(first.ok() && second.ok()) << first.status() << second.status();
  auto met = std::async(std::launch::async, [&] { return Meet(second->get()); });
  EXPECT_TRUE(Meet(first->get()).ok());
  EXPECT_TRUE(met.get().ok());
}

TEST(SocketMeshTest, FramesAreChecked) {
  InMemoryStore store;
  for (const int64_t frame : {0, 4095, (256 << 10) + 1}) {
    const absl::Status status =
        FormSocketGroup({.group = test::FormingOptions(0, 2), .framing = {.bytes = frame}}, &store).status();
    EXPECT_EQ(status.message(), absl::StrCat("frames of ", frame, " bytes: must be from 4096 to 262144"));
  }
}

TEST(SocketMeshTest, SendBuffersAreAsTheSettingsSay) {
  const auto buffer_of = [](int wanted) {
    InMemoryStore store;
    const auto connect = [&](int rank) {
      return ConnectMesh(test::FormingOptions(rank, 2), {.send_buffer_bytes = wanted}, &store);
    };
    auto other = std::async(std::launch::async, connect, 1);
    const auto here = connect(0), there = other.get();
    SY_CHECK(here.ok() && there.ok());
    int bytes[2] = {};
    for (const auto& [fd, to] :
         {std::make_pair((*here)[1]->fd(), bytes), std::make_pair((*there)[0]->fd(), bytes + 1)}) {
      socklen_t size = sizeof(int);
      SY_CHECK_EQ(getsockopt(fd, SOL_SOCKET, SO_SNDBUF, to, &size), 0);
    }
    return std::make_pair(bytes[0], bytes[1]);
  };
  // The kernel doubles the size that is set.  Without one it has more than the minimum.
  EXPECT_EQ(buffer_of(64 << 10), std::make_pair(128 << 10, 128 << 10));
  EXPECT_EQ(buffer_of(32 << 10), std::make_pair(64 << 10, 64 << 10));
  EXPECT_GT(std::min(buffer_of(0).first, buffer_of(0).second), 8 << 10);
}

TEST(SocketMeshTest, AnAddressOfAnotherHostIsUnavailable) {
  InMemoryStore store;
  GroupOptions elsewhere = test::FormingOptions(0, 2, absl::Seconds(5));
  elsewhere.address = "10.255.254.253";
  auto wait = std::async(std::launch::async,
                         [&] { return Form(test::FormingOptions(1, 2, absl::Seconds(1)), &store).status(); });
  const absl::Status status = Form(elsewhere, &store).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("group address 10.255.254.253 is not this host's"));
  EXPECT_FALSE(wait.get().ok());
}

// A rank that has joined, and listens, but never connects or answers.
TEST(SocketMeshTest, WhoDoesNotConnectIsNamed) {
  InMemoryStore store;
  const GroupOptions options = test::FormingOptions(0, 3, absl::Milliseconds(300));
  for (const int rank : {1, 2}) ASSERT_TRUE(store.Set(absl::StrCat(GroupPrefix(options), "member/", rank), "3").ok());
  const absl::Status status = Form(options, &store).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_EQ(status.message(), "rank 1 of 3 did not connect in epoch 7 in time");
}

// All have joined, and one is killed before it has connected: a cancellation of the store's waits ends the forming.
TEST(SocketMeshTest, WhoWaitsForAPeerToConnectMayBeFreed) {
  InMemoryStore store;
  const GroupOptions options = test::FormingOptions(0, 2, absl::Minutes(5));
  ASSERT_TRUE(store.Set(absl::StrCat(GroupPrefix(options), "member/1"), "2").ok());
  auto forming = std::async(std::launch::async, [&] { return Form(options, &store).status(); });
  ASSERT_TRUE(store.Get({absl::StrCat(GroupPrefix(options), "socket/0")}, test::Soon()).ok());  // it listens
  store.CancelWaits("rank 1 died");
  EXPECT_EQ(forming.get(), absl::CancelledError("rank 1 died"));
}

TEST(SocketMeshTest, APeerThatLeftIsNamedAtOnce) {
  InMemoryStore store;
  const GroupOptions options = test::FormingOptions(1, 2);
  ASSERT_TRUE(store.Set(absl::StrCat(GroupPrefix(options), "member/0"), "2").ok());
  // No socket listens on its port any more.
  const int gone = socket(AF_INET, SOCK_STREAM, 0);
  const auto here = SocketAddress::Of("127.0.0.1", 0);
  ASSERT_EQ(bind(gone, here->get(), here->size()), 0);
  ASSERT_TRUE(
      store.Set(absl::StrCat(GroupPrefix(options), "socket/0"), SocketAddress::OfSocket(gone)->ToString()).ok());
  close(gone);
  const absl::Time begin = absl::Now();
  const absl::Status status = Form(options, &store).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 0 refused the connection, or left"));
  EXPECT_LT(absl::Now() - begin, absl::Seconds(5));
}

// A rank that the test plays: it listens, and proves who it is to a rank that connects.
class PlayedRank {
 public:
  PlayedRank(int rank, int world)
      : options_(test::FormingOptions(rank, world)),
        self_{.id = IdOfGroup(options_), .secret = options_.token},
        listening_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const auto here = SocketAddress::Of(options_.address, 0);
    SY_CHECK_EQ(bind(listening_.get(), here->get(), here->size()), 0);
    SY_CHECK_EQ(listen(listening_.get(), 8), 0);
  }

  absl::Status PublishIn(RendezvousStore* store) const {
    return store->Set(absl::StrCat(GroupPrefix(options_), "socket/", options_.rank),
                      SocketAddress::OfSocket(listening_.get())->ToString());
  }
  // Whether somebody has connected, or does so within the limit.
  bool SomebodyConnects(int limit_ms) const {
    pollfd event = {listening_.get(), POLLIN, 0};
    return poll(&event, 1, limit_ms) == 1;
  }
  // The connection stays until this ends.
  void AcceptPeer() {
    SY_CHECK(SomebodyConnects(20'000));
    UniqueFd fd(accept4(listening_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    handshake_ = std::make_unique<SocketHandshake>(&self_, std::move(fd), -1);
    for (bool proven = false; !proven;) {
      pollfd event = {handshake_->fd(), handshake_->events(), 0};
      SY_CHECK_EQ(poll(&event, 1, 20'000), 1);
      const absl::StatusOr<bool> advanced = handshake_->Advance();
      SY_CHECK_OK(advanced.status());
      proven = *advanced;
    }
  }

 private:
  const GroupOptions options_;
  const SocketHandshake::Self self_;
  const UniqueFd listening_;
  std::unique_ptr<SocketHandshake> handshake_;
};

// Says when rank 1's address is asked for.
class WatchedStore : public InMemoryStore {
 public:
  absl::StatusOr<std::vector<std::string>> Get(absl::Span<const std::string> keys, absl::Time deadline) override {
    for (const std::string& key : keys) {
      if (absl::EndsWith(key, "socket/1") && !asked_.HasBeenNotified()) asked_.Notify();
    }
    return InMemoryStore::Get(keys, deadline);
  }
  bool AwaitQuestion() { return asked_.WaitForNotificationWithTimeout(absl::Seconds(20)); }

 private:
  absl::Notification asked_;
};

// Rank 0 would take a connection for a stranger on which nothing is said while its other end waits for rank 1.
TEST(SocketMeshTest, NobodyConnectsBeforeAllAddressesAreThere) {
  WatchedStore store;
  PlayedRank first(0, 3), late(1, 3);
  ASSERT_TRUE(first.PublishIn(&store).ok());
  auto forming = std::async(std::launch::async, [&] { return ConnectMesh(test::FormingOptions(2, 3), {}, &store); });
  EXPECT_TRUE(store.AwaitQuestion());
  EXPECT_FALSE(first.SomebodyConnects(0));
  ASSERT_TRUE(late.PublishIn(&store).ok());
  first.AcceptPeer();
  late.AcceptPeer();
  const auto mesh = forming.get();
  ASSERT_TRUE(mesh.ok()) << mesh.status();
  EXPECT_TRUE((*mesh)[0] != nullptr && (*mesh)[1] != nullptr);
}

// As soon as a rank publishes its address, strangers connect before any peer, send bytes and stay connected.
class InvadedStore : public InMemoryStore {
 public:
  explicit InvadedStore(std::vector<std::string> words) : words_(std::move(words)) {}
  absl::Status Set(absl::string_view key, absl::string_view value) override {
    if (absl::StrContains(key, "socket/0")) {
      const auto to = SocketAddress::Parse(value);
      SY_CHECK_OK(to.status());
      for (const std::string& words : words_) {
        strangers_.emplace_back(to->port(), words);
        SY_CHECK(strangers_.back().connected());
      }
    }
    return InMemoryStore::Set(key, value);
  }
  const std::vector<test::Stranger>& strangers() const { return strangers_; }

 private:
  const std::vector<std::string> words_;
  std::vector<test::Stranger> strangers_;
};

std::string HelloOf(const GroupId& id) {
  const FrameHeader header =
      MakeFrameHeader(id, {.op = CommOp::kHello, .comm_class = CommClass::kControl, .sequence = -1, .bytes = 0}, 0, 0);
  const HelloMessage hello = {.header = header, .nonce = DrawNonce()};
  return std::string(reinterpret_cast<const char*>(&hello), sizeof(hello));
}

GroupOptions Encrypting(GroupOptions options) {
  options.encrypt_links = true;
  return options;
}

// What rank 1 of the group of FormingOptions said to a rank 0 of it in an earlier connection, which accepted it.
std::string SaidBefore(bool encrypted) {
  const GroupOptions options = test::FormingOptions(0, 2);
  const auto tls = encrypted ? *TlsContext::Make(options.token) : nullptr;
  const SocketHandshake::Self accepting = {IdOfGroup(options), options.token, tls.get()};
  const SocketHandshake::Self connecting = {IdOfGroup(test::FormingOptions(1, 2)), options.token, tls.get()};
  const auto [to_accepting, accepted] = test::ConnectedPair();
  const auto [to_connecting, connected] = test::ConnectedPair();
  SocketHandshake accepts(&accepting, UniqueFd(dup(accepted.get())), -1);
  SocketHandshake connects(&connecting, UniqueFd(dup(connected.get())), 0);
  std::string said;
  for (bool proven = false; !proven;) {
    SY_CHECK_OK(connects.Advance().status());
    char bytes[4096];
    ssize_t got = recv(to_connecting.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
    if (got > 0) said.append(bytes, static_cast<size_t>(got));
    if (got > 0) SY_CHECK_EQ(send(to_accepting.get(), bytes, static_cast<size_t>(got), 0), got);
    const absl::StatusOr<bool> whole = accepts.Advance();
    SY_CHECK_OK(whole.status());
    proven = *whole;
    got = recv(to_accepting.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
    if (got > 0) SY_CHECK_EQ(send(to_connecting.get(), bytes, static_cast<size_t>(got), 0), got);
  }
  return said;
}

class StrangersTest : public testing::TestWithParam<bool> {
 protected:
  GroupOptions Options(int rank) const {
    const GroupOptions options = test::FormingOptions(rank, 2);
    return GetParam() ? Encrypting(options) : options;
  }
  // A group forms although strangers with these words come before rank 1.
  void FormAmong(InvadedStore* store) {
    auto wait = std::async(std::launch::async, [&] { return Form(Options(1), store); });
    auto first = Form(Options(0), store);
    auto second = wait.get();
    ASSERT_TRUE(first.ok()) << first.status();
    ASSERT_TRUE(second.ok()) << second.status();
    auto met = std::async(std::launch::async, [&] { return Meet(second->get()); });
    EXPECT_TRUE(Meet(first->get()).ok());
    EXPECT_TRUE(met.get().ok());
  }
};
INSTANTIATE_TEST_SUITE_P(Links, StrangersTest, testing::Bool(),
                         [](const auto& i) { return i.param ? "Encrypted" : "Plain"; });

TEST_P(StrangersTest, AreRefusedAndTheGroupForms) {
  const GroupId own = IdOfGroup(test::FormingOptions(1, 2));
  GroupId other_token = own, other_epoch = own, other_world = own, lower = own, beyond = own;
  other_token.token ^= 1;
  other_epoch.epoch = 6;
  other_world.world = 3;
  lower.rank = 0;
  beyond.rank = 1000;
  InvadedStore store(
      {"", "half a hello",
       "GET / HTTP/1.1\r\nHost: example\r\n\r\nand what else may be 96 bytes long, as the first message of a rank is",
       HelloOf(other_token), HelloOf(other_epoch), HelloOf(other_world), HelloOf(lower), HelloOf(beyond)});
  FormAmong(&store);
  ASSERT_EQ(store.strangers().size(), 8u);
  // (TLS says goodbye with an alert.)
  for (size_t i = 0; i < 8 && !GetParam(); ++i) EXPECT_FALSE(store.strangers()[i].Answered()) << i;
}

// Who is a rank's double in all but the secret, and who has listened to one.
TEST_P(StrangersTest, WhoDoesNotKnowTheSecretProvesNothing) {
  const std::string hello = HelloOf(IdOfGroup(test::FormingOptions(1, 2)));
  InvadedStore store({hello, hello + std::string(sizeof(Digest), 'x'), SaidBefore(false), SaidBefore(true)});
  FormAmong(&store);
}

// One rank encrypts, and the other does not: neither takes the other for a peer.
TEST(SocketMeshTest, PlainAndEncryptedLinksDoNotMeet) {
  for (const int encrypting : {0, 1}) {
    InMemoryStore store;
    const auto form = [&](int rank) {
      const GroupOptions options = test::FormingOptions(rank, 2, absl::Seconds(2));
      return Form(rank == encrypting ? Encrypting(options) : options, &store).status();
    };
    auto connects = std::async(std::launch::async, form, 1);
    const absl::Status accepts = form(0);
    const absl::Status refused = connects.get();
    EXPECT_EQ(accepts.message(), "rank 1 of 2 did not connect in epoch 7 in time");
    EXPECT_FALSE(refused.ok());
    EXPECT_THAT(std::string(refused.message()), HasSubstr("rank 0"));
  }
}

}  // namespace
}  // namespace switchyard::comm
