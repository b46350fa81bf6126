// The types of tensors in GGUF files: blocks of a fixed number of elements in a fixed number of bytes.  A table of all
// that llama.cpp writes; what their bits mean is known in workers/checkpoint/gguf/.
//
// Thread-safe (pure).
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace switchyard {

struct GgufBlockFormat {
  uint32_t type;     // the number in a file
  const char* name;  // llama.cpp's: "Q4_K"
  int32_t elements;  // of a block
  int32_t bytes;     // of a block
};

// All known types, by rising number.
absl::Span<const GgufBlockFormat> GgufBlockFormats();
// nullptr for a number, or a name, that no type has.
const GgufBlockFormat* FindGgufBlockFormat(uint32_t type);
const GgufBlockFormat* FindGgufBlockFormat(absl::string_view name);

}  // namespace switchyard
