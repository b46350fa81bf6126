#include "clients/cli/terminal/line_history.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace switchyard::cli {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

class LineHistoryTest : public testing::Test {
 protected:
  LineHistoryTest() : dir_(fs::path(testing::TempDir()) / absl::StrCat("switchyard-history-", getpid())) {
    fs::remove_all(dir_);
  }
  ~LineHistoryTest() override { fs::remove_all(dir_); }

  std::string path() const { return dir_ / "state" / "history"; }
  std::vector<std::string> Lines() const {
    const auto history = LineHistory::Open(path());
    EXPECT_TRUE(history.ok()) << history.status();
    return history.ok() ? (*history)->lines() : std::vector<std::string>();
  }
  static unsigned ModeOf(const std::string& path) {
    struct stat st = {};
    EXPECT_EQ(stat(path.c_str(), &st), 0) << path;
    return st.st_mode & 0777;
  }

  const fs::path dir_;
};

TEST_F(LineHistoryTest, KeepsLinesForLaterRunsOfTheirOwnerAlone) {
  {
    const auto history = LineHistory::Open(path());
    ASSERT_TRUE(history.ok()) << history.status();
    EXPECT_TRUE((*history)->lines().empty());
    for (const char* line : {"first", "first", "", "two\nlines and a \\n", "grüße"})
      EXPECT_TRUE((*history)->Add(line).ok());
  }
  EXPECT_EQ(ModeOf(path()), 0600u);
  EXPECT_EQ(ModeOf(dir_ / "state"), 0700u);
  EXPECT_THAT(Lines(), ElementsAre("first", "two\nlines and a \\n", "grüße"));
  // What others could read is closed to them.
  chmod(path().c_str(), 0644);
  EXPECT_EQ(Lines().size(), 3u);
  EXPECT_EQ(ModeOf(path()), 0600u);
}

TEST_F(LineHistoryTest, TwoProgramsAppend) {
  const auto one = LineHistory::Open(path()), two = LineHistory::Open(path());
  ASSERT_TRUE(one.ok() && two.ok());
  EXPECT_TRUE((*one)->Add("a").ok());
  EXPECT_TRUE((*two)->Add("b").ok());
  EXPECT_TRUE((*one)->Add("c").ok());
  EXPECT_THAT(Lines(), ElementsAre("a", "b", "c"));
}

TEST_F(LineHistoryTest, IsBounded) {
  {
    const auto history = LineHistory::Open(path());
    ASSERT_TRUE(history.ok()) << history.status();
    for (int i = 0; i < 2100; ++i) ASSERT_TRUE((*history)->Add(absl::StrCat("line ", i)).ok());
    EXPECT_TRUE((*history)->Add(std::string(LineHistory::kMostLineBytes + 1, 'x')).ok());
  }
  const std::vector<std::string> lines = Lines();
  ASSERT_EQ(lines.size(), LineHistory::kMostLines);
  EXPECT_EQ(lines.front(), "line 1100");
  EXPECT_EQ(lines.back(), "line 2099");
  EXPECT_EQ(fs::file_size(path()), LineHistory::kMostLines * sizeof("line 1100"));
  EXPECT_EQ(Lines(), lines);
}

TEST_F(LineHistoryTest, LeavesOutWhatIsNoText) {
  fs::create_directories(dir_ / "state");
  std::ofstream(path(), std::ios::binary) << "good\n\xff\xfe\n\nlast";
  EXPECT_THAT(Lines(), ElementsAre("good", "last"));
}

TEST_F(LineHistoryTest, SaysWhyThereIsNone) {
  fs::create_directories(path());
  EXPECT_THAT(std::string(LineHistory::Open(path()).status().message()), HasSubstr(path() + ": Is a directory"));
  const std::string beneath_a_file = dir_ / "file" / "history";
  std::ofstream(dir_ / "file") << "x";
  EXPECT_THAT(std::string(LineHistory::Open(beneath_a_file).status().message()), HasSubstr(": Not a directory"));
  fs::create_symlink("elsewhere", dir_ / "link");
  EXPECT_THAT(std::string(LineHistory::Open(dir_ / "link").status().message()), HasSubstr("is a link"));
}

TEST_F(LineHistoryTest, StandsWhereProgramsKeepTheirState) {
  const char* const old_home = std::getenv("HOME");
  const std::string home = old_home != nullptr ? old_home : "";
  setenv("XDG_STATE_HOME", "/var/state", 1);
  EXPECT_EQ(LineHistory::DefaultPath(), "/var/state/switchyard/history");
  setenv("XDG_STATE_HOME", "relative", 1);  // which the specification says to ignore
  setenv("HOME", "/home/me", 1);
  EXPECT_EQ(LineHistory::DefaultPath(), "/home/me/.local/state/switchyard/history");
  unsetenv("HOME");
  EXPECT_EQ(LineHistory::DefaultPath(), "");
  unsetenv("XDG_STATE_HOME");
  if (!home.empty()) setenv("HOME", home.c_str(), 1);
}

}  // namespace
}  // namespace switchyard::cli
