// Pauses before a local worker is started again.
#include "server/fleet/restart_pause.h"

#include <signal.h>
#include <sys/wait.h>

#include "gtest/gtest.h"

namespace switchyard::server {
namespace {

constexpr int kKilled = SIGKILL, kAborted = SIGABRT;  // as waitpid says
constexpr absl::Duration kOld = absl::Seconds(30), kYoung = absl::Seconds(1);

TEST(RestartPauseTest, WhoEndsByItselfWaitsLongerEachTime) {
  for (const int end : {kAborted, W_EXITCODE(1, 0), W_EXITCODE(2, 0)}) {
    RestartPause pause;
    for (const int ms : {100, 200, 400, 800, 1600, 3200, 5000, 5000}) {
      EXPECT_EQ(pause.After(end, kYoung, false), absl::Milliseconds(ms));
    }
    EXPECT_EQ(pause.After(end, kOld, false), absl::Milliseconds(50)) << "it has worked for a while";
  }
}

TEST(RestartPauseTest, WhoWasKilledComesBackAtOnce) {
  for (const int end : {kKilled, static_cast<int>(SIGTERM), W_EXITCODE(0, 0)}) {
    RestartPause pause;
    for (int i = 0; i < 4; ++i) EXPECT_EQ(pause.After(end, kYoung, false), absl::ZeroDuration());
    for (int i = 0; i < 100; ++i) EXPECT_EQ(pause.After(end, kYoung, false), absl::Milliseconds(200));
    EXPECT_EQ(pause.After(end, kOld, false), absl::ZeroDuration());
  }
}

// Kills are not punished for crashes before them, and do not excuse the crashes after them.
TEST(RestartPauseTest, KillsAndCrashesCountApart) {
  RestartPause pause;
  for (int i = 0; i < 9; ++i) pause.After(kAborted, kYoung, false);
  EXPECT_EQ(pause.After(kKilled, kYoung, false), absl::ZeroDuration());
  EXPECT_EQ(pause.After(kAborted, kYoung, false), absl::Seconds(5));
}

TEST(RestartPauseTest, AKillForWantOfMemoryIsACrash) {
  RestartPause pause;
  EXPECT_EQ(pause.After(kKilled, kYoung, true), absl::Milliseconds(100));
  EXPECT_EQ(pause.After(kKilled, kYoung, true), absl::Milliseconds(200));
}

}  // namespace
}  // namespace switchyard::server
