// Counts the tokens of an output whose text began within its reasoning.
//
// A parser knows of a byte whether it is reasoning only when it shows it, or text behind it: so places of tokens wait
// until then.  Places are bytes from the beginning of the output.  Thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

namespace switchyard::text {

class ReasoningTokens {
 public:
  // The text of the next token begins at `at`.  REQUIRES: `at` does not fall, and no byte from there on was shown.
  void Add(size_t at) { begins_.push_back(at); }

  // The bytes from `begin` to `end` are shown; what was before and not shown (markers, calls) is in no text.
  // REQUIRES: `begin` is not before the last `end`.
  void Show(size_t begin, size_t end, bool is_reasoning) {
    for (; !begins_.empty() && begins_.front() < end; begins_.pop_front()) {
      if (is_reasoning && begins_.front() >= begin) ++count_;
    }
  }

  int64_t count() const { return count_; }

 private:
  std::deque<size_t> begins_;  // of tokens that wait
  int64_t count_ = 0;
};

}  // namespace switchyard::text
