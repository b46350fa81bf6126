// A compiled regular expression (PCRE2 with JIT, UTF and Unicode properties) as tokenizer.json files hold them.
//
// Thread-safe: const after Compile; each search has its own match data.  Bounded: a search that backtracks or uses
// memory beyond its limits ends with an error instead of hanging.  Does not capture.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

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
  // Compiles a pattern in Oniguruma's syntax (see regex_syntax.h).
  static absl::StatusOr<Regex> Compile(absl::string_view oniguruma);

  // Calls `visit` for each match from left to right, without overlap; an empty match right after the previous one is
  // skipped.  The visitor's error ends the search and is returned.  ResourceExhausted: backtracking hit its limit.
  // REQUIRES: text is valid UTF-8.
  absl::Status ForEachMatch(absl::string_view text, absl::FunctionRef<absl::Status(Match)> visit) const;

 private:
  explicit Regex(std::shared_ptr<const void> code) : code_(std::move(code)) {}

  std::shared_ptr<const void> code_;  // a pcre2_code, shared by copies of this object
};

}  // namespace switchyard::tokenizer
