// A stack of matrices [E, columns, rows] of a floating dtype, each stored transposed, as gpt-oss stores experts that
// are not quantized.  The rows of its matrices, as the model sees them, follow each other.
//
// A read of few rows is one of few bytes from each stored row, so that it asks for many at a time.
#pragma once

#include <cstdint>
#include <string>

#include "workers/checkpoint/quantized/matrix_reader.h"
#include "workers/tensor/dtype.h"

namespace switchyard::checkpoint {

class TransposedMatrix : public MatrixReader {
 public:
  // REQUIRES: at is of a tensor of three dimensions and a floating dtype.
  TransposedMatrix(const std::string& name, const TensorLocation& at);

  int64_t good_rows() const override { return 512; }
  absl::Status Read(int64_t first, int64_t count, float* to, ReadBytes read, MatrixScratch* scratch) const override;

 private:
  // The same of rows of one of the stack's matrices.
  absl::Status ReadSlab(int64_t first, int64_t count, float* to, ReadBytes read, MatrixScratch* scratch) const;

  const int64_t slab_rows_;  // of one matrix
  const DType dtype_;
};

}  // namespace switchyard::checkpoint
