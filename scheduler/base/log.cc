#include "scheduler/base/log.h"

#include <unistd.h>

#include "absl/base/attributes.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "scheduler/base/env.h"

namespace switchyard {
namespace {

ABSL_CONST_INIT absl::Mutex name_mu(absl::kConstInit);
std::string& Name() {
  static std::string* name = new std::string("switchyard");
  return *name;
}

LogLevel LevelFromEnv() {
  const std::string level = EnvString("SY_LOG");
  if (level == "debug") return LogLevel::kDebug;
  if (level == "warn") return LogLevel::kWarn;
  if (level == "error") return LogLevel::kError;
  return LogLevel::kInfo;
}

}  // namespace

void SetLogName(absl::string_view name) {
  absl::MutexLock lock(&name_mu);
  Name() = std::string(name);
}

bool LogEnabled(LogLevel level) {
  static const LogLevel lowest = LevelFromEnv();
  return level >= lowest;
}

void LogLine(LogLevel level, absl::string_view text) {
  std::string name;
  {
    absl::MutexLock lock(&name_mu);
    name = Name();
  }
  const char letter = "DIWE"[static_cast<int>(level)];
  const std::string line =
      absl::StrCat(std::string(1, letter), " ", absl::FormatTime("%H:%M:%E3S", absl::Now(), absl::LocalTimeZone()), " ",
                   name, ": ", text, "\n");
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace switchyard
