// One line per event on stderr: "I 12:03:11.204 server: ready on 127.0.0.1:50051".
//
// Thread-safe; a line is one write().  Never logs prompts or tokens.  A logger that cannot write loses the line, it
// never blocks serving on an error.  Level by SY_LOG (debug, info, warn, error; default info).
#pragma once

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace switchyard {

enum class LogLevel { kDebug, kInfo, kWarn, kError };

// Names the process in its lines: "server", "worker 2".  Set once at start.
void SetLogName(absl::string_view name);
bool LogEnabled(LogLevel level);
void LogLine(LogLevel level, absl::string_view text);

template <class... Args>
void LogInfo(const Args&... args) {
  if (LogEnabled(LogLevel::kInfo)) LogLine(LogLevel::kInfo, absl::StrCat(args...));
}
template <class... Args>
void LogWarn(const Args&... args) {
  if (LogEnabled(LogLevel::kWarn)) LogLine(LogLevel::kWarn, absl::StrCat(args...));
}
template <class... Args>
void LogError(const Args&... args) {
  LogLine(LogLevel::kError, absl::StrCat(args...));
}

}  // namespace switchyard
