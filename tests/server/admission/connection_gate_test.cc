// The connection gate: its limits, and that it keeps accepting after every fault.
#include "server/admission/connection_gate.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/localhost.h"

namespace switchyard::server {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(30);

// A client's socket; closed with this object.
class Socket {
 public:
  explicit Socket(int port, const char* from = "127.0.0.1") : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in own = {}, to = {};
    own.sin_family = to.sin_family = AF_INET;
    inet_pton(AF_INET, from, &own.sin_addr);
    inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
    to.sin_port = htons(static_cast<uint16_t>(port));
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&own), sizeof(own)), 0);
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
  }
  // Over an abstract socket of this machine.
  explicit Socket(const std::string& name) : fd_(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un to = {};
    to.sun_family = AF_UNIX;
    name.copy(to.sun_path + 1, sizeof(to.sun_path) - 1);
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&to), length), 0);
  }
  ~Socket() { close(fd_); }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  int fd() const { return fd_; }
  // Whether the other end closes the socket.
  bool IsClosed() const {
    pollfd wait = {fd_, POLLIN, 0};
    char byte;
    return poll(&wait, 1, static_cast<int>(absl::ToInt64Milliseconds(kPatience))) == 1 && read(fd_, &byte, 1) <= 0;
  }

 private:
  const int fd_;
};

class ConnectionGateTest : public testing::Test {
 protected:
  ~ConnectionGateTest() override {
    gate_.reset();
    for (const int fd : taken_) close(fd);
  }
  void Open(ConnectionGate::Limits limits) {
    auto gate = ConnectionGate::Listen("127.0.0.1", 0, limits);
    ASSERT_TRUE(gate.ok()) << gate.status();
    gate_ = *std::move(gate);
    gate_->Open([this](int, int fd) {
      absl::MutexLock lock(&mu_);
      taken_.push_back(fd);
    });
  }
  // Waits until `count` connections were accepted; returns them.
  std::vector<int> AwaitTaken(size_t count) {
    absl::MutexLock lock(&mu_);
    const auto enough = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return taken_.size() >= count; };
    EXPECT_TRUE(mu_.AwaitWithTimeout(absl::Condition(&enough), kPatience)) << taken_.size() << " were let in";
    return taken_;
  }
  void CloseTaken(size_t at) {
    absl::MutexLock lock(&mu_);
    close(taken_[at]);
    taken_.erase(taken_.begin() + static_cast<ptrdiff_t>(at));
  }

  std::unique_ptr<ConnectionGate> gate_;
  absl::Mutex mu_;
  std::vector<int> taken_ ABSL_GUARDED_BY(mu_);
};

TEST_F(ConnectionGateTest, BeyondTheLimitAConnectionIsClosedAtOnce) {
  Open({.connections = 2, .per_client = 2});
  const Socket first(gate_->port()), second(gate_->port());
  AwaitTaken(2);
  const Socket third(gate_->port());
  EXPECT_TRUE(third.IsClosed());
  EXPECT_EQ(gate_->num_refused(), 1);
  EXPECT_EQ(gate_->num_open(), 2);
  CloseTaken(0);
  EXPECT_EQ(gate_->num_open(), 1);
  const Socket fourth(gate_->port());
  AwaitTaken(2);
  EXPECT_EQ(gate_->num_refused(), 1);
}

TEST_F(ConnectionGateTest, OneClientHasItsShare) {
  Open({.connections = 10, .per_client = 1});
  const Socket first(gate_->port());
  AwaitTaken(1);
  EXPECT_TRUE(Socket(gate_->port()).IsClosed());
  const Socket another(gate_->port(), "127.0.0.2");
  AwaitTaken(2);
  CloseTaken(0);
  EXPECT_EQ(gate_->num_open(), 1);
  const Socket again(gate_->port());
  AwaitTaken(2);
  EXPECT_EQ(gate_->num_refused(), 1);
}

TEST_F(ConnectionGateTest, ProcessesOfThisUserHaveASocketOfTheirOwn) {
  Open({.connections = 1, .per_client = 1, .local = 1});
  const Socket client(gate_->port());
  AwaitTaken(1);
  EXPECT_TRUE(Socket(gate_->port()).IsClosed());
  ASSERT_FALSE(gate_->local_name().empty());
  const Socket worker(gate_->local_name());
  AwaitTaken(2);
  EXPECT_TRUE(Socket(gate_->local_name()).IsClosed()) << "one is the limit";
  EXPECT_EQ(gate_->num_open(), 2);
  CloseTaken(1);
  EXPECT_EQ(gate_->num_open(), 1);
  const Socket again(gate_->local_name());
  AwaitTaken(2);
}

TEST_F(ConnectionGateTest, PlacesAreKeptForAddressesOfWorkers) {
  Open({.connections = 1, .per_client = 1, .kept = 1});
  EXPECT_EQ(gate_->local_name(), "");
  const Socket client(gate_->port());
  AwaitTaken(1);
  EXPECT_TRUE(Socket(gate_->port(), "127.0.0.3").IsClosed()) << "nobody knows it";
  gate_->KeepPlacesFor("127.0.0.3");
  EXPECT_TRUE(Socket(gate_->port(), "127.0.0.2").IsClosed());
  const Socket worker(gate_->port(), "127.0.0.3");
  AwaitTaken(2);
  EXPECT_TRUE(Socket(gate_->port(), "127.0.0.3").IsClosed()) << "one is kept";
  CloseTaken(1);
  EXPECT_EQ(gate_->num_open(), 1);
  const Socket again(gate_->port(), "127.0.0.3");
  AwaitTaken(2);
}

TEST_F(ConnectionGateTest, WhatAWorkerSaidLiesUnreadUntilSomebodyReadsIt) {
  Open({.connections = 2, .per_client = 2, .local = 1});
  const Socket local(gate_->local_name());
  const int of_local = AwaitTaken(1)[0];
  const Socket other(gate_->port());
  const int of_other = AwaitTaken(2)[1];
  sockaddr_in from = {};
  socklen_t length = sizeof(from);
  ASSERT_EQ(getpeername(of_other, reinterpret_cast<sockaddr*>(&from), &length), 0);
  const std::string peer = absl::StrCat("ipv4:127.0.0.1:", ntohs(from.sin_port));
  const auto unread = [&] { return std::make_pair(gate_->HasUnread("unix:", getpid()), gate_->HasUnread(peer, 1)); };
  EXPECT_EQ(unread(), std::make_pair(false, false));
  ASSERT_EQ(write(local.fd(), "x", 1), 1);
  EXPECT_EQ(unread(), std::make_pair(true, false));
  EXPECT_FALSE(gate_->HasUnread("unix:", getpid() + 1)) << "another process";
  ASSERT_EQ(write(other.fd(), "x", 1), 1);
  EXPECT_EQ(unread(), std::make_pair(true, true));
  EXPECT_FALSE(gate_->HasUnread(peer + "1", 1)) << "another port";
  char byte;
  ASSERT_EQ(read(of_local, &byte, 1), 1);
  EXPECT_EQ(unread(), std::make_pair(false, true));
}

// The system reuses the numbers of closed sockets.
TEST_F(ConnectionGateTest, ANumberThatIsUsedAgainIsAnotherConnection) {
  Open({.connections = 1, .per_client = 1});
  const Socket first(gate_->port());
  const int fd = AwaitTaken(1)[0];
  const int other = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ASSERT_EQ(dup2(other, fd), fd);
  close(other);
  EXPECT_EQ(gate_->num_open(), 0);
  const Socket second(gate_->port());
  AwaitTaken(2);
}

TEST_F(ConnectionGateTest, WithoutDescriptorsItWaitsAndGoesOn) {
  Open({.connections = 10, .per_client = 10});
  std::vector<int> all;
  const int last = dup(0);
  for (int fd = dup(0); fd >= 0; fd = dup(0)) all.push_back(fd);
  close(last);
  const Socket waits(gate_->port());  // takes the last number; the gate finds none
  pollfd wait = {0, 0, 0};
  poll(&wait, 0, 300);
  {
    absl::MutexLock lock(&mu_);
    EXPECT_TRUE(taken_.empty());
  }
  for (const int fd : all) close(fd);
  AwaitTaken(1);
}

TEST_F(ConnectionGateTest, WhenItIsClosedNobodyComesIn) {
  Open({});
  const Socket before(gate_->port());
  AwaitTaken(1);
  gate_->Close();
  sockaddr_in to = {};
  to.sin_family = AF_INET;
  inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
  to.sin_port = htons(static_cast<uint16_t>(gate_->port()));
  const int late = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  EXPECT_NE(connect(late, reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
  close(late);
  EXPECT_EQ(gate_->num_open(), 1) << "who is in stays";
}

TEST(ConnectionGateListenTest, SaysWhyNot) {
  const auto first = ConnectionGate::Listen("127.0.0.1", 0, {});
  ASSERT_TRUE(first.ok()) << first.status();
  const auto second = ConnectionGate::Listen("127.0.0.1", (*first)->port(), {});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()), testing::HasSubstr("in use"));
  EXPECT_FALSE(ConnectionGate::Listen("192.0.2.1", 0, {}).ok()) << "not this machine's";
  EXPECT_FALSE(ConnectionGate::Listen("no-such-host.invalid", 0, {}).ok());
}

TEST(ConnectionGateListenTest, ANameIsAllOfItsAddresses) {
  if (!KnowsLocalhost()) GTEST_SKIP() << "this machine does not know the name localhost";
  const auto gate = ConnectionGate::Listen("localhost", 0, {});
  ASSERT_TRUE(gate.ok()) << gate.status();
  const Socket reaches((*gate)->port());
}

}  // namespace
}  // namespace switchyard::server
