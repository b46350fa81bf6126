#include "proto/support/library_setup.h"

#include <string>

#include "absl/base/attributes.h"
#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "google/protobuf/stubs/logging.h"
#include "scheduler/base/log.h"

namespace switchyard::rpc {
namespace {

constexpr absl::Duration kLogEvery = absl::Seconds(10);

ABSL_CONST_INIT absl::Mutex mu(absl::kConstInit);
absl::Time next_line ABSL_GUARDED_BY(mu) = absl::InfinitePast();
int left_out ABSL_GUARDED_BY(mu) = 0;

// Fatal messages, which end the process, are always logged.
void LogForProtobuf(google::protobuf::LogLevel level, const char*, int, const std::string& message) {
  absl::MutexLock lock(&mu);
  const absl::Time now = absl::Now();
  if (level != google::protobuf::LOGLEVEL_FATAL && now < next_line) {
    ++left_out;
    return;
  }
  LogWarn("protobuf: ", message, left_out > 0 ? absl::StrCat(" (and ", left_out, " lines before it)") : "");
  next_line = now + kLogEvery;
  left_out = 0;
}

}  // namespace

void SetUpLibraries() {
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  google::protobuf::SetLogHandler(&LogForProtobuf);
}

}  // namespace switchyard::rpc
