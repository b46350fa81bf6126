// Text operations that methods and filters share.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/text/chat_template/filters/code_points.h"
#include "server/text/chat_template/interpreter/runtime.h"

namespace switchyard::jinja {

// Python's str.split and rsplit, at runs of whitespace or at a separator, with at most `limit` cuts.  Pieces are views
// of `text`.  REQUIRES: separator is not empty.
std::vector<absl::string_view> SplitAtSpace(absl::string_view text, size_t limit, bool from_right);
std::vector<absl::string_view> SplitAt(absl::string_view text, absl::string_view separator, size_t limit,
                                       bool from_right);
absl::StatusOr<Value> NewStringList(Runtime& runtime, const std::vector<absl::string_view>& pieces);

// Returns the last position of `needle`, or npos.
size_t FindLastText(absl::string_view text, absl::string_view needle);

struct Replacement {
  absl::string_view from, to;
  int64_t count = -1;  // how many; negative: all
};
absl::StatusOr<Value> ReplaceText(Runtime& runtime, absl::string_view text, const Replacement& replacement);

struct Justification {
  int64_t width = 0;        // in code points
  absl::string_view fill;   // one character
  Side side = Side::kLeft;  // where the text goes; kBoth: the middle
};
absl::StatusOr<Value> Justify(Runtime& runtime, absl::string_view text, const Justification& how);

bool IsAlnum(int32_t c);
// Python's str.isupper or islower: some letter has this case, and none the other.
bool HasCase(absl::string_view text, bool upper);

}  // namespace switchyard::jinja
