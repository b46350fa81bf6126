// The header of a safetensors file: JSON text → tensors, every claim checked.  Pure; see safetensors.h for the reader,
// safetensors_writer.h for the writer.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "workers/checkpoint/safetensors/safetensors.h"

namespace switchyard::checkpoint {

// `data_begin`: where the data starts in the file (8 + header length); `data_bytes`: how many follow.  The tensors come
// by rising offset and tile the data exactly, without hole or overlap.
// Errors: InvalidArgument 'header: …' or 'tensor "x": …'.
absl::StatusOr<std::vector<std::pair<std::string, TensorEntry>>> ParseSafetensorsHeader(absl::string_view json,
                                                                                        int64_t data_begin,
                                                                                        int64_t data_bytes);

// The same of a file of `file_bytes`, of which `read` gives any part; *text gets the JSON.  Nothing is allocated from
// a length that the file does not have.
// Errors: also Unimplemented "unsupported format" for what looks like another one; read's.
absl::StatusOr<std::vector<std::pair<std::string, TensorEntry>>> ReadSafetensorsHeader(
    int64_t file_bytes, absl::FunctionRef<absl::Status(int64_t begin, absl::Span<char> to)> read, std::string* text);

// How a header calls it: "BF16" …
const char* SafetensorsDTypeName(DType dtype);

}  // namespace switchyard::checkpoint
