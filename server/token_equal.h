// Comparing secrets.
#pragma once

#include <string>

namespace switchyard {

// Takes as long whether the first or the last byte differs.
inline bool ConstantTimeEqual(const std::string& a, const std::string& b) {
  if (a.size() != b.size()) return false;
  unsigned difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned char>(a[i] ^ b[i]);
  return difference == 0;
}

}  // namespace switchyard
