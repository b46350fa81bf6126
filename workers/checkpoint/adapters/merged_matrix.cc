#include "workers/checkpoint/adapters/merged_matrix.h"

#include <utility>
#include <vector>

#include "scheduler/base/status_macros.h"
#include "workers/checkpoint/safetensors/safetensors_header.h"
#include "workers/tensor/dtype.h"

namespace switchyard::checkpoint {

MergedMatrix::MergedMatrix(const std::string& name, const Checkpoint& checkpoint,
                           std::shared_ptr<const MatrixReader> base, const AdaptedMatrix* adapter, int64_t rows,
                           int64_t first)
    : MatrixReader(rows, adapter->columns), base_(std::move(base)), adapter_(*adapter), first_(first) {
  if (base_ == nullptr) {
    AddTensor(name, checkpoint.Find(name));
    return;
  }
  AddTensor(base_->stored_name(), base_->location());
  for (const std::string& tensor : base_->tensors()) {
    if (tensor != base_->stored_name()) AddTensor(tensor, checkpoint.Find(tensor));
  }
  set_row_step(base_->row_step());
}

absl::Status MergedMatrix::ReadBase(int64_t first, int64_t count, float* to, ReadBytes read,
                                    MatrixScratch* scratch) const {
  if (base_ != nullptr) return base_->Read(first, count, to, read, scratch);
  const TensorEntry& entry = *location().entry;
  ASSIGN_OR_RETURN(const DType dtype, ParseSafetensorsDType(entry.dtype));
  const int64_t row_bytes = columns() * DTypeBytes(dtype);
  scratch->bytes.resize(static_cast<size_t>(count * row_bytes));
  RETURN_IF_ERROR(read(*location().file, entry.begin + first * row_bytes, absl::MakeSpan(scratch->bytes)));
  VisitDType(dtype, [&]<class Elem>() {
    const Elem* const from = reinterpret_cast<const Elem*>(scratch->bytes.data());
    for (int64_t i = 0; i < count * columns(); ++i) to[i] = static_cast<float>(from[i]);
  });
  return absl::OkStatus();
}

absl::Status MergedMatrix::Read(int64_t first, int64_t count, float* to, ReadBytes read, MatrixScratch* scratch) const {
  RETURN_IF_ERROR(ReadBase(first, count, to, read, scratch));
  std::vector<double> sums(static_cast<size_t>(columns()));
  for (int64_t i = 0; i < count; ++i) {
    sums.assign(sums.size(), 0);
    for (int64_t r = 0; r < adapter_.rank; ++r) {
      const double factor = adapter_.scale * adapter_.b[static_cast<size_t>((first - first_ + i) * adapter_.rank + r)];
      const float* const a = adapter_.a.data() + r * columns();
      for (int64_t j = 0; j < columns(); ++j) sums[static_cast<size_t>(j)] += factor * a[j];
    }
    for (int64_t j = 0; j < columns(); ++j) {
      to[i * columns() + j] = static_cast<float>(to[i * columns() + j] + sums[static_cast<size_t>(j)]);
    }
  }
  return absl::OkStatus();
}

}  // namespace switchyard::checkpoint
