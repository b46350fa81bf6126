// The memory of a peer's messages, and the bytes that a peer may not send.
#include "workers/comm/tcp/socket_receive_table.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "workers/comm/core/frame_header.h"

namespace switchyard::comm {
namespace {

using testing::AllOf;
using testing::HasSubstr;

MessageId Sum(int64_t sequence) { return {.comm_class = CommClass::kAllReduce, .sequence = sequence}; }
MessageId Rows(int64_t sequence) { return {.comm_class = CommClass::kAllToAll, .sequence = sequence}; }

class SocketReceiveTableTest : public testing::Test {
 protected:
  // `bytes` of a message of `total`, from where it was; in portions.
  absl::Status Frame(const MessageId& id, int64_t bytes, int64_t total, int64_t portion = 1 << 20) {
    const absl::Status status = table_.Begin(FrameRecord(id, bytes, total));
    if (!status.ok()) return status;
    int64_t& at = sent_[id];
    while (!table_.Room().empty()) {
      const absl::Span<char> room = table_.Room();
      const int64_t now = std::min(portion, static_cast<int64_t>(room.size()));
      for (int64_t i = 0; i < now; ++i) room[static_cast<size_t>(i)] = ByteAt(at + i);
      table_.Received(now);
      at += now;
    }
    return absl::OkStatus();
  }
  static char ByteAt(int64_t at) { return static_cast<char>(at * 13 + at / 255); }
  void ExpectTaken(const MessageId& id, int64_t total) {
    ASSERT_TRUE(table_.IsWhole(id));
    const Message message = table_.Take(id);
    ASSERT_EQ(message.bytes(), total - kFrameHeaderBytes);
    for (int64_t i = 0; i < total; ++i) ASSERT_EQ(message.frame()[i], ByteAt(i)) << i;
  }

  SocketReceiveTable table_{MessagePool::Create()};
  std::map<MessageId, int64_t> sent_;
};

TEST_F(SocketReceiveTableTest, MessagesComeInFramesByTurns) {
  EXPECT_TRUE(table_.Post(Sum(0)));
  EXPECT_FALSE(table_.Post(Sum(0)));  // again
  EXPECT_TRUE(table_.Post(Rows(0)));
  ASSERT_TRUE(Frame(Sum(0), 3000, 10'000, 999).ok());
  ASSERT_TRUE(Frame(Rows(0), 64, 64).ok());
  EXPECT_FALSE(table_.IsWhole(Sum(0)));
  ExpectTaken(Rows(0), 64);
  ASSERT_TRUE(Frame(Sum(0), 7000, 10'000, 1).ok());
  ExpectTaken(Sum(0), 10'000);
}

// The beginning is kept, and found again when the call comes: of short and of long messages, between frames and within.
TEST_F(SocketReceiveTableTest, WhatComesBeforeItsCallIsKept) {
  for (const int64_t total : {int64_t{64}, int64_t{5000}, kUngrantedBytes, 3 * kUngrantedBytes}) {
    const MessageId id = Sum(total);
    int64_t early = std::min(total, kUngrantedBytes);
    for (int64_t left = early; left > 0; left -= std::min(left, kMostFrameBytes)) {
      ASSERT_TRUE(Frame(id, std::min(left, kMostFrameBytes), total).ok());
    }
    EXPECT_FALSE(table_.IsWhole(id));  // its call is not launched yet
    EXPECT_TRUE(table_.Post(id));
    for (; early < total; early += kMostFrameBytes) ASSERT_TRUE(Frame(id, kMostFrameBytes, total).ok());
    ExpectTaken(id, total);
  }
}

TEST_F(SocketReceiveTableTest, TheCallMayComeInTheMiddleOfAFrame) {
  const int64_t total = 4 * kUngrantedBytes;
  ASSERT_TRUE(table_.Begin(FrameRecord(Sum(0), kMostFrameBytes, total)).ok());
  int64_t at = 0;
  const auto fill = [&](int64_t bytes) {
    for (int64_t i = 0; i < bytes; ++i) table_.Room()[static_cast<size_t>(i)] = ByteAt(at + i);
    table_.Received(bytes);
    at += bytes;
  };
  fill(1000);
  EXPECT_TRUE(table_.Post(Sum(0)));
  fill(kMostFrameBytes - 1000);
  sent_[Sum(0)] = at;
  while (sent_[Sum(0)] < total) ASSERT_TRUE(Frame(Sum(0), kMostFrameBytes, total).ok());
  ExpectTaken(Sum(0), total);
}

TEST_F(SocketReceiveTableTest, WhatIsKeptIsBounded) {
  const int64_t total = int64_t{1} << 30;
  for (int64_t i = 0; i < kWindowBytes / kUngrantedBytes; ++i) {
    for (int64_t part = 0; part < kUngrantedBytes / kMostFrameBytes; ++part) {
      ASSERT_TRUE(Frame(Sum(i), kMostFrameBytes, total).ok());
    }
  }
  // More of one, and more of the class.
  EXPECT_THAT(std::string(Frame(Sum(0), 1, total).message()), HasSubstr("comes before it was granted"));
  EXPECT_THAT(std::string(Frame(Sum(99), 64, 64).message()),
              AllOf(HasSubstr("#99 of class all_reduce"), HasSubstr("comes before it was granted")));
  EXPECT_TRUE(Frame(Rows(0), 64, 64).ok());  // another class has room of its own
  EXPECT_TRUE(table_.Post(Sum(1)));          // and one that is launched makes room
  EXPECT_TRUE(Frame(Sum(98), 64, 64).ok());
}

// Memory is allocated for received bytes, not for the claimed length.
TEST_F(SocketReceiveTableTest, MemoryIsForWhatHasCome) {
  const int64_t before = MemoryInUse(DeviceKind::kCpu);
  for (int64_t i = 0; i < kWindowBytes / kLeastFrameBytes; ++i) {
    ASSERT_TRUE(Frame(Sum(i), kLeastFrameBytes, int64_t{1} << 30).ok());
  }
  EXPECT_LE(MemoryInUse(DeviceKind::kCpu) - before, 2 * kWindowBytes);
}

TEST_F(SocketReceiveTableTest, PiecesThatNobodyCutsAreRefused) {
  EXPECT_THAT(std::string(Frame(Sum(0), kLeastFrameBytes - 1, 1 << 20).message()), HasSubstr("a piece that nobody"));
  EXPECT_TRUE(Frame(Sum(1), 64, 64).ok());  // whole
  ASSERT_TRUE(Frame(Sum(2), kLeastFrameBytes, kLeastFrameBytes + 1).ok());
  EXPECT_TRUE(Frame(Sum(2), 1, kLeastFrameBytes + 1).ok());  // its end
}

TEST_F(SocketReceiveTableTest, HowMuchHasComeIsKnown) {
  const auto came = [&](int64_t got, int64_t bytes) {
    const SocketReceiveTable::Share share = table_.Came(Sum(0));
    return share.got == got && share.bytes == bytes;
  };
  EXPECT_TRUE(came(0, 0));
  table_.Post(Sum(0));
  EXPECT_TRUE(came(0, 0));
  ASSERT_TRUE(Frame(Sum(0), 100, 300).ok());
  EXPECT_TRUE(came(100, 300));
  ASSERT_TRUE(Frame(Sum(0), 200, 300).ok());
  EXPECT_TRUE(came(300, 300));
}

TEST_F(SocketReceiveTableTest, FramesThatFitNoMessageAreRefused) {
  table_.Post(Sum(0));
  ASSERT_TRUE(Frame(Sum(0), 100, 200).ok());
  EXPECT_THAT(std::string(Frame(Sum(0), 100, 300).message()), HasSubstr("says another length"));
  EXPECT_THAT(std::string(Frame(Sum(0), 101, 200).message()), HasSubstr("is too long"));
  ASSERT_TRUE(Frame(Sum(0), 100, 200).ok());
  EXPECT_THAT(std::string(Frame(Sum(0), 1, 200).message()), HasSubstr("is too long"));
}

TEST_F(SocketReceiveTableTest, WhatNobodyTakesIsNamed) {
  EXPECT_EQ(table_.Unclaimed(), std::nullopt);
  table_.Post(Rows(0));
  ASSERT_TRUE(Frame(Rows(0), 64, 64).ok());
  EXPECT_EQ(table_.Unclaimed(), std::nullopt);  // its call is launched
  const OpKey key = {
      .op = CommOp::kAllReduceSum, .comm_class = CommClass::kAllReduce, .sequence = 4, .bytes = 0, .tag = 9};
  const FrameHeader header = MakeFrameHeader({.rank = 1, .world = 2}, key, 0, 0);
  ASSERT_TRUE(table_.Begin(FrameRecord(Sum(4), sizeof(header), sizeof(header))).ok());
  std::memcpy(table_.Room().data(), &header, sizeof(header));
  table_.Received(sizeof(header));
  EXPECT_EQ(table_.Unclaimed(), key);
}

TEST(SocketWireTest, RecordsOfAnotherKindAreRefused) {
  const RecordHeader good = FrameRecord(Sum(1), 100, 200);
  EXPECT_TRUE(CheckRecord(good).ok());
  EXPECT_TRUE(CheckRecord(GrantRecord(Rows(2))).ok());
  const auto refused = [](RecordHeader header, auto change) {
    change(&header);
    return CheckRecord(header).code() == absl::StatusCode::kFailedPrecondition;
  };
  EXPECT_TRUE(refused(good, [](RecordHeader* h) { h->magic = FrameHeader::kMagic; }));
  EXPECT_TRUE(refused(good, [](RecordHeader* h) { h->kind = static_cast<RecordKind>(3); }));
  EXPECT_TRUE(refused(good, [](RecordHeader* h) { h->comm_class = kNumCommClasses; }));
  EXPECT_TRUE(refused(good, [](RecordHeader* h) { h->one_way = 2; }));
  EXPECT_TRUE(refused(good, [](RecordHeader* h) { h->bytes = 0; }));
  EXPECT_TRUE(refused(good, [](RecordHeader* h) { h->bytes = kMostFrameBytes + 1; }));
  EXPECT_TRUE(refused(good, [](RecordHeader* h) { h->message_bytes = kFrameHeaderBytes - 1; }));
  EXPECT_TRUE(refused(good, [](RecordHeader* h) { h->message_bytes = int64_t{1} << 40; }));
  EXPECT_TRUE(refused(GrantRecord(Rows(2)), [](RecordHeader* h) { h->bytes = 1; }));
}

}  // namespace
}  // namespace switchyard::comm
