// Parses the header of a safetensors file, JSON text → tensors, and checks every claim.  Pure.
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
#include "workers/checkpoint/tensors/weights_file.h"
#include "workers/tensor/dtype.h"

namespace switchyard::checkpoint {

inline constexpr int64_t kMaxSafetensorsHeader = 25'000'000;
inline constexpr int kMaxSafetensorsRank = 8;

// data_begin: where the data starts in the file (8 + header length); data_bytes: its size.  The tensors have rising
// offsets and tile the data without hole or overlap. Errors: InvalidArgument 'header: …' or 'tensor "x": …'.
absl::StatusOr<std::vector<NamedTensor>> ParseSafetensorsHeader(absl::string_view json, int64_t data_begin,
                                                                int64_t data_bytes);

// The same for a file of file_bytes; `read` reads any part of it, and *text becomes the JSON.  A length beyond the
// file's end allocates nothing.  Errors: also Unimplemented "unsupported format" for another format; read's.
absl::StatusOr<std::vector<NamedTensor>> ReadSafetensorsHeader(
    int64_t file_bytes, absl::FunctionRef<absl::Status(int64_t begin, absl::Span<char> to)> read, std::string* text);

// The dtype of a header's name: F64 F32 F16 BF16 I64 I32 U8; others are Unimplemented.
absl::StatusOr<DType> ParseSafetensorsDType(absl::string_view name);
// "BF16" …
absl::string_view SafetensorsDTypeName(DType dtype);

}  // namespace switchyard::checkpoint
