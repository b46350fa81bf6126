#include "workers/checkpoint/quantized/row_matrix.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::checkpoint {
namespace {

constexpr absl::string_view kE4m3DTypes[] = {"F8_E4M3"};
constexpr absl::string_view kInt8DTypes[] = {"I8"};
constexpr absl::string_view kByteDTypes[] = {"U8"};
constexpr absl::string_view kShapeDTypes[] = {"I64", "I32"};
constexpr absl::string_view kE8m0DTypes[] = {"U8", "F8_E8M0"};
constexpr float kLargestBf16 = 3.3895314e38F;
constexpr int64_t kMxfp4Bytes = 16;         // of a group's codes
constexpr uint8_t kFirstPowerBeyond = 253;  // of E8M0: 6 × 2^126 is beyond bf16

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

CodeType CodeOf(const StoredWeights& weights) {
  switch (weights.format) {
    case StoredFormat::kInt8:
      return CodeType::kInt8;
    case StoredFormat::kPacked:
      return weights.bits == 4 ? CodeType::kUint4 : CodeType::kUint8;
    case StoredFormat::kMxfp4:
      return CodeType::kE2m1;
    default:
      return CodeType::kE4m3;
  }
}

typedef uint8_t Codes __attribute__((vector_size(16)));

// 32 codes of 4 bits, two in a byte, the lower bits first.
void SplitPairs(const uint8_t* bytes, uint8_t* numbers) {
  Codes pairs;
  std::memcpy(&pairs, bytes, sizeof(pairs));
  const Codes low = pairs & 15, high = pairs >> 4;
  const Codes first = __builtin_shufflevector(low, high, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const Codes last = __builtin_shufflevector(low, high, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
  std::memcpy(numbers, &first, sizeof(first));
  std::memcpy(numbers + sizeof(first), &last, sizeof(last));
}

// 32 codes of 8 bits.
void FlipSigns(const uint8_t* codes, uint8_t sign, uint8_t* numbers) {
  for (int i = 0; i < ops::kQuantGroup; ++i) numbers[i] = codes[i] ^ sign;
}

int64_t RowsOf(absl::Span<const int64_t> shape) {
  int64_t rows = 1;
  for (const int64_t dim : shape.first(shape.size() - 1)) rows *= dim;
  return rows;
}

}  // namespace

RowMatrix::RowMatrix(const StoredWeights& weights, absl::Span<const int64_t> shape)
    : MatrixReader(RowsOf(shape), shape.back()),
      weights_(weights),
      shape_(shape.begin(), shape.end()),
      slab_rows_(shape[shape.size() - 2]),
      code_(CodeOf(weights)) {
  group_size_ = columns();
  if (weights.scope == ScaleScope::kGroup) group_size_ = weights.group;
  if (weights.scope == ScaleScope::kBlock) group_size_ = weights.block_columns;
  groups_ = CeilDiv(columns(), group_size_);
}

absl::StatusOr<std::unique_ptr<MatrixReader>> RowMatrix::Open(const Checkpoint& checkpoint,
                                                              const StoredWeights& weights, const std::string& name,
                                                              absl::Span<const int64_t> shape) {
  std::unique_ptr<RowMatrix> matrix(new RowMatrix(weights, shape));
  RETURN_IF_ERROR(matrix->CheckGroups(name));
  RETURN_IF_ERROR(matrix->FindCodes(checkpoint, name));
  RETURN_IF_ERROR(matrix->FindScales(checkpoint, name));
  RETURN_IF_ERROR(matrix->FindRest(checkpoint, name));
  matrix->own_format_ = matrix->FindOwnFormat();
  return matrix;
}

absl::Status RowMatrix::CheckGroups(const std::string& name) const {
  if (weights_.scope != ScaleScope::kGroup || columns() % group_size_ == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("tensor \"", name, "\": groups of ", group_size_,
                                                 " columns do not divide its ", columns(), " columns"));
}

absl::Status RowMatrix::FindCodes(const Checkpoint& checkpoint, const std::string& name) {
  StoredPart::Wanted wanted{.name = name, .dtypes = kE4m3DTypes, .shapes = {shape_}, .why = ""};
  row_bytes_ = CeilDiv(columns() * CodeBits(code_), 8);
  if (weights_.format == StoredFormat::kInt8) wanted.dtypes = kInt8DTypes;
  if (weights_.format == StoredFormat::kPacked) {
    const int64_t words = CeilDiv(columns() * weights_.bits, 32);
    row_bytes_ = 4 * words;
    wanted = {.name = name + "_packed",
              .dtypes = kWordDTypes,
              .shapes = {{rows(), words}},
              .why = absl::StrCat("codes of ", weights_.bits, " bits of ", rows(), " x ", columns(), " values")};
  }
  if (weights_.format == StoredFormat::kMxfp4) {
    std::vector<int64_t> blocks = shape_;
    blocks.back() = groups_;
    blocks.push_back(kMxfp4Bytes);
    wanted = {.name = name + "_blocks", .dtypes = kByteDTypes, .shapes = {blocks}, .why = "two codes in a byte"};
  }
  ASSIGN_OR_RETURN(codes_, StoredPart::Find(checkpoint, wanted));
  AddTensor(codes_.name(), codes_.location());
  return absl::OkStatus();
}

std::vector<std::vector<int64_t>> RowMatrix::ScaleShapes() const {
  std::vector<int64_t> grid = shape_, row(shape_.begin(), shape_.end() - 1);
  grid.back() = groups_;
  std::vector<std::vector<int64_t>> shapes;
  if (weights_.scope == ScaleScope::kBlock) grid[grid.size() - 2] = CeilDiv(slab_rows_, weights_.block_rows);
  if (weights_.scope == ScaleScope::kTensor || weights_.scope == ScaleScope::kTensorOrChannel) {
    shapes = {{}, {1}};
    if (weights_.scope == ScaleScope::kTensor) return shapes;
  }
  shapes.push_back(grid);
  if (weights_.scope != ScaleScope::kBlock && groups_ == 1) shapes.push_back(row);
  return shapes;
}

absl::Status RowMatrix::FindScales(const Checkpoint& checkpoint, const std::string& name) {
  StoredPart::Wanted wanted{.name = name + "_scale", .dtypes = kScaleDTypes, .shapes = ScaleShapes(), .why = ""};
  // DeepSeek's name of what scales are: factors, the inverses of what values were divided by.
  if (checkpoint.Find(name + "_scale_inv").file != nullptr) wanted.name = name + "_scale_inv";
  if (weights_.format == StoredFormat::kMxfp4) {
    wanted.name = name + "_scales";
    wanted.dtypes = kE8m0DTypes;
  }
  switch (weights_.scope) {
    case ScaleScope::kBlock:
      wanted.why = absl::StrCat("a scale for each block of ", weights_.block_rows, " x ", weights_.block_columns);
      break;
    case ScaleScope::kGroup:
      wanted.why = absl::StrCat("a scale for each ", group_size_, " columns of a row");
      break;
    default:
      break;
  }
  ASSIGN_OR_RETURN(scales_, StoredPart::Find(checkpoint, wanted));
  const size_t rank = scales_.location().entry->shape.size();
  one_scale_ = weights_.scope == ScaleScope::kTensor ||
               (weights_.scope == ScaleScope::kTensorOrChannel && scales_.size() == 1 && rank <= 1);
  AddTensor(scales_.name(), scales_.location());
  return absl::OkStatus();
}

absl::Status RowMatrix::FindRest(const Checkpoint& checkpoint, const std::string& name) {
  const bool packed = weights_.format == StoredFormat::kPacked;
  const std::vector<int64_t> scales = scales_.location().entry->shape;
  if (!weights_.symmetric) {
    StoredPart::Wanted wanted{.name = name + "_zero_point", .dtypes = kInt8DTypes, .shapes = {scales}, .why = ""};
    if (packed) {
      wanted.dtypes = kWordDTypes;
      wanted.shapes = {{CeilDiv(rows() * weights_.bits, 32), groups_}};
      wanted.why = absl::StrCat("zero points of ", weights_.bits, " bits, packed along the rows");
    }
    ASSIGN_OR_RETURN(zeros_, StoredPart::Find(checkpoint, wanted));
    AddTensor(zeros_.name(), zeros_.location());
  }
  if (!packed) return absl::OkStatus();
  ASSIGN_OR_RETURN(
      shape_part_,
      StoredPart::Find(checkpoint,
                       {.name = name + "_shape", .dtypes = kShapeDTypes, .shapes = {{2}}, .why = "rows and columns"}));
  AddTensor(shape_part_.name(), shape_part_.location());
  if (!weights_.ordered && checkpoint.Find(name + "_g_idx").file == nullptr) return absl::OkStatus();
  ASSIGN_OR_RETURN(order_, StoredPart::Find(checkpoint, {.name = name + "_g_idx",
                                                         .dtypes = kWordDTypes,
                                                         .shapes = {{columns()}},
                                                         .why = "the group of each column"}));
  AddTensor(order_.name(), order_.location());
  return absl::OkStatus();
}

int64_t RowMatrix::ScaleRowOf(int64_t row) const {
  if (one_scale_) return 0;
  if (weights_.scope != ScaleScope::kBlock) return row;
  return row / slab_rows_ * CeilDiv(slab_rows_, weights_.block_rows) + row % slab_rows_ / weights_.block_rows;
}

absl::Status RowMatrix::ReadScales(int64_t first, int64_t count, ReadBytes read, MatrixScratch* scratch) const {
  const int64_t begin = ScaleRowOf(first) * groups_;
  const int64_t size = (ScaleRowOf(first + count - 1) + 1) * groups_ - begin;
  scratch->bytes.resize(static_cast<size_t>(size * scales_.element_bytes()));
  scratch->scales.resize(static_cast<size_t>(size));
  RETURN_IF_ERROR(scales_.ReadRaw(begin, size, scratch->bytes.data(), read));
  scales_.ToFloats(scratch->bytes, absl::MakeSpan(scratch->scales));
  return scales_.CheckScales(scratch->scales, begin);
}

// By group, for the same rows as the scales.  The codes of packed integers have an offset of half their range.
absl::Status RowMatrix::ReadZeros(int64_t first, int64_t count, ReadBytes read, MatrixScratch* scratch) const {
  scratch->zeros.clear();
  if (weights_.format == StoredFormat::kPacked && zeros_.empty()) {
    scratch->zeros.assign(scratch->scales.size(), static_cast<float>(1 << (weights_.bits - 1)));
  }
  if (zeros_.empty()) return absl::OkStatus();
  const int64_t begin = ScaleRowOf(first) * groups_;
  scratch->zeros.resize(scratch->scales.size());
  if (weights_.format != StoredFormat::kPacked) {
    const auto size = static_cast<int64_t>(scratch->zeros.size());
    scratch->bytes.resize(static_cast<size_t>(size * zeros_.element_bytes()));
    RETURN_IF_ERROR(zeros_.ReadRaw(begin, size, scratch->bytes.data(), read));
    zeros_.ToFloats(scratch->bytes, absl::MakeSpan(scratch->zeros));
    return absl::OkStatus();
  }
  const int64_t bits = weights_.bits, word_row = first * bits / 32;
  const int64_t word_rows = (first + count - 1) * bits / 32 + 1 - word_row;
  scratch->bytes.resize(static_cast<size_t>(word_rows * groups_ * 4));
  RETURN_IF_ERROR(zeros_.ReadRaw(word_row * groups_, word_rows * groups_, scratch->bytes.data(), read));
  for (int64_t row = first; row < first + count; ++row) {
    for (int64_t group = 0; group < groups_; ++group) {
      uint32_t word;
      std::memcpy(&word, scratch->bytes.data() + 4 * ((row * bits / 32 - word_row) * groups_ + group), sizeof(word));
      const uint32_t zero = (word >> (row * bits % 32)) & ((1u << bits) - 1);
      scratch->zeros[(row - first) * groups_ + group] = static_cast<float>(zero);
    }
  }
  return absl::OkStatus();
}

absl::Status RowMatrix::CheckShape(ReadBytes read) const {
  if (shape_part_.empty()) return absl::OkStatus();
  int64_t found[2] = {0, 0};
  int32_t narrow[2] = {0, 0};
  const bool wide = shape_part_.element_bytes() == 8;
  RETURN_IF_ERROR(
      shape_part_.ReadRaw(0, 2, wide ? reinterpret_cast<uint8_t*>(found) : reinterpret_cast<uint8_t*>(narrow), read));
  if (!wide) std::copy(std::begin(narrow), std::end(narrow), found);
  if (found[0] == rows() && found[1] == columns()) return absl::OkStatus();
  return shape_part_.Error(
      absl::StrCat("expected the values ", rows(), ", ", columns(), ", found ", found[0], ", ", found[1]));
}

absl::Status RowMatrix::ReadColumnGroups(ReadBytes read, MatrixScratch* scratch) const {
  scratch->order.clear();
  if (order_.empty()) return absl::OkStatus();
  int32_t first = 0;
  RETURN_IF_ERROR(order_.ReadRaw(0, 1, reinterpret_cast<uint8_t*>(&first), read));
  if (first == -1 && !weights_.ordered) return absl::OkStatus();  // as it was before it was given values
  return ReadOrder(order_, groups_, read, scratch);
}

ops::WeightFormat RowMatrix::FindOwnFormat() const {
  if (weights_.format == StoredFormat::kMxfp4) return ops::WeightFormat::kMxfp4;
  const bool integers = weights_.format == StoredFormat::kPacked || weights_.format == StoredFormat::kInt8;
  const bool in_groups = weights_.scope == ScaleScope::kGroup && group_size_ % ops::kQuantGroup == 0;
  const bool in_rows = groups_ == 1 && !one_scale_ && columns() % ops::kQuantGroup == 0;
  if (!integers || !weights_.symmetric || !order_.empty() || !(in_groups || in_rows)) return ops::WeightFormat::kPlain;
  const std::string& dtype = scales_.location().entry->dtype;
  const bool four = code_ == CodeType::kUint4;
  if (dtype == "BF16") return four ? ops::WeightFormat::kInt4 : ops::WeightFormat::kInt8;
  if (dtype == "F16") return four ? ops::WeightFormat::kQ4_0 : ops::WeightFormat::kQ8_0;
  return ops::WeightFormat::kPlain;
}

ops::WeightFormat RowMatrix::near_format() const {
  const bool held = own_format_ != ops::WeightFormat::kPlain && own_format_ != ops::WeightFormat::kInt8;
  return held || code_ == CodeType::kE4m3 ? ops::WeightFormat::kQ8_0 : ops::WeightFormat::kPlain;
}

absl::Status RowMatrix::ReadCodes(int64_t first, int64_t count, ReadBytes read, MatrixScratch* scratch) const {
  scratch->codes.resize(static_cast<size_t>(count * row_bytes_));
  return codes_.ReadRaw(first * row_bytes_ / codes_.element_bytes(), count * row_bytes_ / codes_.element_bytes(),
                        scratch->codes.data(), read);
}

// The scales of a weight that holds the numbers, one for each 32 columns.
absl::Status RowMatrix::ReadScaleBits(int64_t first, int64_t count, uint16_t* bits, ReadBytes read,
                                      MatrixScratch* scratch) const {
  RETURN_IF_ERROR(ReadScales(first, count, read, scratch));
  const auto most = static_cast<float>(ops::WeightZero(own_format_));  // of a number's magnitude
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t k = 0; k < columns(); k += ops::kQuantGroup, ++bits) {
      const float scale = scratch->scales[static_cast<size_t>(i * groups_ + k / group_size_)];
      if (!(std::fabs(scale) * most <= kLargestBf16)) return ScaleBeyond(scale);
      *bits = ops::HalfScales(own_format_) ? Fp16(scale).bits : Bf16(scale).bits;
    }
  }
  return absl::OkStatus();
}

// The same of MXFP4: halves of powers of two.
absl::Status RowMatrix::ReadPowers(int64_t first, int64_t count, uint16_t* bits, ReadBytes read,
                                   MatrixScratch* scratch) const {
  const std::array<uint16_t, 256>& halves = HalfPowers();
  scratch->bytes.resize(static_cast<size_t>(count * groups_));
  RETURN_IF_ERROR(scales_.ReadRaw(first * groups_, count * groups_, scratch->bytes.data(), read));
  uint8_t most = 0;
  for (size_t i = 0; i < scratch->bytes.size(); ++i) {
    most = std::max(most, scratch->bytes[i]);
    bits[i] = halves[scratch->bytes[i]];
  }
  if (most < kFirstPowerBeyond) return absl::OkStatus();
  scratch->scales.resize(scratch->bytes.size());
  scales_.ToFloats(scratch->bytes, absl::MakeSpan(scratch->scales));
  RETURN_IF_ERROR(scales_.CheckScales(scratch->scales, first * groups_));
  return ScaleBeyond(0.5F * DecodeE8m0(most));
}

absl::Status RowMatrix::ScaleBeyond(float scale) const {
  return scales_.Error(absl::StrCat("a scale of ", scale, " makes values beyond bf16"));
}

absl::Status RowMatrix::ReadNumbers(int64_t first, int64_t count, const ops::StoredNumbers& to, ReadBytes read,
                                    MatrixScratch* scratch) const {
  RETURN_IF_ERROR(CheckShape(read));
  RETURN_IF_ERROR(code_ == CodeType::kE2m1 ? ReadPowers(first, count, to.scales, read, scratch)
                                           : ReadScaleBits(first, count, to.scales, read, scratch));
  RETURN_IF_ERROR(ReadCodes(first, count, read, scratch));
  uint8_t* numbers = to.numbers;
  const bool pairs = CodeBits(code_) == 4;
  const uint8_t sign = code_ == CodeType::kInt8 ? 0x80 : 0;
  for (int64_t i = 0; i < count; ++i, numbers += columns()) {
    const uint8_t* const codes = scratch->codes.data() + i * row_bytes_;
    for (int64_t k = 0; k < columns(); k += ops::kQuantGroup) {
      pairs ? SplitPairs(codes + k / 2, numbers + k) : FlipSigns(codes + k, sign, numbers + k);
    }
  }
  return absl::OkStatus();
}

absl::Status RowMatrix::Read(int64_t first, int64_t count, float* to, ReadBytes read, MatrixScratch* scratch) const {
  RETURN_IF_ERROR(CheckShape(read));
  RETURN_IF_ERROR(ReadScales(first, count, read, scratch));
  RETURN_IF_ERROR(ReadZeros(first, count, read, scratch));
  RETURN_IF_ERROR(ReadColumnGroups(read, scratch));
  const auto row_bytes = static_cast<size_t>(row_bytes_);
  RETURN_IF_ERROR(ReadCodes(first, count, read, scratch));
  const absl::Span<const float> scales = scratch->scales, zeros = scratch->zeros;
  const auto groups = static_cast<size_t>(groups_);
  for (int64_t i = 0; i < count; ++i) {
    const absl::Span<float> row(to + i * columns(), static_cast<size_t>(columns()));
    const size_t at = static_cast<size_t>(ScaleRowOf(first + i) - ScaleRowOf(first)) * groups;
    DecodeCodes(code_, absl::MakeConstSpan(scratch->codes).subspan(static_cast<size_t>(i) * row_bytes, row_bytes), row);
    ApplyGroups({.scales = scales.subspan(at, groups),
                 .zeros = zeros.empty() ? zeros : zeros.subspan(at, groups),
                 .size = group_size_,
                 .order = scratch->order},
                row);
  }
  return absl::OkStatus();
}

}  // namespace switchyard::checkpoint
