// Which bytes go next, written in any portions: classes, frames, grants and credit.
#include "workers/comm/tcp/socket_send_queue.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "workers/comm/core/frame_header.h"

namespace switchyard::comm {
namespace {

using testing::ElementsAre;

constexpr int64_t kFrame = 4096;

MessageId Id(CommClass comm_class, int64_t sequence) { return {.comm_class = comm_class, .sequence = sequence}; }
const CommClass kRows = CommClass::kAllToAll, kSums = CommClass::kAllReduce, kWords = CommClass::kControl,
                kLayers = CommClass::kLayerSum;

class SocketSendQueueTest : public testing::Test {
 protected:
  explicit SocketSendQueueTest(const SocketFraming& framing = {.bytes = kFrame, .overtakes = true})
      : queue_(framing, &traffic_) {}

  // A message of so many bytes, its header included, granted or not.
  void Push(const MessageId& id, int64_t bytes, bool granted = true) {
    if (granted) {
      EXPECT_TRUE(queue_.Granted(id).ok());
    }
    Message message = pool_->Take(bytes - kFrameHeaderBytes);
    for (int64_t i = 0; i < bytes; ++i) message.frame()[i] = ByteOf(id, i);
    queue_.Push(id, std::move(message));
  }
  static char ByteOf(const MessageId& id, int64_t at) {
    return static_cast<char>(at * 7 + at / 251 + id.sequence * 31 + static_cast<int64_t>(id.comm_class));
  }

  // Writes at most so many bytes, in portions.
  int64_t Write(int64_t most, int64_t portion = 1 << 20) {
    int64_t written = 0;
    while (written < most) {
      iovec parts[SocketSendQueue::kMostParts];
      const int num_parts = queue_.Next(parts);
      if (num_parts == 0) break;
      int64_t left = std::min(portion, most - written), now = 0;
      for (int i = 0; i < num_parts && left > 0; ++i) {
        const auto bytes = std::min(left, static_cast<int64_t>(parts[i].iov_len));
        wire_.append(static_cast<const char*>(parts[i].iov_base), static_cast<size_t>(bytes));
        left -= bytes;
        now += bytes;
      }
      queue_.Wrote(now);
      written += now;
    }
    return written;
  }
  void WriteAll(int64_t portion = 1 << 20) {
    Write(1 << 30, portion);
    EXPECT_FALSE(queue_.HasMore());
  }

  // What has been written, in order: "rows 0: 64", "grant sums 3".  Checks every frame's bytes.
  std::vector<std::string> Records() {
    std::vector<std::string> records;
    size_t at = 0;
    while (at + sizeof(RecordHeader) <= wire_.size()) {
      RecordHeader header;
      std::memcpy(&header, wire_.data() + at, sizeof(header));
      EXPECT_TRUE(CheckRecord(header).ok()) << CheckRecord(header);
      at += sizeof(header);
      const std::string name = absl::StrCat(CommClassName(header.id().comm_class), " ", header.sequence);
      if (header.kind == RecordKind::kGrant) {
        records.push_back("grant " + name);
        continue;
      }
      if (at + header.bytes > wire_.size()) break;  // under way
      int64_t& from = got_[header.id()];
      for (uint32_t i = 0; i < header.bytes; ++i) {
        if (wire_[at + i] == ByteOf(header.id(), from + i)) continue;
        ADD_FAILURE() << "byte " << from + i << " of " << name;
        break;
      }
      from += header.bytes;
      at += header.bytes;
      records.push_back(absl::StrCat(name, ": ", header.bytes));
    }
    wire_.erase(0, at);
    return records;
  }

  std::shared_ptr<MessagePool> pool_ = MessagePool::Create();
  SocketTraffic traffic_;
  SocketSendQueue queue_;
  std::string wire_;
  std::map<MessageId, int64_t> got_;
};

TEST_F(SocketSendQueueTest, AMessageGoesInFrames) {
  Push(Id(kRows, 0), 2 * kFrame + 100);
  EXPECT_TRUE(queue_.Holds(Id(kRows, 0)));
  WriteAll();
  EXPECT_FALSE(queue_.Holds(Id(kRows, 0)));
  EXPECT_THAT(Records(), ElementsAre("all_to_all 0: 4096", "all_to_all 0: 4096", "all_to_all 0: 100"));
  EXPECT_EQ(traffic_.frames[static_cast<size_t>(kRows)], 3);
  EXPECT_EQ(traffic_.bytes[static_cast<size_t>(kRows)], 2 * kFrame + 100);
  EXPECT_EQ(traffic_.overtaken, 0);
}

TEST_F(SocketSendQueueTest, InPortionsOfAnySizeTheBytesAreTheSame) {
  for (const int64_t portion : {1, 7, 31, 33, 4095, 5000}) {
    Push(Id(kSums, portion), 3 * kFrame);
    queue_.PushGrant(Id(kRows, 1));
    Push(Id(kRows, portion), 64);
    WriteAll(portion);
    EXPECT_THAT(Records(), ElementsAre("grant all_to_all 1", testing::_, testing::_, testing::_, testing::_));
  }
}

TEST_F(SocketSendQueueTest, AnAllToAllWaitsForOneFrameOfASum) {
  Push(Id(kSums, 0), 4 * kFrame);
  Write(100);  // the first frame has begun
  Push(Id(kRows, 0), 2 * kFrame);
  Push(Id(kWords, 0), 64);
  WriteAll();
  EXPECT_THAT(Records(), ElementsAre("all_reduce 0: 4096", "control 0: 64", "all_to_all 0: 4096", "all_to_all 0: 4096",
                                     "all_reduce 0: 4096", "all_reduce 0: 4096", "all_reduce 0: 4096"));
  EXPECT_EQ(traffic_.overtaken, 2);
}

TEST_F(SocketSendQueueTest, ALayersSumGoesAfterAllToAllsAndBeforeGradients) {
  for (const CommClass comm_class : {kSums, kLayers, kRows, kWords}) Push(Id(comm_class, 0), 2 * kFrame);
  WriteAll();
  EXPECT_THAT(Records(),
              ElementsAre("control 0: 4096", "control 0: 4096", "all_to_all 0: 4096", "all_to_all 0: 4096",
                          "layer_sum 0: 4096", "layer_sum 0: 4096", "all_reduce 0: 4096", "all_reduce 0: 4096"));
  EXPECT_EQ(traffic_.overtaken, 3);
  EXPECT_EQ(traffic_.frames[static_cast<size_t>(kLayers)], 2);
  EXPECT_EQ(traffic_.bytes[static_cast<size_t>(kLayers)], 2 * kFrame);
}

class SocketSendQueueInTurnsTest : public SocketSendQueueTest {
 protected:
  SocketSendQueueInTurnsTest() : SocketSendQueueTest({.bytes = kFrame}) {}
};

TEST_F(SocketSendQueueInTurnsTest, ClassesTakeTurnsAFrameEach) {
  Push(Id(kSums, 0), 4 * kFrame);
  Write(100);  // the first frame has begun
  Push(Id(kRows, 0), 2 * kFrame);
  Push(Id(kWords, 0), 64);
  WriteAll();
  EXPECT_THAT(Records(), ElementsAre("all_reduce 0: 4096", "control 0: 64", "all_to_all 0: 4096", "all_reduce 0: 4096",
                                     "all_to_all 0: 4096", "all_reduce 0: 4096", "all_reduce 0: 4096"));
  EXPECT_EQ(traffic_.overtaken, 0);
}

TEST_F(SocketSendQueueInTurnsTest, EveryClassHasATurn) {
  for (const CommClass comm_class : {kSums, kLayers, kRows, kWords}) Push(Id(comm_class, 0), 2 * kFrame);
  WriteAll();
  EXPECT_THAT(Records(),
              ElementsAre("control 0: 4096", "all_to_all 0: 4096", "layer_sum 0: 4096", "all_reduce 0: 4096",
                          "control 0: 4096", "all_to_all 0: 4096", "layer_sum 0: 4096", "all_reduce 0: 4096"));
}

TEST_F(SocketSendQueueInTurnsTest, AClassThatMayNotSendMissesItsTurn) {
  Push(Id(kRows, 0), kUngrantedBytes + kFrame, /*granted=*/false);
  Push(Id(kSums, 0), kFrame);
  WriteAll();
  const std::vector<std::string> records = Records();
  EXPECT_EQ(records[0], "all_to_all 0: 4096");
  EXPECT_EQ(records[1], "all_reduce 0: 4096");
  EXPECT_EQ(records.size(), static_cast<size_t>(kUngrantedBytes / kFrame) + 1);
  EXPECT_TRUE(queue_.Holds(Id(kRows, 0)));
}

TEST_F(SocketSendQueueTest, WithinAClassTheOrderIsThatOfCalls) {
  for (const int64_t sequence : {3, 1, 2}) Push(Id(kSums, sequence), kFrame + 64);
  WriteAll();
  EXPECT_THAT(Records(), ElementsAre("all_reduce 3: 4096", "all_reduce 3: 64", "all_reduce 1: 4096", "all_reduce 1: 64",
                                     "all_reduce 2: 4096", "all_reduce 2: 64"));
}

TEST_F(SocketSendQueueTest, WhatIsNotGrantedStopsAndHoldsUpNothing) {
  const MessageId late = Id(kSums, 0), granted = Id(kSums, 1);
  Push(late, 2 * kUngrantedBytes, /*granted=*/false);
  Push(granted, kFrame);
  WriteAll();
  int64_t of_late = 0;
  const std::vector<std::string> first = Records();
  for (const std::string& record : first) of_late += record == "all_reduce 0: 4096" ? kFrame : 0;
  EXPECT_EQ(of_late, kUngrantedBytes);
  EXPECT_EQ(first.back(), "all_reduce 1: 4096");
  EXPECT_TRUE(queue_.Holds(late));
  ASSERT_TRUE(queue_.Granted(late).ok());
  WriteAll();
  EXPECT_EQ(static_cast<int64_t>(Records().size()), kUngrantedBytes / kFrame);
  EXPECT_FALSE(queue_.Holds(late));
}

// However many sums the peer has not launched, all-to-alls it has not launched either still have their own credit.
TEST_F(SocketSendQueueTest, CreditIsOfAClass) {
  const int64_t many = 3 * kWindowBytes / kUngrantedBytes;
  for (int64_t i = 0; i < many; ++i) Push(Id(kSums, i), kUngrantedBytes, /*granted=*/false);
  WriteAll();
  EXPECT_EQ(static_cast<int64_t>(Records().size()), kWindowBytes / kFrame);
  Push(Id(kRows, 0), kFrame, /*granted=*/false);
  Push(Id(kLayers, 0), kFrame, /*granted=*/false);
  WriteAll();
  EXPECT_THAT(Records(), ElementsAre("all_to_all 0: 4096", "layer_sum 0: 4096"));
  // One that had gone whole is granted: its credit is another's.
  ASSERT_TRUE(queue_.Granted(Id(kSums, 0)).ok());
  WriteAll();
  EXPECT_EQ(static_cast<int64_t>(Records().size()), kUngrantedBytes / kFrame);
  for (int64_t i = 1; i < many; ++i) ASSERT_TRUE(queue_.Granted(Id(kSums, i)).ok());
  WriteAll();
  EXPECT_EQ(static_cast<int64_t>(Records().size()),
            (many - kWindowBytes / kUngrantedBytes - 1) * kUngrantedBytes / kFrame);
  EXPECT_EQ(got_[Id(kSums, many - 1)], kUngrantedBytes);
}

TEST_F(SocketSendQueueTest, AGrantMayComeBeforeItsMessageAndOnlyOnce) {
  ASSERT_TRUE(queue_.Granted(Id(kSums, 7)).ok());
  EXPECT_EQ(queue_.Granted(Id(kSums, 7)).code(), absl::StatusCode::kFailedPrecondition);
  Push(Id(kSums, 7), 4 * kUngrantedBytes, /*granted=*/false);  // it was
  WriteAll();
  EXPECT_FALSE(queue_.Holds(Id(kSums, 7)));
  for (size_t i = 0; i < kMostEarlyGrants; ++i) {
    ASSERT_TRUE(queue_.Granted(Id(kRows, static_cast<int64_t>(i))).ok()) << i;
  }
  EXPECT_EQ(queue_.Granted(Id(kRows, kMostEarlyGrants)).code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace switchyard::comm
