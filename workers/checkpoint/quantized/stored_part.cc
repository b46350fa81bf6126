#include "workers/checkpoint/quantized/stored_part.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"
#include "workers/checkpoint/quantized/decode.h"
#include "workers/tensor/dtype.h"

namespace switchyard::checkpoint {
namespace {

std::string ShapesText(const std::vector<std::vector<int64_t>>& shapes) {
  std::vector<std::string> texts;
  for (const std::vector<int64_t>& shape : shapes)
    texts.push_back(TensorEntry{.dtype = "", .shape = shape}.ShapeString());
  return absl::StrJoin(texts, " or ");
}

template <class Stored>
void CopyToFloats(absl::Span<const uint8_t> bytes, absl::Span<float> to) {
  for (size_t i = 0; i < to.size(); ++i) {
    Stored value;
    std::memcpy(&value, bytes.data() + i * sizeof(Stored), sizeof(Stored));
    to[i] = static_cast<float>(value);
  }
}

}  // namespace

absl::StatusOr<StoredPart> StoredPart::Find(const Checkpoint& checkpoint, const Wanted& wanted) {
  StoredPart part;
  part.name_ = wanted.name;
  part.location_ = checkpoint.Find(wanted.name);
  const std::string expected =
      absl::StrCat("expected ", absl::StrJoin(wanted.dtypes, ", "), " of ", ShapesText(wanted.shapes),
                   wanted.why.empty() ? "" : " (", wanted.why, wanted.why.empty() ? "" : ")");
  if (part.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("tensor \"", wanted.name, "\": ", expected, ", it is missing"));
  }
  const TensorEntry& entry = *part.location_.entry;
  const bool known = std::find(wanted.dtypes.begin(), wanted.dtypes.end(), entry.dtype) != wanted.dtypes.end();
  const bool fits = std::find(wanted.shapes.begin(), wanted.shapes.end(), entry.shape) != wanted.shapes.end();
  if (known && fits) return part;
  return part.Error(absl::StrCat(expected, ", found ", entry.dtype, " of ", entry.ShapeString()));
}

int64_t StoredPart::size() const {
  int64_t size = 1;
  for (const int64_t dim : location_.entry->shape) size *= dim;
  return size;
}

int64_t StoredPart::element_bytes() const { return location_.entry->bytes / std::max<int64_t>(size(), 1); }

absl::Status StoredPart::ReadRaw(int64_t begin, int64_t count, uint8_t* to, ReadBytes read) const {
  const int64_t bytes = element_bytes();
  return read(*location_.file, location_.entry->begin + begin * bytes,
              absl::MakeSpan(to, static_cast<size_t>(count * bytes)));
}

absl::Status StoredPart::ReadColumns(int64_t columns, int64_t first, int64_t count, uint8_t* to, ReadBytes read) const {
  const int64_t rows = size() / columns;
  if (count == columns) return ReadRaw(0, size(), to, read);
  for (int64_t row = 0; row < rows; ++row) {
    RETURN_IF_ERROR(ReadRaw(row * columns + first, count, to + row * count * element_bytes(), read));
  }
  return absl::OkStatus();
}

void StoredPart::ToFloats(absl::Span<const uint8_t> bytes, absl::Span<float> to) const {
  const std::string& dtype = location_.entry->dtype;
  SY_CHECK_GE(bytes.size(), to.size() * static_cast<size_t>(element_bytes()));
  if (dtype == "F32") return CopyToFloats<float>(bytes, to);
  if (dtype == "BF16") return CopyToFloats<Bf16>(bytes, to);
  if (dtype == "F16") return CopyToFloats<Fp16>(bytes, to);
  if (dtype == "I8") return CopyToFloats<int8_t>(bytes, to);
  for (size_t i = 0; i < to.size(); ++i) to[i] = DecodeE8m0(bytes[i]);
}

absl::Status StoredPart::CheckScales(absl::Span<const float> scales, int64_t begin) const {
  for (size_t i = 0; i < scales.size(); ++i) {
    if (std::isfinite(scales[i])) continue;
    return Error(absl::StrCat("expected finite scales, found ", std::isnan(scales[i]) ? "NaN" : "Inf", " at element ",
                              begin + static_cast<int64_t>(i)));
  }
  return absl::OkStatus();
}

absl::Status StoredPart::Error(absl::string_view text) const {
  return absl::InvalidArgumentError(absl::StrCat(location_.file->name(), ": tensor \"", name_, "\": ", text));
}

absl::Status ReadOrder(const StoredPart& part, int64_t groups, ReadBytes read, MatrixScratch* scratch) {
  scratch->order.resize(static_cast<size_t>(part.size()));
  RETURN_IF_ERROR(part.ReadRaw(0, part.size(), reinterpret_cast<uint8_t*>(scratch->order.data()), read));
  for (size_t c = 0; c < scratch->order.size(); ++c) {
    const int32_t group = scratch->order[c];
    if (group >= 0 && group < groups) continue;
    return part.Error(absl::StrCat("expected groups from 0 to ", groups - 1, ", found ", group, " for column ", c));
  }
  return absl::OkStatus();
}

}  // namespace switchyard::checkpoint
