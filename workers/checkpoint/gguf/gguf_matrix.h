// A tensor of a GGUF file whose rows are stored as blocks (block_formats.h), or in another order than HuggingFace's.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "workers/checkpoint/gguf/block_formats.h"
#include "workers/checkpoint/gguf/block_numbers.h"
#include "workers/checkpoint/quantized/matrix_reader.h"

namespace switchyard::checkpoint {

class GgufMatrix : public MatrixReader {
 public:
  // Whether it is one: not a tensor of plain floats in order.
  static bool Is(const TensorEntry& entry);
  // One dimension is read as a column.  Errors (InvalidArgument): another shape, a type that cannot be loaded.
  static absl::StatusOr<std::unique_ptr<MatrixReader>> Open(const TensorLocation& location, const std::string& name,
                                                            absl::Span<const int64_t> shape);

  absl::Status Read(int64_t first, int64_t count, float* to, ReadBytes read, MatrixScratch* scratch) const override;
  ops::WeightFormat own_format() const override { return numbers_.format; }  // NumbersOfType
  // Of all blocks: q6_k of those of 2 to 4 bits (but MXFP4) and of Q6_K, else q8_0.
  ops::WeightFormat near_format() const override;
  absl::Status ReadNumbers(int64_t first, int64_t count, const ops::StoredNumbers& to, ReadBytes read,
                           MatrixScratch* scratch) const override;

 private:
  GgufMatrix(int64_t rows, int64_t columns) : MatrixReader(rows, columns) {}

  // Into the scratch's bytes.
  absl::Status ReadRows(int64_t first, int64_t count, ReadBytes read, MatrixScratch* scratch) const;
  // Where a row of a read is among the rows as they are stored.
  int64_t StoredRow(int64_t row) const;

  DecodeBlocksFn decode_ = nullptr;
  BlockNumbers numbers_;
  int64_t row_blocks_ = 0;  // blocks of a row
  int64_t row_bytes_ = 0;
  int64_t head_ = 0;  // TensorEntry::interleaved_head
};

}  // namespace switchyard::checkpoint
