// How deep a JSON text nests and how many keys it has, told before it is parsed: what walks or copies a parsed value
// recurses, and ordered objects look their keys up one by one.
#pragma once

#include "absl/strings/string_view.h"

namespace switchyard {

struct JsonShape {
  int depth = 0;  // the deepest nesting
  int keys = 0;
};

// Linear, without recursion.  A text that is no JSON gets some answer.
JsonShape MeasureJson(absl::string_view text);

}  // namespace switchyard
