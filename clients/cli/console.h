// The streams that a command reads and writes: the process's own, or a test's.
#pragma once

#include <istream>
#include <ostream>

namespace switchyard::cli {

struct Console {
  std::istream& in;
  std::ostream& out;         // answers only
  std::ostream& err;         // progress, summaries, complaints
  bool interactive = false;  // a person types at `in`
  bool live = false;         // `out` is a terminal: a line may be written over
  const char* version = "unknown";
};

// Exit codes of every command.
inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;  // a request failed
inline constexpr int kExitUsage = 2;   // flags or input are wrong; nothing was sent

}  // namespace switchyard::cli
