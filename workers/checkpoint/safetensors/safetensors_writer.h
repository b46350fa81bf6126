// Writes a safetensors file as a stream: the header, then one tensor after another; no tensor needs to be in memory as
// a whole.
//
// Tensors are ordered by falling size of their elements, else as given, so that each is aligned to its elements; the
// data begins at a multiple of 8.  `__metadata__` is {"format": "pt"}, which HuggingFace's loaders require.
// Thread-compatible.  Does not do: files (the sink does), conversion (contents are the dtype's bytes, little-endian).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "workers/tensor/dtype.h"

namespace switchyard::checkpoint {

using ByteSink = absl::FunctionRef<absl::Status(absl::string_view bytes)>;

struct TensorToWrite {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  // Passes all bytes to the sink in order, in pieces of any size; returns the sink's error at once.
  std::function<absl::Status(ByteSink sink)> contents;
};

// Contents in memory, which must stay there until they are written.
std::function<absl::Status(ByteSink sink)> BytesAt(const void* bytes, int64_t count);

class SafetensorsWriter {
 public:
  // Borrows the tensors.  Errors: InvalidArgument 'tensor "x": …' for a duplicate or reserved name, a negative or
  // overflowing shape, a rank or header beyond the reader's limits.
  static absl::StatusOr<SafetensorsWriter> Create(absl::Span<const TensorToWrite> tensors);

  int64_t file_bytes() const { return file_bytes_; }
  // Errors: the sink's and the contents'; Internal for contents with more or fewer bytes than their shape has.
  absl::Status Write(ByteSink sink) const;

 private:
  SafetensorsWriter() = default;

  std::vector<const TensorToWrite*> tensors_;  // in the order of the file
  std::vector<int64_t> bytes_;                 // of each
  std::string head_;                           // length and JSON
  int64_t file_bytes_ = 0;
};

}  // namespace switchyard::checkpoint
