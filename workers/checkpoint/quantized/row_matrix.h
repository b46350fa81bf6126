// A matrix whose codes are stored row by row: fp8, int8, packed codes of compressed-tensors, MXFP4.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "workers/checkpoint/quantized/decode.h"
#include "workers/checkpoint/quantized/matrix_reader.h"
#include "workers/checkpoint/quantized/stored_part.h"

namespace switchyard::checkpoint {

class RowMatrix : public MatrixReader {
 public:
  // name: as the model has it, "X.weight", or of fused experts.  Errors: OpenMatrix's.
  static absl::StatusOr<std::unique_ptr<MatrixReader>> Open(const Checkpoint& checkpoint, const StoredWeights& weights,
                                                            const std::string& name, absl::Span<const int64_t> shape);

  absl::Status Read(int64_t first, int64_t count, float* to, ReadBytes read, MatrixScratch* scratch) const override;
  // Of symmetric integers of 4 or 8 bits whose columns are in order, in groups of a multiple of 32 or a row's, with
  // scales in bf16 or fp16: a scale is repeated for each 32 columns.  MXFP4 is a format itself.
  ops::WeightFormat own_format() const override { return own_format_; }
  // q8_0 where own_format() is not plain, and of fp8: a 127th of a group's largest value is little beside steps of an
  // eighth to a sixteenth of each.  Not of 8 bits with scales in bf16, whose values q8_0 gets no better than they are.
  ops::WeightFormat near_format() const override;
  absl::Status ReadNumbers(int64_t first, int64_t count, const ops::StoredNumbers& to, ReadBytes read,
                           MatrixScratch* scratch) const override;

 private:
  RowMatrix(const StoredWeights& weights, absl::Span<const int64_t> shape);
  absl::Status FindCodes(const Checkpoint& checkpoint, const std::string& name);
  absl::Status FindScales(const Checkpoint& checkpoint, const std::string& name);
  absl::Status FindRest(const Checkpoint& checkpoint, const std::string& name);
  absl::Status CheckGroups(const std::string& name) const;
  // The shapes that the scales may have.
  std::vector<std::vector<int64_t>> ScaleShapes() const;
  // The row of scales that a row has.
  int64_t ScaleRowOf(int64_t row) const;
  absl::Status ReadScales(int64_t first, int64_t count, ReadBytes read, MatrixScratch* scratch) const;
  absl::Status ReadScaleBits(int64_t first, int64_t count, uint16_t* bits, ReadBytes read,
                             MatrixScratch* scratch) const;
  absl::Status ReadPowers(int64_t first, int64_t count, uint16_t* bits, ReadBytes read, MatrixScratch* scratch) const;
  absl::Status ScaleBeyond(float scale) const;
  absl::Status ReadZeros(int64_t first, int64_t count, ReadBytes read, MatrixScratch* scratch) const;
  absl::Status ReadColumnGroups(ReadBytes read, MatrixScratch* scratch) const;
  absl::Status CheckShape(ReadBytes read) const;
  ops::WeightFormat FindOwnFormat() const;
  // Into the scratch's codes.
  absl::Status ReadCodes(int64_t first, int64_t count, ReadBytes read, MatrixScratch* scratch) const;

  const StoredWeights weights_;
  const std::vector<int64_t> shape_;
  const int64_t slab_rows_;  // of one matrix of a stack
  CodeType code_ = CodeType::kE4m3;
  int64_t row_bytes_ = 0;
  int64_t groups_ = 1;      // of a row
  int64_t group_size_ = 0;  // columns
  bool one_scale_ = false;  // for all of the tensor
  ops::WeightFormat own_format_ = ops::WeightFormat::kPlain;
  StoredPart codes_, scales_, zeros_, order_, shape_part_;
};

}  // namespace switchyard::checkpoint
