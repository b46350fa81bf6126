// A matrix whose codes are stored input by input, so transposed: AWQ and GPTQ.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "workers/checkpoint/quantized/matrix_reader.h"
#include "workers/checkpoint/quantized/stored_part.h"

namespace switchyard::checkpoint {

class ColumnMatrix : public MatrixReader {
 public:
  // name: as the model has it, "X.weight".  Errors: OpenMatrix's.
  static absl::StatusOr<std::unique_ptr<MatrixReader>> Open(const Checkpoint& checkpoint, const StoredWeights& weights,
                                                            const std::string& name, absl::Span<const int64_t> shape);

  absl::Status Read(int64_t first, int64_t count, float* to, ReadBytes read, MatrixScratch* scratch) const override;
  // Where columns are in order and in groups of a multiple of 32, with scales in fp16: of symmetric ones those of their
  // bits; else, of four bits, with least values that are -zero point · scale, rounded to fp16.
  ops::WeightFormat own_format() const override;
  // q8_0, of any order (desc_act) and scales, of four bits, whose steps are large beside those of 8; and of own q8_0.
  ops::WeightFormat near_format() const override;
  absl::Status ReadNumbers(int64_t first, int64_t count, const ops::StoredNumbers& to, ReadBytes read,
                           MatrixScratch* scratch) const override;

 private:
  ColumnMatrix(const StoredWeights& weights, int64_t rows, int64_t columns);
  absl::Status Check(const std::string& name) const;
  absl::Status Find(const Checkpoint& checkpoint, const std::string& module);
  absl::Status ReadCodes(int64_t first, int64_t count, ReadBytes read, MatrixScratch* scratch) const;
  // To scratch->scales and ->zeros, [count, groups].
  absl::Status ReadGroups(int64_t first, int64_t count, ReadBytes read, MatrixScratch* scratch) const;
  bool is_awq() const { return weights_.format == StoredFormat::kAwq; }
  int64_t factor() const { return 32 / weights_.bits; }  // codes of a word

  const StoredWeights weights_;
  const int64_t group_size_;
  const int64_t groups_;  // of a row
  StoredPart codes_, scales_, zeros_, order_;
};

}  // namespace switchyard::checkpoint
