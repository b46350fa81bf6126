// The `pattern` of the components Split and Replace: {"String": "..."} or {"Regex": "..."}.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/text/tokenizer/json_field.h"
#include "server/text/tokenizer/regex.h"

namespace switchyard::tokenizer {

// Const after Parse, thread-safe.
class Pattern {
 public:
  static absl::StatusOr<Pattern> Parse(const Field& field);

  // Like Regex::ForEachMatch.
  absl::Status ForEachMatch(absl::string_view text, absl::FunctionRef<absl::Status(Match)> visit) const;
  // Returns the text with every match replaced.
  absl::StatusOr<std::string> ReplaceAll(absl::string_view text, absl::string_view content) const;
  // The literal text, or empty for a regex.
  const std::string& literal() const { return literal_; }

 private:
  Pattern() = default;
  std::string literal_;         // if not empty, found by plain search
  std::optional<Regex> regex_;  // if there is no literal
};

}  // namespace switchyard::tokenizer
