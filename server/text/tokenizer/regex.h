// A compiled regular expression (PCRE2 with JIT, UTF and Unicode properties) as tokenizer.json files hold them.
//
// Thread-safe: const after Compile; each search has its own match data.  Bounded: a search that backtracks more than
// its limit ends with an error instead of hanging, memory has a limit too.  Does not capture.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace switchyard::tokenizer {

struct Match {
  size_t begin;
  size_t end;
};

class Regex {
 public:
  // From Oniguruma syntax (see regex_syntax.h).
  static absl::StatusOr<Regex> Compile(absl::string_view oniguruma);

  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;
  ~Regex();

  // Calls `visit` for each match from left to right, without overlap; an empty match right behind the previous one is
  // skipped.  The visitor's error ends the search and is returned.  ResourceExhausted: backtracking hit its limit.
  // REQUIRES: text is valid UTF-8.
  absl::Status ForEachMatch(absl::string_view text, absl::FunctionRef<absl::Status(Match)> visit) const;

 private:
  struct Code;
  explicit Regex(std::unique_ptr<Code> code);

  std::unique_ptr<Code> code_;
};

}  // namespace switchyard::tokenizer
