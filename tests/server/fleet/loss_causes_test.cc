// Which ends of workers came from outside.
#include "server/fleet/loss_causes.h"

#include <map>
#include <string>

#include "gtest/gtest.h"

namespace switchyard::server {
namespace {

class LossCausesTest : public testing::Test {
 protected:
  void Lose(const std::string& end, int local_index = 0) {
    ends_[++pid_] = end;
    fleet::WorkerInfo info;
    info.local_index = local_index;
    info.pid = pid_;
    causes_.Lost(info, known_ ? end : "");
  }

  std::map<int64_t, std::string> ends_;
  int64_t pid_ = 0, oom_kills_ = 3;
  bool known_ = false;  // how it ended, when it is lost
  LossCauses causes_{[this](int, int64_t pid) { return ends_[pid]; }, [this] { return oom_kills_; }};
};

TEST_F(LossCausesTest, WhatSomebodyKilledOrStopped) {
  Lose("signal 9 (Killed)");
  EXPECT_TRUE(causes_.TakeVerdict());
  EXPECT_FALSE(causes_.TakeVerdict()) << "nothing since";
  Lose("signal 15 (Terminated)");
  EXPECT_TRUE(causes_.TakeVerdict());
  Lose("exit code 0");
  EXPECT_TRUE(causes_.TakeVerdict()) << "it was asked to stop";
  causes_.Fenced();
  EXPECT_TRUE(causes_.TakeVerdict());
  EXPECT_FALSE(causes_.TakeVerdict());
  // A peer that ends with an error is not to blame for the one that was killed.
  Lose("exit code 1");
  Lose("signal 9 (Killed)");
  EXPECT_TRUE(causes_.TakeVerdict());
}

TEST_F(LossCausesTest, WhatARequestMayHaveDone) {
  Lose("signal 11 (Segmentation fault)");
  EXPECT_FALSE(causes_.TakeVerdict());
  Lose("exit code 1");
  EXPECT_FALSE(causes_.TakeVerdict());
  Lose("signal 9 (Killed)", -1);
  EXPECT_FALSE(causes_.TakeVerdict()) << "of a worker elsewhere nothing is known";
  Lose("");
  EXPECT_FALSE(causes_.TakeVerdict());
  ++oom_kills_;
  Lose("signal 9 (Killed)");
  EXPECT_FALSE(causes_.TakeVerdict()) << "for want of memory";
  Lose("signal 9 (Killed)");
  EXPECT_TRUE(causes_.TakeVerdict()) << "at once: the kernel's kill was of the worker before";
  ++oom_kills_;
  causes_.Tick(absl::UnixEpoch(), /*ready=*/true);
  Lose("signal 9 (Killed)");
  EXPECT_TRUE(causes_.TakeVerdict()) << "the kernel killed another process before";
}

// Links end when nobody answers their pings in time.
TEST_F(LossCausesTest, APauseOfTheServer) {
  absl::Time now = absl::UnixEpoch();
  const auto pass = [&](absl::Duration time, bool ready) {
    for (const absl::Time end = now + time; now < end; now += absl::Milliseconds(50)) causes_.Tick(now, ready);
  };
  pass(absl::Seconds(2), true);
  now += absl::Seconds(2);
  // The loss is seen first, then the pause.
  Lose("", -1);
  pass(absl::Seconds(3), false);
  EXPECT_TRUE(causes_.TakeVerdict());
  Lose("", -1);
  EXPECT_FALSE(causes_.TakeVerdict()) << "nothing since";
  // The other way round; a worker's process that lives is like one elsewhere.
  now += absl::Seconds(2);
  pass(absl::Milliseconds(100), true);
  Lose("");
  EXPECT_TRUE(causes_.TakeVerdict());
  // Too long ago, or too short.
  now += absl::Seconds(2);
  pass(absl::Seconds(2), true);
  now += absl::Milliseconds(400);
  pass(absl::Milliseconds(100), true);
  Lose("");
  EXPECT_FALSE(causes_.TakeVerdict());
}

// How it ended may only be known when the next group forms.
TEST_F(LossCausesTest, AnEndThatIsKnownLater) {
  Lose("");
  ends_[pid_] = "signal 9 (Killed)";
  EXPECT_TRUE(causes_.TakeVerdict());
}

// Its successor died, too: of processes before that nothing is known any more.
TEST_F(LossCausesTest, AnEndThatIsForgottenLater) {
  known_ = true;
  Lose("signal 9 (Killed)");
  ends_.clear();
  EXPECT_TRUE(causes_.TakeVerdict());
}

TEST_F(LossCausesTest, TheKernelCounts) { EXPECT_GE(LossCauses::OomKills(), 0); }

}  // namespace
}  // namespace switchyard::server
