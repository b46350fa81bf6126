#include "workers/checkpoint/quantized/column_matrix.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "scheduler/base/status_macros.h"
#include "workers/checkpoint/quantized/decode.h"

namespace switchyard::checkpoint {
namespace {

constexpr float kLargestHalf = 65504;

}  // namespace

ColumnMatrix::ColumnMatrix(const StoredWeights& weights, int64_t rows, int64_t columns)
    : MatrixReader(rows, columns),
      weights_(weights),
      group_size_(weights.scope == ScaleScope::kGroup ? weights.group : columns),
      groups_((columns + group_size_ - 1) / group_size_) {
  set_row_step(factor());
}

absl::StatusOr<std::unique_ptr<MatrixReader>> ColumnMatrix::Open(const Checkpoint& checkpoint,
                                                                 const StoredWeights& weights, const std::string& name,
                                                                 absl::Span<const int64_t> shape) {
  std::unique_ptr<ColumnMatrix> matrix(new ColumnMatrix(weights, shape[0], shape[1]));
  RETURN_IF_ERROR(matrix->Check(name));
  RETURN_IF_ERROR(matrix->Find(checkpoint, std::string(absl::StripSuffix(name, ".weight"))));
  return matrix;
}

absl::Status ColumnMatrix::Check(const std::string& name) const {
  if (rows() % factor() != 0 || (!is_awq() && columns() % factor() != 0)) {
    return absl::InvalidArgumentError(absl::StrCat("tensor \"", name, "\": words of ", factor(),
                                                   " codes do not divide its ", rows(), " rows and ", columns(),
                                                   " columns"));
  }
  if (is_awq() && columns() % group_size_ != 0) {
    return absl::InvalidArgumentError(absl::StrCat("tensor \"", name, "\": groups of ", group_size_,
                                                   " columns do not divide its ", columns(), " columns"));
  }
  return absl::OkStatus();
}

absl::Status ColumnMatrix::Find(const Checkpoint& checkpoint, const std::string& module) {
  const std::vector<int64_t> codes = is_awq() ? std::vector<int64_t>{columns(), rows() / factor()}
                                              : std::vector<int64_t>{columns() / factor(), rows()};
  const std::string why = absl::StrCat("of ", rows(), " x ", columns(), " values, transposed");
  ASSIGN_OR_RETURN(
      codes_, StoredPart::Find(checkpoint,
                               {.name = module + ".qweight", .dtypes = kWordDTypes, .shapes = {codes}, .why = why}));
  AddTensor(codes_.name(), codes_.location());
  ASSIGN_OR_RETURN(scales_, StoredPart::Find(checkpoint, {.name = module + ".scales",
                                                          .dtypes = absl::MakeConstSpan(kScaleDTypes).first(3),
                                                          .shapes = {{groups_, rows()}},
                                                          .why = absl::StrCat("groups of ", group_size_)}));
  AddTensor(scales_.name(), scales_.location());
  const bool needs_zeros = !is_awq() || !weights_.symmetric || checkpoint.Find(module + ".qzeros").file != nullptr;
  if (needs_zeros) {
    ASSIGN_OR_RETURN(zeros_, StoredPart::Find(checkpoint, {.name = module + ".qzeros",
                                                           .dtypes = kWordDTypes,
                                                           .shapes = {{groups_, rows() / factor()}},
                                                           .why = absl::StrCat("groups of ", group_size_)}));
    AddTensor(zeros_.name(), zeros_.location());
  }
  if (is_awq() || (!weights_.ordered && checkpoint.Find(module + ".g_idx").file == nullptr)) return absl::OkStatus();
  ASSIGN_OR_RETURN(order_, StoredPart::Find(checkpoint, {.name = module + ".g_idx",
                                                         .dtypes = kWordDTypes,
                                                         .shapes = {{columns()}},
                                                         .why = "the group of each column"}));
  AddTensor(order_.name(), order_.location());
  return absl::OkStatus();
}

absl::Status ColumnMatrix::ReadCodes(int64_t first, int64_t count, ReadBytes read, MatrixScratch* scratch) const {
  const int64_t word_columns = is_awq() ? rows() / factor() : rows();
  const int64_t begin = is_awq() ? first / factor() : first, words = is_awq() ? count / factor() : count;
  scratch->bytes.resize(static_cast<size_t>(codes_.size() / word_columns * words * 4));
  scratch->codes.resize(static_cast<size_t>(count * columns()));
  RETURN_IF_ERROR(codes_.ReadColumns(word_columns, begin, words, scratch->bytes.data(), read));
  const auto* const from = reinterpret_cast<const uint32_t*>(scratch->bytes.data());  // a vector's memory is aligned
  if (is_awq()) {
    TransposeAwq(from, count, columns(), scratch->codes.data());
  } else {
    TransposeGptq(from, weights_.bits, count, columns(), scratch->codes.data());
  }
  return absl::OkStatus();
}

absl::Status ColumnMatrix::ReadGroups(int64_t first, int64_t count, ReadBytes read, MatrixScratch* scratch) const {
  const auto size = static_cast<size_t>(count * groups_);
  scratch->columns.resize(size);  // [groups, count]
  scratch->bytes.resize(size * static_cast<size_t>(scales_.element_bytes()));
  RETURN_IF_ERROR(scales_.ReadColumns(rows(), first, count, scratch->bytes.data(), read));
  scales_.ToFloats(scratch->bytes, absl::MakeSpan(scratch->columns));
  for (int64_t g = 0; g < groups_; ++g) {
    const auto of_group =
        absl::MakeConstSpan(scratch->columns).subspan(static_cast<size_t>(g * count), static_cast<size_t>(count));
    RETURN_IF_ERROR(scales_.CheckScales(of_group, g * rows() + first));
  }
  const auto transpose = [&](std::vector<float>* to) {
    to->resize(size);
    for (int64_t g = 0; g < groups_; ++g) {
      for (int64_t n = 0; n < count; ++n) (*to)[n * groups_ + g] = scratch->columns[g * count + n];
    }
  };
  transpose(&scratch->scales);
  const float middle = static_cast<float>(1 << (weights_.bits - 1));
  scratch->zeros.assign(size, middle);
  if (zeros_.empty()) return absl::OkStatus();
  const int64_t words = count / factor();
  scratch->bytes.resize(static_cast<size_t>(groups_ * words * 4));
  RETURN_IF_ERROR(zeros_.ReadColumns(rows() / factor(), first / factor(), words, scratch->bytes.data(), read));
  auto* const from = reinterpret_cast<uint32_t*>(scratch->bytes.data());
  if (weights_.zeros_less_one) {
    // Writers subtract 1 from every field of a word by one subtraction, which borrows from the next where one is 0.
    const uint32_t ones = UINT32_MAX / ((uint32_t{1} << weights_.bits) - 1);
    for (int64_t w = 0; w < groups_ * words; ++w) from[w] += ones;
  }
  scratch->codes.resize(size);  // [groups, count]
  for (int64_t g = 0; g < groups_; ++g) {
    uint8_t* const to = scratch->codes.data() + g * count;
    is_awq() ? TransposeAwq(from + g * words, count, 1, to)
             : TransposeGptq(from + g * words, weights_.bits, 1, count, to);
  }
  DecodeCodes(CodeType::kUint8, scratch->codes, absl::MakeSpan(scratch->columns));
  transpose(&scratch->zeros);
  return absl::OkStatus();
}

absl::Status ColumnMatrix::Read(int64_t first, int64_t count, float* to, ReadBytes read, MatrixScratch* scratch) const {
  RETURN_IF_ERROR(ReadGroups(first, count, read, scratch));
  scratch->order.clear();
  if (!order_.empty()) RETURN_IF_ERROR(ReadOrder(order_, groups_, read, scratch));
  RETURN_IF_ERROR(ReadCodes(first, count, read, scratch));
  const absl::Span<const float> scales = scratch->scales, zeros = scratch->zeros;
  const auto groups = static_cast<size_t>(groups_), width = static_cast<size_t>(columns());
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
    const absl::Span<float> row(to + i * width, width);
    DecodeCodes(CodeType::kUint8, absl::MakeConstSpan(scratch->codes).subspan(i * width, width), row);
    ApplyGroups({.scales = scales.subspan(i * groups, groups),
                 .zeros = zeros.subspan(i * groups, groups),
                 .size = group_size_,
                 .order = scratch->order},
                row);
  }
  return absl::OkStatus();
}

ops::WeightFormat ColumnMatrix::own_format() const {
  const bool in_order = order_.empty() || !weights_.ordered;
  const bool fits = group_size_ % ops::kQuantGroup == 0 && columns() % group_size_ == 0;
  if (!in_order || !fits || scales_.location().entry->dtype != "F16") return ops::WeightFormat::kPlain;
  // (AWQ says that it has no zero points, and may have them.)
  if (weights_.symmetric && (!is_awq() || zeros_.empty()))
    return weights_.bits == 4 ? ops::WeightFormat::kQ4_0 : ops::WeightFormat::kQ8_0;
  return weights_.bits == 4 ? ops::WeightFormat::kQ4_1 : ops::WeightFormat::kPlain;
}

ops::WeightFormat ColumnMatrix::near_format() const {
  const bool near = weights_.bits == 4 || own_format() == ops::WeightFormat::kQ8_0;
  return near ? ops::WeightFormat::kQ8_0 : ops::WeightFormat::kPlain;
}

absl::Status ColumnMatrix::ReadNumbers(int64_t first, int64_t count, const ops::StoredNumbers& to, ReadBytes read,
                                       MatrixScratch* scratch) const {
  RETURN_IF_ERROR(ReadGroups(first, count, read, scratch));
  if (!order_.empty()) {
    RETURN_IF_ERROR(ReadOrder(order_, groups_, read, scratch));
    for (int64_t k = 0; k < columns(); ++k) {
      if (scratch->order[static_cast<size_t>(k)] == k / group_size_) continue;
      return order_.Error(absl::StrCat("expected ", k / group_size_, " at column ", k, ", as desc_act is false, found ",
                                       scratch->order[static_cast<size_t>(k)],
                                       "; --quantization=none decodes the weights by it"));
    }
  }
  RETURN_IF_ERROR(ReadCodes(first, count, read, scratch));
  std::copy(scratch->codes.begin(), scratch->codes.end(), to.numbers);
  const float middle = static_cast<float>(ops::WeightZero(own_format()));
  int64_t group = 0;
  for (int64_t row = 0; row < count; ++row) {
    for (int64_t k = 0; k < columns(); k += ops::kQuantGroup, ++group) {
      const auto at = static_cast<size_t>(row * groups_ + k / group_size_);
      to.scales[group] = Fp16(scratch->scales[at]).bits;
      if (!ops::HasLeast(own_format())) {
        if (scratch->zeros[at] == middle) continue;
        return zeros_.Error(absl::StrCat("expected zero points of ", middle, " of a symmetric checkpoint, found ",
                                         scratch->zeros[at], "; --quantization=none decodes the weights by them"));
      }
      const float least = -scratch->zeros[at] * scratch->scales[at];
      if (std::fabs(least) > kLargestHalf) {
        return scales_.Error(absl::StrCat("a zero point times a scale is ", least,
                                          ", beyond fp16; --quantization=none ", "decodes the weights"));
      }
      to.least[group] = Fp16(least).bits;
    }
  }
  return absl::OkStatus();
}

}  // namespace switchyard::checkpoint
