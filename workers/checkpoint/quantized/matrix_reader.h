// MatrixReader: interface to one matrix of a checkpoint as the model sees it, rows of fp32 values, however its bits
// are stored.  OpenMatrix makes one for each published format of quantized weights (quantization_config.h), and for
// GGUF's blocks.
//
// A reader holds shapes and places, no contents: scales are read with the rows that they belong to.  It borrows the
// checkpoint.  Thread-safe: each thread has a scratch of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "workers/checkpoint/quantized/quantization_config.h"
#include "workers/checkpoint/tensors/checkpoint.h"
#include "workers/ops/gemm/quantized/weight_format.h"

namespace switchyard::checkpoint {

// Reads exactly to.size() bytes at `begin` of a file: WeightsFile::Read, and what the caller checks.
using ReadBytes = absl::FunctionRef<absl::Status(const WeightsFile& file, int64_t begin, absl::Span<uint8_t> to)>;

// Memory of one thread, which readers grow as they need it: about the size of the values of a read.
struct MatrixScratch {
  std::vector<uint8_t> bytes, codes;
  std::vector<float> scales, zeros, columns;
  std::vector<int32_t> order;
};

class MatrixReader {
 public:
  virtual ~MatrixReader() = default;

  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }
  // Reads begin at multiples of this, and end at one or at the last row.
  int64_t row_step() const { return row_step_; }
  // Reads of fewer rows are slow; at most 512.
  virtual int64_t good_rows() const { return 1; }
  // Where its codes are, and the name of their tensor.
  const TensorLocation& location() const { return location_; }
  const std::string& stored_name() const { return stored_name_; }
  // All tensors of the checkpoint that it is made of.
  const std::vector<std::string>& tensors() const { return tensors_; }
  // About so many bytes of the checkpoint a read of so many rows reads: their share of all.
  int64_t ReadSize(int64_t rows) const { return stored_bytes_ * rows / rows_; }

  // Writes rows [first, first + count) to `to`, count × columns values.
  // REQUIRES: the rows exist, and begin and end as row_step() says.
  // Errors: those of `read`; InvalidArgument "<file>: tensor "<name>": …" for a scale that is NaN or Inf, an index of a
  // group that does not exist, a weight_shape that is not the matrix's.  Codes that are NaN are values like others.
  virtual absl::Status Read(int64_t first, int64_t count, float* to, ReadBytes read, MatrixScratch* scratch) const = 0;

  // The format whose numbers and scales are the stored ones, so that a weight of it can hold them; kPlain: there is
  // none.
  virtual ops::WeightFormat own_format() const { return ops::WeightFormat::kPlain; }
  // q6_k or q8_0, if rounding to it adds an error that is small beside the one which the stored values have; else
  // kPlain.
  virtual ops::WeightFormat near_format() const { return ops::WeightFormat::kPlain; }
  // The same rows as numbers of own_format().
  // REQUIRES: as Read; own_format() is not kPlain.
  virtual absl::Status ReadNumbers(int64_t first, int64_t count, const ops::StoredNumbers& to, ReadBytes read,
                                   MatrixScratch* scratch) const;

 protected:
  MatrixReader(int64_t rows, int64_t columns) : rows_(rows), columns_(columns) {}
  // Adds a tensor that it is made of; the first is that of its codes.
  void AddTensor(const std::string& name, const TensorLocation& location);
  void set_row_step(int64_t rows) { row_step_ = rows; }

 private:
  const int64_t rows_, columns_;
  int64_t row_step_ = 1;
  int64_t stored_bytes_ = 0;
  TensorLocation location_;
  std::string stored_name_;
  std::vector<std::string> tensors_;
};

// The reader of the matrix that the model calls `name` ("….q_proj.weight"), of that shape (two dimensions, or three of
// fused experts, whose rows follow each other; one of GGUF's biases).  config: null if the model has none.  Null: the
// checkpoint has a tensor of that name and a floating dtype, which is read as it is, or nothing of it at all.
// Errors (InvalidArgument): "<file>: tensor "<name>": expected …, found …" for a tensor of another shape or dtype, a
// scale that is missing, sizes that do not divide, a module that the config excludes from quantization.
absl::StatusOr<std::unique_ptr<MatrixReader>> OpenMatrix(const Checkpoint& checkpoint, const QuantizationConfig* config,
                                                         absl::string_view name, absl::Span<const int64_t> shape);

// Whether the checkpoint has a matrix of that name in any of the forms that are understood.
bool HasMatrix(const Checkpoint& checkpoint, absl::string_view name);

}  // namespace switchyard::checkpoint
