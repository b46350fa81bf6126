// Two ends of a connection with their threads: long and short messages of both classes, and their ends.
#include "workers/comm/tcp/socket_io.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <future>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/workers/comm/comm_test_util.h"
#include "workers/comm/core/frame_header.h"

namespace switchyard::comm {
namespace {

using test::Soon;
using testing::HasSubstr;

MessageId Sum(int64_t sequence) { return {.comm_class = CommClass::kAllReduce, .sequence = sequence}; }
MessageId Rows(int64_t sequence) { return {.comm_class = CommClass::kAllToAll, .sequence = sequence}; }

// One rank of two.
class End {
 public:
  End(int rank, UniqueFd fd, SocketTraffic* traffic) : peer_(1 - rank) {
    SocketIo::Streams streams(2);
    streams[static_cast<size_t>(peer_)] = MakePlainStream(std::move(fd));
    auto io = SocketIo::Start(std::move(streams), pool_,
                              {.framing = {.bytes = 16 << 10, .overtakes = true},
                               .traffic = traffic,
                               .on_broken = [this](int, const absl::Status& status) {
                                 absl::MutexLock lock(&mu_);
                                 broken_ = status;
                               }});
    SY_CHECK_OK(io.status());
    io_ = *std::move(io);
  }

  void Take(const MessageId& id) {
    if (io_->receiver(peer_).Post(id) && io_->sender(peer_).Send({id}, nullptr, Message())) io_->WriteSoon(peer_);
  }
  void Send(const MessageId& id, int64_t bytes) {
    Message message = pool_->Take(bytes);
    std::memset(message.frame(), static_cast<int>(id.sequence) + 1, static_cast<size_t>(bytes + kFrameHeaderBytes));
    if (io_->sender(peer_).Send({}, &id, std::move(message))) io_->WriteSoon(peer_);
  }
  SocketEnd AwaitSent(const MessageId& id, absl::Time deadline = test::Soon()) {
    return io_->sender(peer_).AwaitSent(id, deadline);
  }
  SocketEnd Await(const MessageId& id, absl::Time deadline = test::Soon(), int64_t* bytes = nullptr) {
    Message message;
    const SocketEnd end = io_->receiver(peer_).Await(id, deadline, &message);
    if (end != SocketEnd::kDone) return end;
    if (bytes != nullptr) *bytes = message.bytes();
    const std::string wanted(static_cast<size_t>(message.bytes()), static_cast<char>(id.sequence + 1));
    EXPECT_TRUE(test::TextOf(message) == wanted);
    return end;
  }
  SocketIo& io() { return *io_; }
  absl::Status broken() {
    absl::MutexLock lock(&mu_);
    return broken_;
  }

 private:
  const int peer_;
  const std::shared_ptr<MessagePool> pool_ = MessagePool::Create();
  absl::Mutex mu_;
  absl::Status broken_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<SocketIo> io_;
};

class SocketIoTest : public testing::Test {
 protected:
  void SetUp() override {
    int fds[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    const int small = 32 << 10;
    for (const int fd : fds) ASSERT_EQ(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof(small)), 0);
    other_fd_ = fds[1];
    here_ = std::make_unique<End>(0, UniqueFd(fds[0]), &traffic_);
    there_fd_ = UniqueFd(fds[1]);
  }
  End& There() {
    if (there_ == nullptr) there_ = std::make_unique<End>(1, std::move(there_fd_), &traffic_there_);
    return *there_;
  }

  SocketTraffic traffic_, traffic_there_;
  int other_fd_ = -1;
  UniqueFd there_fd_;
  std::unique_ptr<End> here_, there_;
};

TEST_F(SocketIoTest, MessagesOfAllSizesArriveWhole) {
  int64_t sequence = 0;
  for (const int64_t bytes : {0, 1, 100, 16 * 1024 - 64, 16 * 1024, 100'000, 5'000'000}) {
    const MessageId early = Sum(sequence++), late = Sum(sequence++);
    There().Take(early);
    here_->Send(early, bytes);
    here_->Send(late, bytes);
    absl::SleepFor(absl::Milliseconds(2));
    There().Take(late);
    for (const MessageId& id : {late, early}) {  // in any order
      int64_t got = -1;
      EXPECT_EQ(There().Await(id, test::Soon(), &got), SocketEnd::kDone);
      EXPECT_EQ(got, bytes);
      EXPECT_EQ(here_->AwaitSent(id), SocketEnd::kDone);
    }
  }
}

// A sum without a receiving call is stuck; any number of all-to-alls overtake it.
TEST_F(SocketIoTest, AStalledSumHoldsUpNoAllToAll) {
  for (int64_t i = 0; i < 8; ++i) here_->Send(Sum(i), 4 << 20);
  for (int64_t i = 0; i < 200; ++i) {
    There().Take(Rows(i));
    here_->Send(Rows(i), 40'000);
    ASSERT_EQ(There().Await(Rows(i)), SocketEnd::kDone);
  }
  EXPECT_EQ(here_->AwaitSent(Sum(0), absl::Now() + absl::Milliseconds(20)), SocketEnd::kLate);
  const int64_t lies_there = traffic_.bytes[static_cast<size_t>(CommClass::kAllReduce)];
  EXPECT_LE(lies_there, kWindowBytes);
  // The last first: no message waits for another of its class.
  for (int64_t i = 7; i >= 0; --i) {
    There().Take(Sum(i));
    EXPECT_EQ(There().Await(Sum(i)), SocketEnd::kDone);
  }
}

// A long sum is under way when the all-to-all comes, which arrives long before its end.
TEST_F(SocketIoTest, AnAllToAllOvertakesASumUnderWay) {
  const auto sums_sent = [&] { return traffic_.bytes[static_cast<size_t>(CommClass::kAllReduce)].load(); };
  constexpr int64_t kSumBytes = 64 << 20;
  int64_t left = 0;
  // (A thread may wait for a core as long as a whole sum takes.)
  for (int64_t i = 0; i < 10 && left <= kSumBytes / 4; ++i) {
    const int64_t before = sums_sent();
    here_->Send(Sum(i), kSumBytes);
    There().Take(Sum(i));
    while (sums_sent() < before + (1 << 20)) absl::SleepFor(absl::Microseconds(50));
    There().Take(Rows(i));
    here_->Send(Rows(i), 100'000);
    ASSERT_EQ(There().Await(Rows(i)), SocketEnd::kDone);
    left = before + kSumBytes - sums_sent();
    EXPECT_EQ(There().Await(Sum(i)), SocketEnd::kDone);
  }
  EXPECT_GT(left, kSumBytes / 4);
  EXPECT_GE(traffic_.overtaken, 1);
}

TEST_F(SocketIoTest, WhatCameBeforeTheEndCounts) {
  There().Take(Rows(0));
  There().Take(Rows(1));
  here_->Send(Rows(0), 30'000);
  ASSERT_EQ(here_->AwaitSent(Rows(0)), SocketEnd::kDone);
  here_.reset();
  EXPECT_EQ(There().Await(Rows(0)), SocketEnd::kDone);
  const absl::Time begin = absl::Now();
  EXPECT_EQ(There().Await(Rows(1)), SocketEnd::kClosed);
  There().Send(Sum(0), 8 << 20);
  EXPECT_EQ(There().AwaitSent(Sum(0)), SocketEnd::kClosed);
  EXPECT_LT(absl::Now() - begin, absl::Seconds(5));
}

TEST_F(SocketIoTest, AbortEndsWaitsOnBothSides) {
  There().Take(Rows(0));
  here_->Take(Rows(0));
  auto here = std::async(std::launch::async, [&] { return here_->Await(Rows(0)); });
  auto there = std::async(std::launch::async, [&] { return There().Await(Rows(0)); });
  here_->io().Abort();
  EXPECT_EQ(here.get(), SocketEnd::kAborted);
  EXPECT_EQ(there.get(), SocketEnd::kClosed);
}

TEST_F(SocketIoTest, WhatIsNoRecordIsReported) {
  const std::string junk = "GET / HTTP/1.1\r\nHost: example\r\n\r\n";
  ASSERT_EQ(send(other_fd_, junk.data(), junk.size(), 0), static_cast<ssize_t>(junk.size()));
  here_->Take(Rows(0));
  EXPECT_EQ(here_->Await(Rows(0)), SocketEnd::kClosed);
  EXPECT_EQ(here_->broken().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(here_->broken().message()), HasSubstr("no record of this protocol"));
}

// No thread spins: without work, and with a stuck message, the process uses almost no CPU time.
TEST_F(SocketIoTest, WaitingCostsNoTime) {
  here_->Send(Sum(0), 8 << 20);
  (void)There();
  absl::SleepFor(absl::Milliseconds(50));
  timespec before = {}, after = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
  absl::SleepFor(absl::Milliseconds(200));
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
  EXPECT_LT(absl::DurationFromTimespec(after) - absl::DurationFromTimespec(before), absl::Milliseconds(40));
}

}  // namespace
}  // namespace switchyard::comm
