#include "clients/cli/ordered_batch.h"

#include <ostream>
#include <sstream>
#include <streambuf>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"

namespace switchyard::cli {
namespace {

TEST(OrderedBatchTest, WritesInTheOrderOfTheInput) {
  std::istringstream in("a\n\n  \nb\nc\n");
  std::ostringstream out;
  absl::Notification b_done;
  const int failed = AnswerLines(in, out, 2, [&](int number, const std::string& line) {
    if (line == "a") b_done.WaitForNotification();  // the first answer comes last
    if (line == "b") b_done.Notify();
    return LineAnswer{absl::StrCat(number, line), line != "c"};
  });
  EXPECT_EQ(out.str(), "1a\n4b\n5c\n");
  EXPECT_EQ(failed, 1);
}

TEST(OrderedBatchTest, ManyLinesAndThreads) {
  std::string lines;
  for (int i = 1; i <= 2000; ++i) absl::StrAppend(&lines, i, "\n");
  std::istringstream in(lines);
  std::ostringstream out;
  EXPECT_EQ(AnswerLines(in, out, 8, [](int, const std::string& line) { return LineAnswer{line, true}; }), 0);
  EXPECT_EQ(out.str(), lines);
}

// Refuses every byte, as a full disk does.
class RefusingBuffer : public std::streambuf {};

TEST(OrderedBatchTest, NothingIsAskedWhoseAnswerCannotBeWritten) {
  std::istringstream in("a\nb\nc\n");
  RefusingBuffer refusing;
  std::ostream out(&refusing);
  int asked = 0;
  AnswerLines(in, out, 1, [&asked](int, const std::string& line) {
    ++asked;
    return LineAnswer{line, true};
  });
  EXPECT_EQ(asked, 1);
  EXPECT_TRUE(out.bad());
}

TEST(OrderedBatchTest, NothingIn) {
  std::istringstream in("");
  std::ostringstream out;
  EXPECT_EQ(AnswerLines(in, out, 4, [](int, const std::string&) { return LineAnswer(); }), 0);
  EXPECT_EQ(out.str(), "");
}

}  // namespace
}  // namespace switchyard::cli
