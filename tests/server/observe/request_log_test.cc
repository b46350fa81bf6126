// The request log's file, its queue's bound and its ends.
#include "server/observe/request_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/server/observe/record_fixture.h"
#include "tests/workers/model/temp_dir.h"

namespace switchyard::server {
namespace {

using testing::HasSubstr;

std::shared_ptr<const RequestRecord> RecordOf(const std::string& id) {
  RequestRecord record = TestRecord();
  record.id = id;
  return std::make_shared<const RequestRecord>(std::move(record));
}

class RequestLogTest : public testing::Test {
 protected:
  std::unique_ptr<RequestLog> Open(size_t most_waiting = 100) {
    auto log = RequestLog::Open({.path = path_, .most_waiting = most_waiting, .on_dropped = [this](int64_t requests) {
                                   dropped_ += requests;
                                 }});
    EXPECT_TRUE(log.ok()) << log.status();
    return log.ok() ? *std::move(log) : nullptr;
  }
  static std::vector<std::string> Ids(const std::string& path) {
    std::ifstream file(path);
    std::vector<std::string> ids;
    for (std::string line; std::getline(file, line);) {
      const auto parsed = nlohmann::json::parse(line, nullptr, false);
      ids.push_back(parsed.is_object() ? parsed["id"].get<std::string>() : "bad line: " + line);
    }
    return ids;
  }

  model::TempDir dir_;
  const std::string path_ = dir_.path() + "/requests.jsonl";
  std::atomic<int64_t> dropped_{0};
};

TEST_F(RequestLogTest, LinesAreAppendedToAFileOfItsOwnerAlone) {
  for (const char* id : {"a", "b"}) {
    const auto log = Open();
    ASSERT_NE(log, nullptr);
    log->Add(RecordOf(id));
  }
  EXPECT_THAT(Ids(path_), testing::ElementsAre("a", "b"));
  struct stat st = {};
  ASSERT_EQ(stat(path_.c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 0777, 0600u);
  EXPECT_EQ(dropped_, 0);
}

TEST_F(RequestLogTest, AfterARenameItIsOpenedAgain) {
  const auto log = Open();
  ASSERT_NE(log, nullptr);
  log->Add(RecordOf("a"));
  while (Ids(path_).empty()) absl::SleepFor(absl::Milliseconds(1));
  ASSERT_EQ(rename(path_.c_str(), (path_ + ".1").c_str()), 0);
  log->Reopen();
  log->Add(RecordOf("b"));
  log->Stop();
  EXPECT_THAT(Ids(path_ + ".1"), testing::ElementsAre("a"));
  EXPECT_THAT(Ids(path_), testing::ElementsAre("b"));
}

TEST_F(RequestLogTest, IfItCannotBeOpenedAgainLinesGoOn) {
  const auto log = Open();
  ASSERT_NE(log, nullptr);
  ASSERT_EQ(rename(path_.c_str(), (path_ + ".1").c_str()), 0);
  ASSERT_EQ(mkdir(path_.c_str(), 0700), 0);
  testing::internal::CaptureStderr();
  log->Reopen();
  log->Add(RecordOf("a"));
  log->Stop();
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("the old request log stays"));
  EXPECT_THAT(Ids(path_ + ".1"), testing::ElementsAre("a"));
  EXPECT_EQ(dropped_, 0);
}

TEST_F(RequestLogTest, WhatIsNoFileIsRefused) {
  for (const std::string& path : {dir_.path(), dir_.path() + "/none/x", std::string("/dev/null")}) {
    const auto log = RequestLog::Open({.path = path, .on_dropped = nullptr});
    EXPECT_EQ(log.status().code(), absl::StatusCode::kInvalidArgument) << path;
    EXPECT_THAT(std::string(log.status().message()), HasSubstr("--request_log=" + path));
  }
}

// Standard output that nobody reads: the queue fills, the rest is dropped and counted, and the end comes.
TEST_F(RequestLogTest, AReaderThatDoesNotReadDropsRequestsAndBlocksNobody) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  ASSERT_EQ(fcntl(ends[1], F_SETPIPE_SZ, 4096), 4096);
  std::fflush(stdout);
  const int saved = dup(STDOUT_FILENO);
  ASSERT_EQ(dup2(ends[1], STDOUT_FILENO), STDOUT_FILENO);
  constexpr int kRequests = 1000, kRoom = 10;
  {
    const auto log = RequestLog::Open({.path = RequestLog::kStandardOutput,
                                       .most_waiting = kRoom,
                                       .on_dropped = [this](int64_t requests) { dropped_ += requests; }});
    ASSERT_TRUE(log.ok());
    for (int i = 0; i < kRequests; ++i) (*log)->Add(RecordOf("x"));
    EXPECT_GE(dropped_, kRequests - 2 * kRoom - 4096 / 400) << "a queue, a batch, and what a pipe holds";
    (*log)->Stop(absl::Milliseconds(10));
  }
  ASSERT_EQ(dup2(saved, STDOUT_FILENO), STDOUT_FILENO);
  close(saved);
  close(ends[1]);
  std::string out(1 << 16, '\0');
  out.resize(static_cast<size_t>(std::max<ssize_t>(read(ends[0], out.data(), out.size()), 0)));
  close(ends[0]);
  const auto lines = std::count(out.begin(), out.end(), '\n');
  EXPECT_GT(lines, 0);
  EXPECT_EQ(lines + dropped_, kRequests) << "each is written or counted";
}

TEST_F(RequestLogTest, AfterTheEndRequestsAreDropped) {
  const auto log = Open();
  ASSERT_NE(log, nullptr);
  log->Stop();
  log->Add(RecordOf("a"));
  EXPECT_EQ(dropped_, 1);
  EXPECT_TRUE(Ids(path_).empty());
}

}  // namespace
}  // namespace switchyard::server
