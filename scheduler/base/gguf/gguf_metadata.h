// The metadata of a GGUF file: keys with typed values, as views into the header's bytes.
//
// Thread-safe after construction (immutable).  A value's texts live as long as the bytes that it was made of
// (GgufHeader owns them).  Errors of GgufMetadata's readers: InvalidArgument 'key "x": …' with what was expected and
// what was found.  Does not do: arrays of arrays, which the parser refuses.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace switchyard {

// With the numbers that files write.
enum class GgufValueType : uint32_t {
  kUint8,
  kInt8,
  kUint16,
  kInt16,
  kUint32,
  kInt32,
  kFloat32,
  kBool,
  kString,
  kArray,
  kUint64,
  kInt64,
  kFloat64,
};
inline constexpr uint32_t kNumGgufValueTypes = 13;
// Of a value of that type: 0 for strings and arrays.
int64_t GgufScalarBytes(GgufValueType type);
const char* GgufValueTypeName(GgufValueType type);  // "uint32"

// A value: a scalar, or an array of scalars of one type.
class GgufValue {
 public:
  // REQUIRES: the parser has checked `bytes`: size values of `type`, strings with their lengths before them.
  GgufValue(GgufValueType type, bool is_array, int64_t size, absl::string_view bytes)
      : type_(type), is_array_(is_array), size_(size), bytes_(bytes) {}

  GgufValueType type() const { return type_; }  // of an array: its elements'
  bool is_array() const { return is_array_; }
  int64_t size() const { return size_; }              // 1 for a scalar
  absl::string_view bytes() const { return bytes_; }  // as the file has them
  std::string Description() const;                    // "uint32", "array of 3 strings"

  // A scalar of the kind that is asked for, else nullopt.  Int: of any integer type, if an int64 holds it.  Number: of
  // any integer or floating type; a float32 becomes the shortest decimal that rounds to it, as it was 1e-6 in a
  // config.json, not 9.99999997e-07.
  std::optional<int64_t> Int() const;
  std::optional<double> Number() const;
  std::optional<bool> Bool() const;
  std::optional<absl::string_view> String() const;
  // The elements of an array of that kind, else nullopt.
  std::optional<std::vector<int64_t>> Ints() const;
  std::optional<std::vector<double>> Numbers() const;
  std::optional<std::vector<bool>> Bools() const;
  std::optional<std::vector<absl::string_view>> Strings() const;

 private:
  std::optional<int64_t> IntAt(int64_t i) const;
  std::optional<double> NumberAt(int64_t i) const;

  GgufValueType type_;
  bool is_array_;
  int64_t size_;
  absl::string_view bytes_;
};

class GgufMetadata {
 public:
  GgufMetadata() = default;
  // REQUIRES: every key is there once.
  explicit GgufMetadata(std::vector<std::pair<std::string, GgufValue>> entries);

  // In the file's order.
  const std::vector<std::pair<std::string, GgufValue>>& entries() const { return entries_; }
  const GgufValue* Find(absl::string_view key) const;  // nullptr if there is no such key
  bool Has(absl::string_view key) const { return Find(key) != nullptr; }

  // The key's value.  Without `fallback` a missing key is an error.
  absl::StatusOr<int64_t> Int(absl::string_view key, std::optional<int64_t> fallback = std::nullopt) const;
  absl::StatusOr<double> Number(absl::string_view key, std::optional<double> fallback = std::nullopt) const;
  absl::StatusOr<bool> Bool(absl::string_view key, std::optional<bool> fallback = std::nullopt) const;
  absl::StatusOr<std::string> String(absl::string_view key, std::optional<std::string> fallback = std::nullopt) const;

 private:
  std::vector<std::pair<std::string, GgufValue>> entries_;
  absl::flat_hash_map<std::string, size_t> index_;
};

}  // namespace switchyard
