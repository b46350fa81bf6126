// Rows of matrices on the host, as exchanges move them: by bytes, whatever their dtype.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "workers/tensor/device.h"
#include "workers/tensor/tensor.h"

namespace switchyard::moe {

inline int64_t RowBytes(const TensorView& rows) { return rows.dim(1) * DTypeBytes(rows.dtype()); }
inline char* RowAt(const TensorView& rows, int64_t i) {
  return static_cast<char*>(rows.raw()) + i * rows.row_stride() * DTypeBytes(rows.dtype());
}

// to[i] = from[index[i]], rows of `from`'s width, one after the other; on the stream's threads.
void GatherTo(const Stream& stream, const TensorView& from, absl::Span<const int32_t> index, char* to);

}  // namespace switchyard::moe
