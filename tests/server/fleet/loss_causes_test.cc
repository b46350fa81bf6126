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
    causes_.Lost(info);
  }

  std::map<int64_t, std::string> ends_;
  int64_t pid_ = 0, oom_kills_ = 3;
  LossCauses causes_{[this](int, int64_t pid) { return ends_[pid]; }, [this] { return oom_kills_; }};
};

TEST_F(LossCausesTest, WhatSomebodyKilledOrStopped) {
  Lose("signal 9 (Killed)");
  EXPECT_TRUE(causes_.CameFromOutside());
  EXPECT_FALSE(causes_.CameFromOutside()) << "nothing since";
  Lose("signal 15 (Terminated)");
  EXPECT_TRUE(causes_.CameFromOutside());
  causes_.Fenced();
  EXPECT_TRUE(causes_.CameFromOutside());
  EXPECT_FALSE(causes_.CameFromOutside());
  // A peer that ends with an error is not to blame for the one that was killed.
  Lose("exit code 1");
  Lose("signal 9 (Killed)");
  EXPECT_TRUE(causes_.CameFromOutside());
}

TEST_F(LossCausesTest, WhatARequestMayHaveDone) {
  Lose("signal 11 (Segmentation fault)");
  EXPECT_FALSE(causes_.CameFromOutside());
  Lose("exit code 1");
  EXPECT_FALSE(causes_.CameFromOutside());
  Lose("signal 9 (Killed)", -1);
  EXPECT_FALSE(causes_.CameFromOutside()) << "of a worker elsewhere nothing is known";
  Lose("");
  EXPECT_FALSE(causes_.CameFromOutside());
  ++oom_kills_;
  Lose("signal 9 (Killed)");
  EXPECT_FALSE(causes_.CameFromOutside()) << "for want of memory";
  Lose("signal 9 (Killed)");
  EXPECT_TRUE(causes_.CameFromOutside()) << "that was another one";
}

// How it ended may only be known when the next group forms.
TEST_F(LossCausesTest, AnEndThatIsKnownLater) {
  Lose("");
  ends_[pid_] = "signal 9 (Killed)";
  EXPECT_TRUE(causes_.CameFromOutside());
}

TEST_F(LossCausesTest, TheKernelCounts) { EXPECT_GE(LossCauses::OomKills(), 0); }

}  // namespace
}  // namespace switchyard::server
