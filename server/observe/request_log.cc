#include "server/observe/request_log.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/clock.h"
#include "scheduler/base/log.h"
#include "server/observe/request_line.h"

namespace switchyard::server {
namespace {

constexpr absl::Duration kBetweenLogWarnings = absl::Minutes(1);
constexpr int kPollMilliseconds = 100;
constexpr size_t kMostPiece = 4096;  // PIPE_BUF: a pipe that can be written to has room for so much

absl::StatusOr<UniqueFd> OpenLog(const std::string& path) {
  UniqueFd file(open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0600));
  struct stat st = {};
  if (file.get() < 0 || fstat(file.get(), &st) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--request_log=", path, ": cannot append to it: ", std::strerror(errno)));
  }
  if (!S_ISREG(st.st_mode))
    return absl::InvalidArgumentError(
        absl::StrCat("--request_log=", path, ": not a regular file (- is standard output)"));
  return file;
}

}  // namespace

absl::StatusOr<std::unique_ptr<RequestLog>> RequestLog::Open(Options options) {
  UniqueFd file;
  if (options.path != kStandardOutput) {
    absl::StatusOr<UniqueFd> opened = OpenLog(options.path);
    if (!opened.ok()) return opened.status();
    file = *std::move(opened);
  }
  return std::unique_ptr<RequestLog>(new RequestLog(std::move(options), std::move(file)));
}

RequestLog::RequestLog(Options options, UniqueFd file) : options_(std::move(options)), file_(std::move(file)) {
  thread_ = std::thread([this] { Run(); });
}

RequestLog::~RequestLog() { Stop(); }

void RequestLog::Add(std::shared_ptr<const RequestRecord> record) {
  const size_t choices = std::max<size_t>(record->choices.size(), 1);
  {
    absl::MutexLock lock(&mu_);
    if (waiting_choices_ + choices <= options_.most_waiting && deadline_ == absl::InfiniteFuture()) {
      waiting_choices_ += choices;
      waiting_.push_back(std::move(record));
      return;
    }
  }
  options_.on_dropped(1);
}

void RequestLog::Reopen() {
  absl::MutexLock lock(&mu_);
  reopen_ = true;
}

void RequestLog::Stop(absl::Duration limit) {
  {
    absl::MutexLock lock(&mu_);
    deadline_ = std::min(deadline_, MonotonicNow() + limit);
  }
  if (thread_.joinable()) thread_.join();
}

void RequestLog::Run() {
  const auto has_work = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return !waiting_.empty() || reopen_ || deadline_ != absl::InfiniteFuture();
  };
  for (;;) {
    std::deque<std::shared_ptr<const RequestRecord>> records;
    bool reopen = false, last = false;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(&has_work));
      records.swap(waiting_);
      waiting_choices_ = 0;
      reopen = std::exchange(reopen_, false);
      last = deadline_ != absl::InfiniteFuture();
    }
    if (reopen) ReopenNow();
    int64_t dropped = 0;
    int error = 0;
    for (const auto& record : records) {
      if (const int failed = Write(RequestLine(*record)); failed != 0) {
        ++dropped;
        error = failed;
      }
    }
    if (dropped > 0) NoteDropped(dropped, std::strerror(error));
    if (last) return;
  }
}

void RequestLog::ReopenNow() {
  if (options_.path == kStandardOutput) return;
  absl::StatusOr<UniqueFd> opened = OpenLog(options_.path);
  if (!opened.ok()) return LogError("the old request log stays: ", opened.status().message());
  file_ = *std::move(opened);
  is_torn_ = false;
  LogInfo(options_.path, ": opened again");
}

int RequestLog::Write(absl::string_view line) {
  const int fd = options_.path == kStandardOutput ? STDOUT_FILENO : file_.get();
  const std::string behind_torn = is_torn_ ? absl::StrCat("\n", line) : std::string();
  absl::string_view rest = is_torn_ ? absl::string_view(behind_torn) : line;
  const size_t size = rest.size();
  while (!rest.empty()) {
    pollfd ready = {.fd = fd, .events = POLLOUT, .revents = 0};
    const int found = poll(&ready, 1, kPollMilliseconds);
    const ssize_t count = found > 0 ? write(fd, rest.data(), std::min(rest.size(), kMostPiece)) : -1;
    const int error = found == 0 ? EAGAIN : errno;
    if (count >= 0) {
      rest.remove_prefix(static_cast<size_t>(count));
    } else if ((error != EINTR && error != EAGAIN) || MonotonicNow() >= deadline()) {
      is_torn_ = is_torn_ || rest.size() < size;
      return error;
    }
  }
  is_torn_ = false;
  return 0;
}

void RequestLog::NoteDropped(int64_t requests, const std::string& why) {
  options_.on_dropped(requests);
  if (const absl::Time now = MonotonicNow(); now >= next_warning_) {
    next_warning_ = now + kBetweenLogWarnings;
    LogWarn("--request_log=", options_.path, ": ", requests, " lines could not be written: ", why);
  }
}

}  // namespace switchyard::server
