// Answers lines of input, several at once, and writes the answers in the order of the input.
#pragma once

#include <functional>
#include <istream>
#include <ostream>
#include <string>

#include "absl/strings/string_view.h"

namespace switchyard::cli {

struct LineAnswer {
  std::string text;  // written to `out`, followed by `end_of_answer`
  bool ok = true;
};

// Calls answer(line number from 1, line) on up to `concurrency` threads; blank lines are skipped.  Lines are read as
// they are needed and an answer is written (and flushed) once those before it are, so a pipe may wait for an answer
// before it sends the next line.  At most kMaxUnwritten answers wait behind a slow one.  Blocks until the input ends,
// or `out` can no longer be written, which the caller has to look for; returns the number of answers that were not ok.
// REQUIRES: neither `in` nor any stream that `answer` writes to is tied to `out` (std::ios::tie), since a tied stream
// would flush `out` from another thread.
inline constexpr int kMaxUnwritten = 4096;
int AnswerLines(std::istream& in, std::ostream& out, int concurrency,
                const std::function<LineAnswer(int, const std::string&)>& answer,
                absl::string_view end_of_answer = "\n");

}  // namespace switchyard::cli
