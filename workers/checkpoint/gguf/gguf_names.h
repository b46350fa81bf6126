// A GGUF model's tensors by the names, and in the shapes and the order of rows, that HuggingFace's checkpoints of the
// same family have.
//
// Thread-safe (pure).  Errors: InvalidArgument 'tensor "x": …' for a name that the architecture does not have, a block
// or an expert that there is not, and for shapes that do not go with the metadata.  Does not do: to find out whether a
// model's tensors are all there, and have the model's shapes, which its loader does.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "scheduler/base/gguf/gguf_file.h"

namespace switchyard::checkpoint {

// A tensor of a model, which is a GGUF tensor or one expert's part of it.
struct GgufModelTensor {
  std::string name = {};            // HuggingFace's
  std::vector<int64_t> shape = {};  // HuggingFace's; of as many elements as the bytes have
  const GgufFile* file = nullptr;   // of the checkpoint
  const GgufBlockFormat* format = nullptr;
  int64_t begin = 0;  // of its bytes, in the file
  int64_t bytes = 0;
  // Rows of heads of this many rows (or elements, of a bias) are stored in the order 0, D/2, 1, D/2 + 1 …; 0: in order.
  int64_t interleaved_head = 0;
};

// Sorted by name.  Tensors that the metadata's readers use (rope_freqs.weight) are left out.
absl::StatusOr<std::vector<GgufModelTensor>> ListGgufModelTensors(const GgufCheckpoint& checkpoint);

// The row of a head's D rows, as stored, that is row `row` in HuggingFace's order.
inline int64_t InterleavedRow(int64_t row, int64_t head_dim) {
  const int64_t half = head_dim / 2;
  const int64_t in_head = row % head_dim;
  return row - in_head + (in_head < half ? 2 * in_head : 2 * (in_head - half) + 1);
}

}  // namespace switchyard::checkpoint
