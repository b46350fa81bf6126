// One tensor of those that a quantized matrix is made of: found, checked, read.  For the readers of matrices alone.
// Thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "workers/checkpoint/quantized/matrix_reader.h"
#include "workers/checkpoint/tensors/checkpoint.h"

namespace switchyard::checkpoint {

inline constexpr absl::string_view kScaleDTypes[] = {"F32", "BF16", "F16", "F8_E8M0"};
inline constexpr absl::string_view kWordDTypes[] = {"I32"};

class StoredPart {
 public:
  struct Wanted {
    std::string name;
    absl::Span<const absl::string_view> dtypes;
    std::vector<std::vector<int64_t>> shapes;  // any of these
    std::string why;                           // of the shape: "a scale for each block of 128 x 128"
  };

  StoredPart() = default;
  // InvalidArgument: it is missing, or has another dtype or shape.
  static absl::StatusOr<StoredPart> Find(const Checkpoint& checkpoint, const Wanted& wanted);

  const std::string& name() const { return name_; }
  const TensorLocation& location() const { return location_; }
  bool empty() const { return location_.file == nullptr; }
  // Elements, and bytes of one.
  int64_t size() const;
  int64_t element_bytes() const;

  // Elements [begin, begin + count) as they are.
  absl::Status ReadRaw(int64_t begin, int64_t count, uint8_t* to, ReadBytes read) const;
  // Columns [first, first + count) of all rows of a matrix of `columns` columns, one after the other.
  absl::Status ReadColumns(int64_t columns, int64_t first, int64_t count, uint8_t* to, ReadBytes read) const;
  // `bytes` of this tensor's dtype as floats: a float's value, a scale of E8M0 or U8 as 2^(code - 127), I8's value.
  void ToFloats(absl::Span<const uint8_t> bytes, absl::Span<float> to) const;
  // InvalidArgument if a scale is NaN or Inf; they are elements `begin` and on.
  absl::Status CheckScales(absl::Span<const float> scales, int64_t begin) const;
  // InvalidArgument "<file>: tensor "<name>": <text>".
  absl::Status Error(absl::string_view text) const;

 private:
  std::string name_;
  TensorLocation location_;
};

// Reads the indices of groups by column to scratch->order.  InvalidArgument: one is not in [0, groups).
absl::Status ReadOrder(const StoredPart& part, int64_t groups, ReadBytes read, MatrixScratch* scratch);

}  // namespace switchyard::checkpoint
