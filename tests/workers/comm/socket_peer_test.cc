// A peer of a socket group that breaks the protocol: it stops in the middle, resets, sends nothing, reads nothing, or
// sends nonsense.  Calls that wait for it end, and name it.
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <future>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/base/check.h"
#include "scheduler/base/io/unique_fd.h"
#include "scheduler/base/status_macros.h"
#include "tests/workers/comm/comm_test_util.h"
#include "workers/comm/core/frame_header.h"
#include "workers/comm/tcp/socket_communicator.h"
#include "workers/comm/tcp/socket_io.h"

namespace switchyard::comm {
namespace {

using test::Soon;
using testing::AllOf;
using testing::HasSubstr;

constexpr OpKey kRows = {.op = CommOp::kAllToAllV, .comm_class = CommClass::kAllToAll};

GroupOptions Options(int rank) {
  return {.rank = rank, .world = 2, .token = "secret", .address = "127.0.0.1", .deadline = test::Soon()};
}

template <class Plain>
std::string BytesOf(const Plain& plain) {
  return std::string(reinterpret_cast<const char*>(&plain), sizeof(plain));
}

// A message in one frame, or the first frame of one.
std::string FrameOf(const OpKey& key, const std::string& payload, int64_t message_bytes) {
  const std::string message =
      BytesOf(MakeFrameHeader(IdOfGroup(Options(1)), key, 0, message_bytes - kFrameHeaderBytes)) + payload;
  const MessageId id = {.comm_class = key.comm_class, .sequence = key.sequence};
  return BytesOf(FrameRecord(id, static_cast<int64_t>(message.size()), message_bytes)) + message;
}
std::string WholeFrame(const OpKey& key, const std::string& payload) {
  return FrameOf(key, payload, kFrameHeaderBytes + static_cast<int64_t>(payload.size()));
}

// Rank 0 is a group's; rank 1 is the test, which writes and reads by hand.
class SocketPeerTest : public testing::Test {
 protected:
  void SetUp() override { Form(); }
  // A new group in place of the last.
  void Form() {
    comm_.reset();
    InMemoryStore store;
    const std::string prefix = GroupPrefix(Options(1));
    ASSERT_TRUE(store.Set(absl::StrCat(prefix, "member/1"), "2").ok());
    auto forming = std::async(std::launch::async, [&] { return FormSocketGroup({.group = Options(0)}, &store); });
    fd_ = test::JoinByHand(Options(1), &store);
    auto formed = forming.get();
    ASSERT_TRUE(formed.ok()) << formed.status();
    comm_ = *std::move(formed);
  }
  void Write(const std::string& bytes) {
    ASSERT_EQ(send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  }
  absl::StatusOr<std::unique_ptr<Work>> Start(int64_t bytes = 0, absl::Time deadline = test::Soon()) {
    std::vector<Message> out(2);
    if (bytes > 0) out[1] = comm_->NewMessage(bytes);
    return comm_->AllToAllV({.deadline = deadline}, std::move(out));
  }
  absl::Status Exchange(int64_t bytes = 0, absl::Time deadline = test::Soon()) {
    ASSIGN_OR_RETURN(const std::unique_ptr<Work> work, Start(bytes, deadline));
    return work->Wait();
  }
  void ExpectGone(const absl::Status& status) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1 is gone during all_to_all_v #0"));
  }

  UniqueFd fd_;
  std::unique_ptr<Communicator> comm_;
};

TEST_F(SocketPeerTest, ByteByByteIsAMessage) {
  auto work = Start();
  ASSERT_TRUE(work.ok());
  for (const char byte : WholeFrame(kRows, "in pieces")) Write(std::string(1, byte));
  ASSERT_TRUE((*work)->Wait().ok());
  EXPECT_EQ(test::TextOf((*work)->received()[1]), "in pieces");
}

TEST_F(SocketPeerTest, AnEndInTheMiddleOfAFrame) {
  Write(WholeFrame(kRows, std::string(1000, 'x')).substr(0, 500));
  shutdown(fd_.get(), SHUT_WR);  // half closed: it would still read
  ExpectGone(Exchange());
}

TEST_F(SocketPeerTest, AnEndInTheMiddleOfAHeader) {
  Write(WholeFrame(kRows, "").substr(0, 31));
  fd_ = UniqueFd();
  ExpectGone(Exchange());
}

TEST_F(SocketPeerTest, AResetBetweenFrames) {
  Write(FrameOf(kRows, std::string(8000, 'x'), 100'000));
  const linger at_once = {.l_onoff = 1, .l_linger = 0};
  ASSERT_EQ(setsockopt(fd_.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once)), 0);
  fd_ = UniqueFd();
  ExpectGone(Exchange());
}

// Also while bytes that it does not read are being sent.
TEST_F(SocketPeerTest, AResetInTheMiddleOfASend) {
  auto work = Start(64 << 20);
  ASSERT_TRUE(work.ok());
  Write(WholeFrame(kRows, "") + BytesOf(GrantRecord({.comm_class = kRows.comm_class})));
  char some[1 << 16];
  ASSERT_GT(recv(fd_.get(), some, sizeof(some), 0), 0);
  fd_ = UniqueFd();  // what it has not read makes it a reset
  ExpectGone((*work)->Wait());
}

TEST_F(SocketPeerTest, WhatStopsComingIsNamedWithHowMuchCame) {
  Write(FrameOf(kRows, std::string(8000, 'x'), 100'000));
  const absl::Status status = Exchange(0, absl::Now() + absl::Seconds(1));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_EQ(status.message(),
            "of 100000 bytes that rank 1 sends in all_to_all_v #0 of class all_to_all only 8064 came in time");
}

TEST_F(SocketPeerTest, WhoDoesNotReadIsNamed) {
  Write(WholeFrame(kRows, "") + BytesOf(GrantRecord({.comm_class = kRows.comm_class})));
  const absl::Status status = Exchange(64 << 20, absl::Now() + absl::Seconds(1));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1 did not take its part of all_to_all_v #0"));
}

TEST_F(SocketPeerTest, WhoNeverLaunchesIsNamed) {
  const absl::Status status = Exchange(64 << 20, absl::Now() + absl::Milliseconds(200));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1 did not launch all_to_all_v #0"));
}

TEST_F(SocketPeerTest, NonsenseIsNamed) {
  const MessageId rows = {.comm_class = CommClass::kAllToAll};
  const std::string half = BytesOf(FrameRecord(rows, 5000, 10'000)) + std::string(5000, 'x');
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"GET / HTTP/1.1\r\nHost: example\r\n\r\n", "no record of this protocol"},
      {BytesOf(FrameRecord(rows, 1, 63)), "says 1 bytes of a message of 63"},
      {BytesOf(FrameRecord(rows, 100, int64_t{1} << 40)), "of a message of 1099511627776"},
      {half + BytesOf(FrameRecord(rows, 5000, 20'000)), "says another length than before"},
      {half + BytesOf(FrameRecord(rows, 6000, 10'000)), "is too long"},
      {BytesOf(GrantRecord(rows)) + BytesOf(GrantRecord(rows)), "not for the first time"},
  };
  for (const auto& [bytes, what] : cases) {
    Form();
    auto work = Start();
    ASSERT_TRUE(work.ok());
    // (The first grant is this exchange's, which is not early.)
    Write(what == "not for the first time" ? BytesOf(GrantRecord(rows)) + bytes : bytes);
    const absl::Status status = (*work)->Wait();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("on rank 1's connection"), HasSubstr(what)));
    EXPECT_EQ(comm_->status(), status);
  }
}

// A peer's bytes, with some wrong, lost or repeated: nothing crashes, and no call waits for ever.
TEST(SocketNonsenseTest, AnyBytesEndEveryWait) {
  const MessageId rows = {.comm_class = CommClass::kAllToAll}, sum = {.comm_class = CommClass::kAllReduce};
  const std::string stream = BytesOf(GrantRecord(rows)) + BytesOf(FrameRecord(sum, 4096, 5000)) +
                             std::string(4096, 's') + BytesOf(FrameRecord(rows, 700, 1000)) + std::string(700, 'r') +
                             BytesOf(FrameRecord(sum, 904, 5000)) + std::string(904, 's') +
                             BytesOf(FrameRecord(rows, 300, 1000)) + std::string(300, 'r');
  const std::vector<size_t> headers = {0, 32, 32 + 32 + 4096, 64 + 32 + 4096 + 700, 96 + 32 + 4096 + 700 + 904};
  int done = 0, closed = 0;
  for (uint32_t seed = 0; seed < 500; ++seed) {
    std::mt19937 random(seed);
    std::string bytes = stream;
    const size_t at = headers[random() % headers.size()] + random() % sizeof(RecordHeader);
    if (seed % 4 == 0) bytes.resize(at);
    if (seed % 4 == 1) bytes.erase(at, 1 + random() % 100);
    if (seed % 4 == 2) bytes.insert(at, bytes, 0, random() % bytes.size());
    for (uint32_t i = 0; seed % 4 == 3 && i < 1 + random() % 3; ++i) bytes[at + i] = static_cast<char>(random());

    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    UniqueFd peer(ends[1]);
    SocketIo::Streams streams(2);
    streams[1] = MakePlainStream(UniqueFd(ends[0]));
    const auto pool = MessagePool::Create();
    SocketTraffic traffic;
    auto io = SocketIo::Start(std::move(streams), pool,
                              {.framing = {.bytes = 16 << 10, .overtakes = true},
                               .traffic = &traffic,
                               .on_broken = [](int, const absl::Status&) {}});
    ASSERT_TRUE(io.ok());
    (*io)->receiver(1).Post(rows);
    if ((*io)->sender(1).Send({rows}, &rows, pool->Take(1 << 20))) (*io)->WriteSoon(1);
    ASSERT_EQ(send(peer.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
    (*io)->receiver(1).Post(sum);
    peer = UniqueFd();
    for (const MessageId& id : {rows, sum}) {
      Message message;
      const SocketEnd end = (*io)->receiver(1).Await(id, test::Soon(), &message);
      ASSERT_TRUE(end == SocketEnd::kDone || end == SocketEnd::kClosed) << "seed " << seed;
      ++(end == SocketEnd::kDone ? done : closed);
    }
    EXPECT_NE((*io)->sender(1).AwaitSent(rows, test::Soon()), SocketEnd::kLate) << "seed " << seed;
  }
  EXPECT_GT(done, 0);
  EXPECT_GT(closed, 100);
}

}  // namespace
}  // namespace switchyard::comm
