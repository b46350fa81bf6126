// Children that end well, badly, by a signal or not at all.
#include "tests/gpu/child_processes.h"

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace switchyard::test {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

constexpr char kChild[] = "--child";

int BeChild(const std::string& what) {
  if (what == "hangs") LiveAtMost(absl::Seconds(30));  // otherwise it would outlive a dead parent
  std::fprintf(stderr, "it %s\n", what.c_str());
  if (what == "prints") std::printf("word: %s\n", std::getenv("SY_CHILD_WORD"));
  if (what == "shouts") std::printf("%s", std::string(1 << 20, 'x').c_str());
  if (what == "dies") kill(getpid(), SIGKILL);
  if (what == "oversleeps") LiveAtMost(absl::Seconds(1));
  if (what == "hangs" || what == "oversleeps") pause();
  return what == "fails" ? 3 : 0;
}

ChildSpec Spec(const std::string& what) { return {.arguments = {kChild, what}, .environment = {}}; }

TEST(ChildProcessesTest, WhatTheySayIsGathered) {
  setenv("SY_CHILD_WORD", "the parent's", 1);
  ChildSpec own = Spec("prints");
  own.environment = {"SY_CHILD_WORD=its own"};
  const auto ends = RunChildren({own, Spec("prints"), Spec("shouts")}, {});
  for (const ChildEnd& end : ends) EXPECT_EQ(end.trouble, "");
  EXPECT_THAT(ends[0].log, HasSubstr("word: its own\n"));
  EXPECT_THAT(ends[1].log, HasSubstr("it prints\nword: the parent's\n"));
  EXPECT_EQ(ends[2].log.size(), std::strlen("it shouts\n") + (1 << 20)) << "more than a pipe holds";
}

TEST(ChildProcessesTest, WhoFailsOrDiesEndsTheOthers) {
  for (const auto& [what, trouble] : {std::pair{"fails", "exit status 3"}, {"dies", "ended by signal 9 (Killed)"}}) {
    const absl::Time began = absl::Now();
    const auto ends = RunChildren({Spec("hangs"), Spec(what), Spec("prints")},
                                  {.all = absl::Seconds(25), .after_failure = absl::Milliseconds(300)});
    EXPECT_LT(absl::Now() - began, absl::Seconds(20)) << "not waited for";
    EXPECT_THAT(ends[0].trouble, StartsWith("killed, as it still ran after "));
    EXPECT_EQ(ends[1].trouble, trouble);
    EXPECT_EQ(ends[2].trouble, "");
    EXPECT_EQ(ends[1].log, std::string("it ") + what + "\n");
  }
}

TEST(ChildProcessesTest, TheLimitEndsAll) {
  const auto ends = RunChildren({Spec("hangs"), Spec("hangs")}, {.all = absl::Seconds(2)});
  for (const ChildEnd& end : ends) {
    EXPECT_THAT(end.trouble, StartsWith("killed, as it still ran after 2"));
    EXPECT_EQ(end.log, "it hangs\n") << "also what was written before is kept";
  }
}

TEST(ChildProcessesTest, AChildEndsItself) {
  EXPECT_THAT(RunChildren({Spec("oversleeps")}, {})[0].trouble, StartsWith("ended by signal 14"));
}

}  // namespace
}  // namespace switchyard::test

int main(int argc, char** argv) {
  if (argc == 3 && std::strcmp(argv[1], switchyard::test::kChild) == 0) return switchyard::test::BeChild(argv[2]);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
