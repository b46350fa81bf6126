#include "scheduler/base/io/json_shape.h"

#include <algorithm>

namespace switchyard {

JsonShape MeasureJson(absl::string_view text) {
  JsonShape shape;
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      shape.depth = std::max(shape.depth, ++depth);
    } else if (c == '}' || c == ']') {
      --depth;
    } else if (c == ':') {
      ++shape.keys;
    }
  }
  return shape;
}

}  // namespace switchyard
