// The guard of HTTP/2 frames: each limit, what clients may do, and that it does not matter how bytes are cut.
#include "server/front/frame_guard.h"

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/front/frames.h"

namespace switchyard::server {
namespace {

const absl::Time kStart = absl::UnixEpoch();

std::string Begin() { return kHttp2Preface + Frame(kSettingsFrame, 0, 0); }
std::string Call(uint32_t stream, uint8_t flags = kEndHeadersFlag) { return Frame(kHeadersFrame, flags, stream, "h"); }
std::string Reset(uint32_t stream) { return Frame(kResetFrame, 0, stream, std::string("\0\0\0\x08", 4)); }
// The server's answer: headers, and with `end` nothing more.
std::string Answer(uint32_t stream, bool end) {
  return Frame(kHeadersFrame, kEndHeadersFlag | (end ? kEndStreamFlag : 0), stream, "a");
}
std::string Many(int count, const std::function<std::string(uint32_t)>& frame) {
  std::string bytes;
  for (int i = 0; i < count; ++i) bytes += frame(static_cast<uint32_t>(2 * i + 1));
  return bytes;
}

// Few of everything, so that each limit can be seen.
FrameGuard::Limits Small() {
  return {.frame_bytes = 16384,
          .header_bytes = 16384,
          .open_streams = 10,
          .resets = 8,
          .streams_a_second = 2000,
          .stream_burst = 100,
          .frame_burst = 1000,
          .ping_burst = 5,
          .settings_burst = 5,
          .window_update_burst = 5,
          .other_frame_burst = 5,
          .unread_answers = 4};
}

class FrameGuardTest : public testing::Test {
 protected:
  // All of it may go on.
  void Passes(const std::string& bytes) {
    EXPECT_EQ(guard_.FromClient(bytes, now_), bytes.size());
    EXPECT_FALSE(guard_.violation().has_value()) << guard_.violation()->ToString();
    EXPECT_LE(guard_.waits_until(), now_);
  }
  // Of `bytes` only so many go on, as the rest breaks a limit.
  void Breaks(const std::string& bytes, FrontLimit limit, size_t passed, int64_t allowed, int64_t actual) {
    EXPECT_EQ(guard_.FromClient(bytes, now_), passed);
    ASSERT_TRUE(guard_.violation().has_value());
    EXPECT_EQ(guard_.violation()->ToString(), absl::StrCat(NameOf(limit), ": limit ", allowed, ", actual ", actual));
    EXPECT_EQ(guard_.FromClient("more", now_), 0u);
  }

  absl::Time now_ = kStart;
  FrameGuard guard_{Small(), kStart};
};

// A client that never acknowledges the server's SETTINGS is held to them all the same.
TEST(AcknowledgingGuardTest, NothingPassesBeforeBothHaveSet) {
  const std::string own = Frame(kSettingsFrame, 0, 0, std::string(6, '\0'));
  FrameGuard guard({.acknowledges = true}, kStart);
  EXPECT_FALSE(guard.TakeAcknowledgement());
  EXPECT_EQ(guard.FromClient(kHttp2Preface + own + Call(1), kStart), (kHttp2Preface + own).size());
  EXPECT_FALSE(guard.TakeAcknowledgement()) << "the server may not have sent them yet";
  guard.FromServer(Frame(kSettingsFrame, 0, 0));
  EXPECT_EQ(guard.FromClient(Call(1), kStart), 0u);
  EXPECT_TRUE(guard.TakeAcknowledgement());
  EXPECT_FALSE(guard.TakeAcknowledgement()) << "once";
  EXPECT_EQ(guard.FromClient(Call(1), kStart), Call(1).size());
  EXPECT_EQ(Frame(kSettingsFrame, kAckFlag, 0), std::string(kSettingsAck, sizeof(kSettingsAck) - 1));
}

TEST(AcknowledgingGuardTest, ItDoesNotCutAFrame) {
  const std::string bytes = kHttp2Preface + Frame(kSettingsFrame, 0, 0, std::string(6, '\0'));
  FrameGuard guard({.acknowledges = true}, kStart);
  guard.FromServer(Frame(kSettingsFrame, 0, 0));
  EXPECT_EQ(guard.FromClient(bytes.substr(0, bytes.size() - 1), kStart), bytes.size() - 1);
  EXPECT_FALSE(guard.TakeAcknowledgement());
  EXPECT_EQ(guard.FromClient(bytes.substr(bytes.size() - 1), kStart), 1u);
  EXPECT_TRUE(guard.TakeAcknowledgement());
}

TEST_F(FrameGuardTest, ACallPasses) {
  EXPECT_EQ(guard_.FromClient(kHttp2Preface.substr(0, 23), now_), 0u);
  EXPECT_FALSE(guard_.begun());
  Passes(Begin());
  EXPECT_TRUE(guard_.begun());
  Passes(Call(1) + Frame(kDataFrame, kEndStreamFlag, 1, Prefixed("hello")));
  EXPECT_EQ(guard_.open_streams(), 1u);
  EXPECT_EQ(guard_.held_bytes(), FrameGuard::kBytesOfStream + 5);
  guard_.FromServer(Frame(kSettingsFrame, 0, 0) + Answer(1, false) + Frame(kDataFrame, 0, 1, "there"));
  EXPECT_EQ(guard_.open_streams(), 1u);
  guard_.FromServer(Answer(1, true));
  EXPECT_EQ(guard_.open_streams(), 0u);
  EXPECT_EQ(guard_.held_bytes(), 0);
}

TEST_F(FrameGuardTest, AnythingButHttp2IsRefusedAtItsFirstByte) {
  EXPECT_EQ(guard_.FromClient("GET / HTTP/1.1\r\n", now_), 0u);
  EXPECT_EQ(guard_.violation()->limit, FrontLimit::kPreface);
  FrameGuard one(Small(), kStart);
  EXPECT_EQ(one.FromClient("\x16", now_), 0u);
  EXPECT_TRUE(one.violation().has_value()) << "TLS where there is none";
}

TEST_F(FrameGuardTest, OnlyDataMayBeLong) {
  Passes(Begin() + Call(1) + Frame(kDataFrame, 0, 1, Prefixed(std::string(100'000, 'x'))));
  const std::string call = Call(3);
  Breaks(call + Frame(kHeadersFrame, kEndHeadersFlag, 5, std::string(16385, 'x')), FrontLimit::kFrameSize, call.size(),
         16384, 16385);
}

TEST_F(FrameGuardTest, HeaderBlocksAreBoundedInBytes) {
  const std::string half(8192, 'h');
  Passes(Begin() + Frame(kHeadersFrame, 0, 1, half) + Frame(kContinuationFrame, kEndHeadersFlag, 1, half));
  const std::string block = Frame(kHeadersFrame, 0, 3, half) + Frame(kContinuationFrame, 0, 3, half);
  Breaks(block + Frame(kContinuationFrame, kEndHeadersFlag, 3, "h"), FrontLimit::kHeaderBytes, block.size(), 16384,
         16385);
}

TEST_F(FrameGuardTest, HeaderBlocksAreBoundedInFrames) {
  std::string block = Frame(kHeadersFrame, 0, 1);
  for (int i = 0; i < 4; ++i) block += Frame(kContinuationFrame, 0, 1);
  Passes(Begin() + block);
  Breaks(Frame(kContinuationFrame, kEndHeadersFlag, 1), FrontLimit::kContinuations, 0, 4, 5);
}

TEST_F(FrameGuardTest, NothingComesBetweenTheFramesOfAHeaderBlock) {
  Passes(Begin() + Frame(kHeadersFrame, 0, 1));
  Breaks(Frame(kPingFrame, 0, 0, "12345678"), FrontLimit::kSequence, 0, 0, kPingFrame);
  FrameGuard other(Small(), kStart);
  const std::string begin = Begin();
  EXPECT_EQ(other.FromClient(begin + Frame(kContinuationFrame, 0, 1), now_), begin.size());
  EXPECT_EQ(other.violation()->limit, FrontLimit::kSequence);
}

TEST_F(FrameGuardTest, OpenCallsAreBounded) {
  Passes(Begin() + Many(10, [](uint32_t stream) { return Call(stream); }));
  guard_.FromServer(Answer(3, true));
  Passes(Call(21));
  Breaks(Call(23), FrontLimit::kOpenStreams, 0, 10, 11);
}

TEST_F(FrameGuardTest, ResetsBeforeAnAnswerAreBounded) {
  const auto call_and_reset = [](uint32_t stream) { return Call(stream) + Reset(stream); };
  Passes(Begin() + Many(8, call_and_reset) + Call(17));
  Breaks(Reset(17), FrontLimit::kResets, 0, 8, 9);
}

TEST_F(FrameGuardTest, ResetsAreForgottenAndAnswersForgiveThem) {
  const auto call_and_reset = [](uint32_t stream) { return Call(stream) + Reset(stream); };
  Passes(Begin() + Many(8, call_and_reset));
  now_ += absl::Seconds(5);  // half of them
  Passes(call_and_reset(17) + call_and_reset(19) + call_and_reset(21) + call_and_reset(23));
  Passes(Call(25));
  guard_.FromServer(Answer(25, true));
  for (uint32_t stream = 27; stream < 27 + 2 * 10; stream += 2) Passes(call_and_reset(stream));
  Passes(Call(47));
  Breaks(Reset(47), FrontLimit::kResets, 0, 8, 9);
}

TEST_F(FrameGuardTest, ResetsAfterAnAnswerAreNotCounted) {
  Passes(Begin());
  for (uint32_t stream = 1; stream < 100; stream += 2) {
    Passes(Call(stream));
    guard_.FromServer(Answer(stream, false));
    Passes(Reset(stream));
  }
  EXPECT_EQ(guard_.open_streams(), 0u);
}

TEST_F(FrameGuardTest, AClientThatWasEndedBeforeMayResetLess) {
  FrameGuard guard(Small(), kStart, /*part=*/0.5);
  const std::string five = Begin() + Many(5, [](uint32_t stream) { return Call(stream) + Reset(stream); });
  EXPECT_EQ(guard.FromClient(five, now_), five.size() - Reset(1).size());
  EXPECT_EQ(guard.violation()->ToString(), "resets: limit 4, actual 5");
}

TEST_F(FrameGuardTest, CallsBeyondARateWait) {
  const auto answered = [this](uint32_t stream) {
    const std::string call = Call(stream);
    const size_t passed = guard_.FromClient(call, now_);
    guard_.FromServer(Answer(stream, true));
    return passed == call.size();
  };
  Passes(Begin());
  uint32_t stream = 1;
  for (int i = 0; i < 100; ++i, stream += 2) ASSERT_TRUE(answered(stream)) << i;
  EXPECT_FALSE(answered(stream));
  EXPECT_FALSE(guard_.violation().has_value());
  EXPECT_EQ(guard_.waits_until(), now_ + absl::Milliseconds(10)) << "for 20 calls at 2000 a second";
  now_ = guard_.waits_until();
  for (int i = 0; i < 20; ++i, stream += 2) ASSERT_TRUE(answered(stream)) << i;
  EXPECT_FALSE(answered(stream));
}

TEST_F(FrameGuardTest, ConnectionsOfAClientShareARateButForAFewCallsOfEach) {
  const auto client = std::make_shared<SharedRate>(/*rate=*/1000, /*burst=*/30, kStart);
  FrameGuard::Limits limits = Small();
  limits.open_streams = 100;
  limits.streams_a_second = 50;
  limits.stream_burst = 4;
  FrameGuard first(limits, kStart, /*part=*/1, client), second(limits, kStart, /*part=*/1, client);
  const std::string many = Begin() + Many(100, [](uint32_t stream) { return Call(stream); });
  first.FromClient(many, kStart);
  EXPECT_EQ(first.open_streams(), 34u) << "its own and all of the client's";
  second.FromClient(many, kStart);
  EXPECT_EQ(second.open_streams(), 4u);
  EXPECT_FALSE(first.violation().has_value() || second.violation().has_value());
  EXPECT_EQ(first.waits_until(), kStart + absl::Milliseconds(20)) << "for 20 calls of the client's";
  EXPECT_EQ(second.waits_until(), kStart + absl::Milliseconds(40)) << "behind those of the first";
}

// Requests of HTTP are reserved ahead of their time: a call that only looked again later would never find one left.
TEST_F(FrameGuardTest, CallsGetATurnBesideAFloodOfReservations) {
  constexpr absl::Duration kAhead = absl::Seconds(2);
  const auto client = std::make_shared<SharedRate>(/*rate=*/1000, /*burst=*/30, kStart);
  const auto flood = [&client, kAhead](absl::Time now) {
    while (client->Reserve(now, kAhead).has_value()) continue;
  };
  FrameGuard::Limits limits = Small();
  limits.open_streams = 1000;
  limits.streams_a_second = limits.stream_burst = 1;
  FrameGuard guard(limits, kStart, /*part=*/1, client);
  flood(kStart);
  const std::string begin = Begin() + Call(1);
  ASSERT_EQ(guard.FromClient(begin, kStart), begin.size()) << "one of its own";
  uint32_t stream = 3;
  absl::Time now = kStart;
  for (const absl::Time end = now + absl::Seconds(10); now < end; now = std::max(guard.waits_until(), now)) {
    flood(now);
    for (; guard.FromClient(Call(stream), now) > 0; stream += 2) guard.FromServer(Answer(stream, true));
    ASSERT_GT(guard.waits_until(), now);
  }
  EXPECT_GT((stream - 3) / 2, 80u) << "20 in each two seconds, and its own";
  EXPECT_LT((stream - 3) / 2, 200u);
}

TEST_F(FrameGuardTest, FramesBeyondARateWait) {
  const std::string data = Frame(kDataFrame, 0, 1, "x");
  Passes(Begin() + Call(1));
  for (int i = 2; i < 1000; ++i) Passes(data);
  EXPECT_EQ(guard_.FromClient(data, now_), 0u);
  EXPECT_EQ(guard_.waits_until(), now_ + absl::Milliseconds(10)) << "for 200 frames at 20000 a second";
  now_ = guard_.waits_until();
  Passes(data);
}

struct RateCase {
  const char* name;
  FrontLimit limit;
  std::string frame;  // of which five may come at once
};
class RateTest : public FrameGuardTest, public testing::WithParamInterface<RateCase> {};
TEST_P(RateTest, EndsTheConnection) {
  const RateCase& given = GetParam();
  Passes(kHttp2Preface);
  for (int i = 0; i < 5; ++i) Passes(given.frame);
  Breaks(given.frame, given.limit, 0, 5, 6);
}
TEST_P(RateTest, AllowsMoreWithTime) {
  Passes(kHttp2Preface);
  for (int i = 0; i < 20; ++i, now_ += absl::Milliseconds(100)) Passes(GetParam().frame);
}
INSTANTIATE_TEST_SUITE_P(
    All, RateTest,
    testing::Values(RateCase{"Ping", FrontLimit::kPings, Frame(kPingFrame, kAckFlag, 0, "12345678")},
                    RateCase{"Settings", FrontLimit::kSettings, Frame(kSettingsFrame, kAckFlag, 0)},
                    RateCase{"WindowUpdate", FrontLimit::kWindowUpdates, Frame(kWindowFrame, 0, 0, "1234")},
                    RateCase{"Priority", FrontLimit::kOtherFrames, Frame(kPriorityFrame, 0, 1, "12345")},
                    RateCase{"Unknown", FrontLimit::kOtherFrames, Frame(77, 0, 0, "x")},
                    RateCase{"EmptyData", FrontLimit::kOtherFrames, Frame(kDataFrame, 0, 1)},
                    RateCase{"UnknownReset", FrontLimit::kOtherFrames, Reset(1)}),
    [](const auto& info) { return std::string(info.param.name); });

// Clients of gRPC measure the link with a PING, and give credit with WINDOW_UPDATEs, as data comes.
TEST_F(FrameGuardTest, WhoGetsDataMayPingAndGiveCredit) {
  Passes(Begin() + Call(1));
  for (int i = 0; i < 1000; ++i) {
    guard_.FromServer(Frame(kDataFrame, 0, 1, "token"));
    Passes(Frame(kPingFrame, 0, 0, "12345678") + Frame(kWindowFrame, 0, 0, "1234") + Frame(kWindowFrame, 0, 1, "1234"));
    guard_.FromServer(Frame(kPingFrame, kAckFlag, 0, "12345678"));
    now_ += absl::Milliseconds(1);
  }
}

TEST_F(FrameGuardTest, AnswersThatAreNotReadAreBounded) {
  const std::string ping = Frame(kPingFrame, 0, 0, "12345678");
  Passes(kHttp2Preface + Frame(kSettingsFrame, 0, 0) + ping + ping);
  guard_.FromServer(Frame(kSettingsFrame, kAckFlag, 0) + Frame(kPingFrame, kAckFlag, 0, "12345678"));
  now_ += absl::Seconds(1);
  Passes(ping + ping + ping);
  Breaks(ping, FrontLimit::kUnread, 0, 4, 5);
}

TEST_F(FrameGuardTest, HeldBytesAreThoseOfTheLastMessageOfEachCall) {
  constexpr int64_t kCall = FrameGuard::kBytesOfStream;
  Passes(Begin() + Call(1) + Call(3));
  const std::string message = Prefixed(std::string(1000, 'x'));
  Passes(Frame(kDataFrame, 0, 1, message.substr(0, 3)));
  EXPECT_EQ(guard_.held_bytes(), 2 * kCall);
  Passes(Frame(kDataFrame, 0, 1, message.substr(3, 102)));
  EXPECT_EQ(guard_.held_bytes(), 2 * kCall + 100);
  Passes(Frame(kDataFrame, 0, 3, message + message));
  EXPECT_EQ(guard_.held_bytes(), 2 * kCall + 1100) << "the first of two was read, or the second would not come";
  Passes(Frame(kDataFrame, 0, 1, message.substr(105)));
  EXPECT_EQ(guard_.held_bytes(), 2 * kCall + 2000);
  Passes(Frame(kDataFrame, 0, 3, Prefixed("") + Prefixed("ab")));
  EXPECT_EQ(guard_.held_bytes(), 2 * kCall + 1002);
  Passes(Reset(1));
  EXPECT_EQ(guard_.held_bytes(), kCall + 2);
  guard_.FromServer(Reset(3));
  EXPECT_EQ(guard_.held_bytes(), 0);
  Passes(Frame(kDataFrame, 0, 3, message));  // late
  EXPECT_EQ(guard_.held_bytes(), 0);
}

TEST_F(FrameGuardTest, AnAnswerFreesItsRequest) {
  constexpr int64_t kCall = FrameGuard::kBytesOfStream;
  const std::string message = Prefixed(std::string(1000, 'x'));
  Passes(Begin() + Call(1) + Frame(kDataFrame, 0, 1, message));
  EXPECT_EQ(guard_.held_bytes(), kCall + 1000);
  guard_.FromServer(Frame(kHeadersFrame, kEndHeadersFlag, 1, "x"));
  EXPECT_EQ(guard_.held_bytes(), kCall);
  Passes(Frame(kDataFrame, 0, 1, message.substr(0, 505)));
  guard_.FromServer(Frame(kDataFrame, 0, 1, "x"));
  EXPECT_EQ(guard_.held_bytes(), kCall + 500) << "the next one is on its way";
}

TEST_F(FrameGuardTest, ACallForWhichThereIsNoRoomWaits) {
  Passes(Begin());
  guard_.SetRoom(2 * FrameGuard::kBytesOfStream);
  Passes(Call(1) + Call(3));
  EXPECT_EQ(guard_.FromClient(Call(5), now_), 0u);
  EXPECT_TRUE(guard_.wants_room());
  EXPECT_FALSE(guard_.violation().has_value());
  guard_.FromServer(Answer(1, true));
  Passes(Call(5));
  EXPECT_FALSE(guard_.wants_room());
}

TEST_F(FrameGuardTest, KnowsWhereTheServersFramesEnd) {
  const std::string frame = Frame(kDataFrame, 0, 1, "12345");
  for (size_t i = 0; i < 3 * frame.size(); ++i) {
    EXPECT_EQ(guard_.server_frame_bytes(), i % frame.size());
    guard_.FromServer(frame.substr(i % frame.size(), 1));
  }
  EXPECT_EQ(guard_.server_frame_bytes(), 0u);
  guard_.FromServer(frame + frame.substr(0, 10));
  EXPECT_EQ(guard_.server_frame_bytes(), 10u);
}

TEST(GoAwayTest, IsAFrame) {
  EXPECT_EQ(GoAway(5, "why"), Frame(kGoAwayFrame, 0, 0, std::string("\0\0\0\x05\0\0\0\x0b", 8) + "why"));
}

// However the bytes are cut, the same ones go on, and the guard ends in the same state.
TEST(CutFramesTest, EndAlike) {
  const std::string client =
      Begin() + Call(1) + Frame(kDataFrame, 0, 1, Prefixed("hello")) + Frame(kHeadersFrame, 0, 3, "head") +
      Frame(kContinuationFrame, kEndHeadersFlag, 3, "ers") + Frame(kDataFrame, kEndStreamFlag, 3, Prefixed("x")) +
      Many(8, [](uint32_t stream) { return Call(stream + 4) + Reset(stream + 4); }) + Call(21) + Reset(21) + Call(23);
  FrameGuard whole(Small(), kStart);
  const size_t passed = whole.FromClient(client, kStart);
  ASSERT_EQ(whole.violation()->ToString(), "resets: limit 8, actual 9");
  for (size_t step = 1; step < 40; ++step) {
    FrameGuard cut(Small(), kStart);
    size_t at = 0;
    for (size_t end = 0; end < client.size(); end = std::min(client.size(), end + step)) {
      at += cut.FromClient(absl::string_view(client).substr(at, end - at), kStart);
    }
    at += cut.FromClient(absl::string_view(client).substr(at), kStart);
    EXPECT_EQ(at, passed) << step;
    EXPECT_EQ(cut.violation()->ToString(), whole.violation()->ToString());
    EXPECT_EQ(cut.held_bytes(), whole.held_bytes());
    EXPECT_EQ(cut.open_streams(), whole.open_streams());
  }
}

}  // namespace
}  // namespace switchyard::server
