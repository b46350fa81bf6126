#include "workers/checkpoint/quantized/transposed_matrix.h"

#include <algorithm>

#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"
#include "workers/checkpoint/safetensors/safetensors_header.h"

namespace switchyard::checkpoint {
namespace {

// So many stored rows are turned at a time: they write whole cache lines.
constexpr int64_t kColumns = 32;

}  // namespace

TransposedMatrix::TransposedMatrix(const std::string& name, const TensorLocation& at)
    : MatrixReader(at.entry->shape[0] * at.entry->shape[2], at.entry->shape[1]),
      slab_rows_(at.entry->shape[2]),
      dtype_(*ParseSafetensorsDType(at.entry->dtype)) {
  SY_CHECK_EQ(at.entry->shape.size(), 3u);
  AddTensor(name, at);
}

absl::Status TransposedMatrix::Read(int64_t first, int64_t count, float* to, ReadBytes read,
                                    MatrixScratch* scratch) const {
  for (const int64_t end = first + count; first < end;) {
    const int64_t part = std::min(end - first, slab_rows_ - first % slab_rows_);
    RETURN_IF_ERROR(ReadSlab(first, part, to, read, scratch));
    first += part;
    to += part * columns();
  }
  return absl::OkStatus();
}

absl::Status TransposedMatrix::ReadSlab(int64_t first, int64_t count, float* to, ReadBytes read,
                                        MatrixScratch* scratch) const {
  const int64_t element = DTypeBytes(dtype_);
  int64_t begin =
      location().entry->begin + (first / slab_rows_ * columns() * slab_rows_ + first % slab_rows_) * element;
  scratch->bytes.resize(static_cast<size_t>(kColumns * count * element));
  for (int64_t column = 0; column < columns(); column += kColumns) {
    const int64_t width = std::min(kColumns, columns() - column);
    for (int64_t i = 0; i < width; ++i, begin += slab_rows_ * element) {
      uint8_t* const at = scratch->bytes.data() + i * count * element;
      RETURN_IF_ERROR(read(*location().file, begin, absl::MakeSpan(at, static_cast<size_t>(count * element))));
    }
    VisitDType(dtype_, [&]<class Elem>() {
      const Elem* const from = reinterpret_cast<const Elem*>(scratch->bytes.data());
      for (int64_t row = 0; row < count; ++row) {
        float* const out = to + row * columns() + column;
        for (int64_t i = 0; i < width; ++i) out[i] = static_cast<float>(from[i * count + row]);
      }
    });
  }
  return absl::OkStatus();
}

}  // namespace switchyard::checkpoint
