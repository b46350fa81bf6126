// Files with the workers' token: how long it may be, and who may use the file.
#include "proto/support/join_token.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/workers/model/temp_dir.h"

namespace switchyard::rpc {
namespace {

using testing::HasSubstr;

constexpr char kToken[] = "a token of more than sixteen bytes";

class JoinTokenTest : public testing::Test {
 protected:
  std::string Write(const std::string& text, mode_t mode) {
    const std::string path = dir_.Write("token", text);
    EXPECT_EQ(chmod(path.c_str(), mode), 0);
    return path;
  }
  static std::string Error(const std::string& path) { return std::string(ReadJoinToken(path, 16).status().message()); }

  const model::TempDir dir_;
};

TEST_F(JoinTokenTest, IsTheTextOfAFileWithoutLineEnds) {
  EXPECT_EQ(ReadJoinToken("", 16).value_or("none"), "");
  EXPECT_EQ(ReadJoinToken(Write(absl::StrCat(kToken, "\r\n"), 0600), 16).value_or(""), kToken);
  EXPECT_EQ(ReadJoinToken(Write(kToken, 0400), 16).value_or(""), kToken);
}

TEST_F(JoinTokenTest, IsOfAFileThatNobodyElseMayUse) {
  for (const mode_t mode : {0644u, 0640u, 0604u, 0602u}) {
    const std::string path = Write(kToken, mode);
    EXPECT_THAT(Error(path), HasSubstr(absl::StrCat("--join_token_file=", path, ": others than its owner may use it")));
    EXPECT_THAT(Error(path), testing::Not(HasSubstr(kToken)));
  }
  EXPECT_THAT(Error("/dev/zero"), HasSubstr("--join_token_file=/dev/zero: not a regular file"));
}

TEST_F(JoinTokenTest, HasALength) {
  EXPECT_THAT(Error(Write("short\n", 0600)), HasSubstr("token: at least 16 bytes, has 5"));
  EXPECT_THAT(Error(Write(std::string(1001, 'x'), 0600)), HasSubstr("token: at most 1000 bytes, has 1001"));
}

// As a server hands it to its own workers.
TEST_F(JoinTokenTest, MayBeInMemory) {
  const int fd = memfd_create("join_token", MFD_CLOEXEC);
  ASSERT_GE(fd, 0);
  ASSERT_EQ(fchmod(fd, 0600), 0);
  ASSERT_EQ(write(fd, kToken, sizeof(kToken) - 1), static_cast<ssize_t>(sizeof(kToken) - 1));
  EXPECT_EQ(ReadJoinToken(absl::StrCat("/proc/self/fd/", fd), 16).value_or(""), kToken);
  close(fd);
}

}  // namespace
}  // namespace switchyard::rpc
