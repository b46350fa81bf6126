// Compares secrets.
#pragma once

#include <cstddef>

#include "absl/strings/string_view.h"

namespace switchyard {

// The time does not depend on which byte differs; it does depend on the sizes.
inline bool ConstantTimeEqual(absl::string_view a, absl::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned char>(a[i] ^ b[i]);
  return difference == 0;
}

}  // namespace switchyard
