// Texts that are too long, cut so that they stay valid UTF-8.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace switchyard {

// The first `most` bytes at most, not ending within a character.
inline absl::string_view CutText(absl::string_view text, size_t most) {
  if (text.size() <= most) return text;
  size_t bytes = most;
  while (bytes > 0 && (static_cast<uint8_t>(text[bytes]) & 0xC0) == 0x80) --bytes;
  return text.substr(0, bytes);
}

}  // namespace switchyard
