// How many bytes of text each token stands for, by a model's tokenizer.json: what bits per byte are counted in.  Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace switchyard::quantize {

// By token id; special tokens stand for none.  Byte-level vocabularies (GPT-2's letters for bytes), others with the
// letter U+2581 for a space and "<0x0A>" for a byte.  InvalidArgument: no such file.
absl::StatusOr<std::vector<int32_t>> BytesOfTokens(absl::string_view tokenizer_json);

}  // namespace switchyard::quantize
