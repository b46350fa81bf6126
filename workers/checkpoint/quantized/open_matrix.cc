#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "workers/checkpoint/gguf/gguf_matrix.h"
#include "workers/checkpoint/quantized/column_matrix.h"
#include "workers/checkpoint/quantized/matrix_reader.h"
#include "workers/checkpoint/quantized/row_matrix.h"
#include "workers/checkpoint/safetensors/safetensors_header.h"
#include "workers/tensor/dtype.h"

namespace switchyard::checkpoint {
namespace {

constexpr char kWeight[] = ".weight";

// The names of codes, in the forms that a matrix may be stored in.
std::vector<std::string> CodeNames(absl::string_view name) {
  return {std::string(name), absl::StrCat(name, "_packed"), absl::StrCat(absl::StripSuffix(name, kWeight), ".qweight"),
          absl::StrCat(name, "_blocks")};
}

// The name under which this format has the codes of a matrix.
std::string CodesOf(StoredFormat format, absl::string_view name) {
  const std::vector<std::string> names = CodeNames(name);
  switch (format) {
    case StoredFormat::kPacked:
      return names[1];
    case StoredFormat::kAwq:
    case StoredFormat::kGptq:
      return names[2];
    case StoredFormat::kMxfp4:
      return names[3];
    default:
      return names[0];
  }
}

absl::StatusOr<std::unique_ptr<MatrixReader>> OpenAs(const Checkpoint& checkpoint, const StoredWeights& weights,
                                                     const std::string& name, absl::Span<const int64_t> shape) {
  const bool transposed = weights.format == StoredFormat::kAwq || weights.format == StoredFormat::kGptq;
  const bool stacks = weights.format == StoredFormat::kFp8 || weights.format == StoredFormat::kMxfp4;
  if (shape.size() != 2 && !(stacks && shape.size() == 3)) {
    return absl::InvalidArgumentError(absl::StrCat("tensor \"", name, "\": ", weights.ToString(), ": understood for ",
                                                   stacks ? "matrices and stacks of them" : "matrices"));
  }
  return transposed ? ColumnMatrix::Open(checkpoint, weights, name, shape)
                    : RowMatrix::Open(checkpoint, weights, name, shape);
}

// Whether two ways that a matrix's tensors fit read other values: bits, dtype, groups and zero points show in the
// tensors, the sizes of blocks do not always, as the last of a row or a column may be partial.
bool OtherBlocks(const StoredWeights& a, const StoredWeights& b) {
  return a.scope == ScaleScope::kBlock && b.scope == ScaleScope::kBlock &&
         (a.block_rows != b.block_rows || a.block_columns != b.block_columns);
}

bool IsFloatingName(absl::string_view dtype) {
  const absl::StatusOr<DType> found = ParseSafetensorsDType(dtype);
  return found.ok() && IsFloating(*found);
}

}  // namespace

absl::Status MatrixReader::ReadNumbers(int64_t, int64_t, const ops::StoredNumbers&, ReadBytes, MatrixScratch*) const {
  return absl::UnimplementedError(absl::StrCat("tensor \"", stored_name_, "\": has no numbers of a weight's format"));
}

void MatrixReader::AddTensor(const std::string& name, const TensorLocation& location) {
  if (tensors_.empty()) {
    location_ = location;
    stored_name_ = name;
  }
  tensors_.push_back(name);
  stored_bytes_ += location.entry->bytes;
}

absl::StatusOr<std::unique_ptr<MatrixReader>> OpenMatrix(const Checkpoint& checkpoint, const QuantizationConfig* config,
                                                         absl::string_view name, absl::Span<const int64_t> shape) {
  const TensorLocation plain = checkpoint.Find(name);
  if (plain.file != nullptr && GgufMatrix::Is(*plain.entry)) return GgufMatrix::Open(plain, std::string(name), shape);
  if (config == nullptr || shape.size() < 2) return nullptr;
  if (plain.file != nullptr && IsFloatingName(plain.entry->dtype)) return nullptr;
  if (!HasMatrix(checkpoint, name)) return nullptr;
  const std::string module(absl::StripSuffix(name, kWeight));
  if (std::find(config->unconverted.begin(), config->unconverted.end(), module) != config->unconverted.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor \"", name, "\": expected BF16, F16, F32 or F64, as quantization_config excludes ", module,
                     ", found a quantized one"));
  }
  absl::Status first;
  std::unique_ptr<MatrixReader> found_reader;
  const StoredWeights* found_weights = nullptr;
  for (const StoredWeights& weights : config->weights) {
    if (checkpoint.Find(CodesOf(weights.format, name)).file == nullptr) continue;
    // Where the file has several ways, a matrix has the one that its tensors fit.
    const bool has_zeros = checkpoint.Find(absl::StrCat(name, "_zero_point")).file != nullptr;
    if (config->weights.size() > 1 && has_zeros == weights.symmetric) continue;
    absl::StatusOr<std::unique_ptr<MatrixReader>> reader = OpenAs(checkpoint, weights, std::string(name), shape);
    if (!reader.ok()) {
      first.Update(reader.status());
    } else if (found_reader == nullptr) {
      found_reader = *std::move(reader);
      found_weights = &weights;
    } else if (OtherBlocks(*found_weights, weights)) {
      return absl::InvalidArgumentError(absl::StrCat(
          found_reader->location().file->name(), ": tensor \"", name, "\": fits two of quantization_config's groups (",
          found_weights->ToString(), "; ", weights.ToString(), "), whose targets are not evaluated"));
    }
  }
  if (found_reader != nullptr) return found_reader;
  if (!first.ok()) return first;
  std::string found;
  for (const std::string& each : CodeNames(name)) {
    if (checkpoint.Find(each).file != nullptr) found = each;
  }
  return absl::InvalidArgumentError(absl::StrCat("tensor \"", name, "\": quantization_config says ", config->ToString(),
                                                 ", found \"", found, "\", ", checkpoint.Find(found).entry->dtype));
}

bool HasMatrix(const Checkpoint& checkpoint, absl::string_view name) {
  const std::vector<std::string> names = CodeNames(name);
  return std::any_of(names.begin(), names.end(),
                     [&](const std::string& each) { return checkpoint.Find(each).file != nullptr; });
}

}  // namespace switchyard::checkpoint
