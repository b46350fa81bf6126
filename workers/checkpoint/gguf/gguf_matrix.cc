#include "workers/checkpoint/gguf/gguf_matrix.h"

#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/base/text/quote.h"
#include "workers/checkpoint/gguf/gguf_names.h"

namespace switchyard::checkpoint {
namespace {

constexpr uint16_t kHalfExponent = 0x7c00, kBf16Exponent = 0x7f80;

bool HasUnfit(const uint16_t* bits, int64_t count, uint16_t exponent) {
  uint16_t unfit = 0;
  for (int64_t i = 0; i < count; ++i) unfit |= (bits[i] & exponent) == exponent;
  return unfit != 0;
}

}  // namespace

bool GgufMatrix::Is(const TensorEntry& entry) {
  const GgufBlockFormat* const format = FindGgufBlockFormat(entry.dtype);
  return entry.interleaved_head > 0 || (format != nullptr && format->elements > 1);
}

absl::StatusOr<std::unique_ptr<MatrixReader>> GgufMatrix::Open(const TensorLocation& location, const std::string& name,
                                                               absl::Span<const int64_t> shape) {
  const TensorEntry& entry = *location.entry;
  const auto refuse = [&](const auto&... found) {
    return absl::InvalidArgumentError(
        absl::StrCat(location.file->name(), ": tensor \"", Excerpt(name), "\": ", found...));
  };
  if (entry.shape != shape) {
    return refuse("expected ", TensorEntry{.dtype = "", .shape = {shape.begin(), shape.end()}}.ShapeString(),
                  ", found ", entry.ShapeString());
  }
  const GgufBlockFormat& format = *FindGgufBlockFormat(entry.dtype);
  const int64_t columns = shape.size() > 1 ? shape.back() : 1;
  int64_t rows = shape.front();
  for (size_t i = 1; i + 1 < shape.size(); ++i) rows *= shape[i];
  std::unique_ptr<GgufMatrix> matrix(new GgufMatrix(rows, columns));
  matrix->decode_ = DecoderOf(format);
  if (matrix->decode_ == nullptr) {
    return refuse("type ", format.name, " cannot be loaded; types that can: ", DecodableGgufTypes());
  }
  if (columns % format.elements != 0) {
    return refuse(format.name, " of one dimension, expected F32, F16 or BF16");
  }
  matrix->row_blocks_ = columns / format.elements;
  matrix->row_bytes_ = matrix->row_blocks_ * format.bytes;
  matrix->numbers_ = NumbersOfType(entry.dtype);
  matrix->head_ = entry.interleaved_head;
  if (matrix->head_ > 0) matrix->set_row_step(matrix->head_);
  matrix->AddTensor(name, location);
  return matrix;
}

absl::Status GgufMatrix::ReadRows(int64_t first, int64_t count, ReadBytes read, MatrixScratch* scratch) const {
  SY_CHECK(first % row_step() == 0 && count % row_step() == 0);
  scratch->bytes.resize(static_cast<size_t>(count * row_bytes_));
  return read(*location().file, location().entry->begin + first * row_bytes_, absl::MakeSpan(scratch->bytes));
}

int64_t GgufMatrix::StoredRow(int64_t row) const { return head_ == 0 ? row : InterleavedRow(row, head_); }

absl::Status GgufMatrix::Read(int64_t first, int64_t count, float* to, ReadBytes read, MatrixScratch* scratch) const {
  RETURN_IF_ERROR(ReadRows(first, count, read, scratch));
  const uint8_t* const stored = scratch->bytes.data();
  if (head_ == 0) {
    decode_(stored, count * row_blocks_, to);
    return absl::OkStatus();
  }
  for (int64_t row = 0; row < count; ++row) {
    decode_(stored + StoredRow(row) * row_bytes_, row_blocks_, to + row * columns());
  }
  return absl::OkStatus();
}

ops::WeightFormat GgufMatrix::near_format() const {
  if (row_blocks_ == columns()) return ops::WeightFormat::kPlain;  // plain floats in another order
  // Steps of a 31st of the largest value, beside theirs of a fifteenth or more,
  // if a group has values on both sides of 0.
  for (const absl::string_view type : {"Q2_K", "Q3_K", "Q4_0", "Q4_1", "Q4_K", "IQ4_NL", "IQ4_XS", "Q6_K"}) {
    if (location().entry->dtype == type) return ops::WeightFormat::kQ6_K;
  }
  return ops::WeightFormat::kQ8_0;
}

absl::Status GgufMatrix::ReadNumbers(int64_t first, int64_t count, const ops::StoredNumbers& to, ReadBytes read,
                                     MatrixScratch* scratch) const {
  RETURN_IF_ERROR(ReadRows(first, count, read, scratch));
  const int64_t groups = columns() / ops::ScaleGroup(own_format());
  const bool least = ops::HasLeast(own_format());
  for (int64_t row = 0; row < count; ++row) {
    numbers_.read(scratch->bytes.data() + StoredRow(row) * row_bytes_, row_blocks_,
                  {.numbers = to.numbers + row * columns(),
                   .scales = to.scales + row * groups,
                   .least = least ? to.least + row * groups : nullptr});
  }
  const uint16_t exponent = ops::HalfScales(own_format()) ? kHalfExponent : kBf16Exponent;
  if (!HasUnfit(to.scales, count * groups, exponent) && !(least && HasUnfit(to.least, count * groups, exponent))) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(location().file->name(), ": tensor \"", Excerpt(stored_name()),
                                                 "\": a scale in rows ", first, " to ", first + count - 1,
                                                 " is NaN, Inf or beyond fp16"));
}

}  // namespace switchyard::checkpoint
