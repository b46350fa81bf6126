// A matrix of a checkpoint with a low-rank adapter added to it, W + scale B A, in fp32, before it is rounded or
// quantized.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "workers/checkpoint/adapters/lora_adapter.h"
#include "workers/checkpoint/quantized/matrix_reader.h"
#include "workers/checkpoint/tensors/checkpoint.h"

namespace switchyard::checkpoint {

class MergedMatrix : public MatrixReader {
 public:
  // base: the matrix's reader; null: the checkpoint's tensor `name` is read as it is, in its floating dtype.  rows: of
  // the tensor, as a matrix of its last dimension; row i + first of it is the adapter's row i.  Only those are read.
  // REQUIRES: the adapter's columns.  Borrows the adapter.
  MergedMatrix(const std::string& name, const Checkpoint& checkpoint, std::shared_ptr<const MatrixReader> base,
               const AdaptedMatrix* adapter, int64_t rows, int64_t first = 0);

  int64_t good_rows() const override { return base_ == nullptr ? 1 : base_->good_rows(); }
  absl::Status Read(int64_t first, int64_t count, float* to, ReadBytes read, MatrixScratch* scratch) const override;

 private:
  absl::Status ReadBase(int64_t first, int64_t count, float* to, ReadBytes read, MatrixScratch* scratch) const;

  const std::shared_ptr<const MatrixReader> base_;  // owners: this, and the table that it was in
  const AdaptedMatrix& adapter_;
  const int64_t first_;
};

}  // namespace switchyard::checkpoint
