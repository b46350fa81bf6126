// Parses the header of a GGUF file (versions 2 and 3, little-endian): metadata, the table of tensors, where the data
// begins.  Every claim is checked against the file's size; nothing is allocated from an unverified length.  Pure.
//
// Errors: InvalidArgument 'key "x": …', 'tensor "x": …' or of the header as a whole, with what was expected and what
// was found; the errors of `read`.  Does not do: big-endian files, version 1, the tensors' contents.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "scheduler/base/gguf/gguf_metadata.h"
#include "scheduler/base/gguf/gguf_types.h"

namespace switchyard {

inline constexpr int64_t kMaxGgufHeader = int64_t{256} << 20;  // bytes of metadata and table
inline constexpr int64_t kMaxGgufKeys = 65'536;
inline constexpr int64_t kMaxGgufTensors = 250'000;
inline constexpr int64_t kMaxGgufKeyBytes = 65'535;  // as the format says
inline constexpr int64_t kMaxGgufNameBytes = 256;    // of a tensor; llama.cpp: 64
inline constexpr int64_t kMaxGgufStringBytes = int64_t{64} << 20;
inline constexpr int64_t kMaxGgufArray = int64_t{1} << 24;  // elements; the longest are vocabularies
inline constexpr int64_t kMaxGgufAlignment = int64_t{1} << 20;
inline constexpr int64_t kDefaultGgufAlignment = 32;
inline constexpr uint32_t kMaxGgufRank = 4;
inline constexpr char kGgufAlignmentKey[] = "general.alignment";

// One tensor as the table describes it.
struct GgufTensor {
  std::string name = {};
  const GgufBlockFormat* format = nullptr;
  // Outermost first, as in safetensors (the file has them the other way round); 1 to 4 of them, none is 0.
  std::vector<int64_t> shape = {};
  int64_t begin = 0;  // of its bytes, from the start of the file
  int64_t bytes = 0;

  std::string ShapeString() const;  // "[4, 128]"
  // Of a row of the innermost dimension, which is a whole number of blocks.
  int64_t row_bytes() const { return shape.back() / format->elements * format->bytes; }
};

struct GgufHeader {
  uint32_t version = 0;
  int64_t alignment = kDefaultGgufAlignment;
  GgufMetadata metadata;
  std::vector<GgufTensor> tensors;           // by rising offset; they do not overlap and end within the file
  int64_t data_begin = 0;                    // of the tensors' data; a file without tensors may end before it
  std::unique_ptr<const std::string> bytes;  // of the file up to the table's end, of which metadata has views
};

// The header of a file of file_bytes; `read` reads any part of it.
absl::StatusOr<GgufHeader> ReadGgufHeader(int64_t file_bytes,
                                          absl::FunctionRef<absl::Status(int64_t begin, absl::Span<char> to)> read);

}  // namespace switchyard
