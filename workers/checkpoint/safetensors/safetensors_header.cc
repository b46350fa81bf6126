#include "workers/checkpoint/safetensors/safetensors_header.h"

#include <algorithm>
#include <tuple>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"
#include "scheduler/base/status_macros.h"
#include "scheduler/base/text/quote.h"
#include "scheduler/base/text/strict_json.h"

namespace switchyard::checkpoint {
namespace {

using Json = nlohmann::json;
using NamedEntry = std::pair<std::string, TensorEntry>;

constexpr int64_t kMaxTensorsPerFile = 250'000;
constexpr int64_t kMaxExactInteger = int64_t{1} << 53;
constexpr std::pair<absl::string_view, DType> kLoadable[] = {
    {"BF16", DType::kBf16}, {"F16", DType::kF16}, {"F32", DType::kF32}, {"F64", DType::kF64},
    {"I64", DType::kI64},   {"I32", DType::kI32}, {"U8", DType::kU8}};

struct DTypeSpec {
  const char* name;
  int bits;
};
// All types of the format; kLoadable has those that we load.
constexpr DTypeSpec kDTypes[] = {
    {"BOOL", 8},    {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6},     {"U8", 8},          {"I8", 8},
    {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},
    {"U16", 16},    {"F16", 16},    {"BF16", 16},   {"I32", 32},        {"U32", 32},        {"F32", 32},
    {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64},
};

template <class... Parts>
absl::Status TensorError(absl::string_view name, const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat("tensor \"", Excerpt(name), "\": ", parts...));
}

bool LooksForeign(absl::string_view first_bytes) {
  return absl::StartsWith(first_bytes, "GGUF") || absl::StartsWith(first_bytes, absl::string_view("PK\x03\x04", 4)) ||
         absl::StartsWith(first_bytes, "\x80\x02") || absl::StartsWith(first_bytes, "\x80\x04");
}

// A non-negative integer that a double holds exactly.
bool IsCount(const Json& value) {
  return value.is_number_unsigned() && value.get<uint64_t>() <= static_cast<uint64_t>(kMaxExactInteger);
}

absl::StatusOr<int> DTypeBits(absl::string_view tensor, const Json& value) {
  if (!value.is_string()) return TensorError(tensor, "dtype is no string");
  const std::string& name = value.get_ref<const std::string&>();
  for (const DTypeSpec& spec : kDTypes) {
    if (name == spec.name) return spec.bits;
  }
  return TensorError(tensor, "unknown dtype \"", Excerpt(name), "\"");
}

// Returns the tensor's bytes.
absl::StatusOr<int64_t> ReadShape(absl::string_view tensor, const Json& value, int bits, TensorEntry* entry) {
  if (!value.is_array()) return TensorError(tensor, "shape is no list");
  if (value.size() > static_cast<size_t>(kMaxSafetensorsRank)) {
    return TensorError(tensor, "rank ", value.size(), ", limit ", kMaxSafetensorsRank);
  }
  int64_t total_bits = bits;
  for (const Json& dim : value) {
    if (!IsCount(dim)) return TensorError(tensor, "shape holds something that is no integer in [0, 2^53]");
    entry->shape.push_back(static_cast<int64_t>(dim.get<uint64_t>()));
    // An overflow is an error even if a later dimension is zero.
    if (__builtin_mul_overflow(total_bits, std::max<int64_t>(entry->shape.back(), 1), &total_bits)) {
      return TensorError(tensor, "shape product overflows: ", entry->ShapeString(), " of ", bits, " bits");
    }
  }
  if (std::find(entry->shape.begin(), entry->shape.end(), 0) != entry->shape.end()) total_bits = 0;
  if (total_bits % 8 != 0) {
    return TensorError(tensor, "shape ", entry->ShapeString(), " of ", bits, " bits fills no whole byte");
  }
  return total_bits / 8;
}

absl::Status ReadOffsets(absl::string_view tensor, const Json& value, int64_t expected_bytes, int64_t data_bytes,
                         TensorEntry* entry) {
  if (!value.is_array() || value.size() != 2 || !IsCount(value[0]) || !IsCount(value[1])) {
    return TensorError(tensor, "data_offsets is no pair of integers in [0, 2^53]");
  }
  const int64_t begin = static_cast<int64_t>(value[0].get<uint64_t>());
  const int64_t end = static_cast<int64_t>(value[1].get<uint64_t>());
  const std::string range = absl::StrCat("offsets [", begin, ",", end, ")");
  if (begin > end) return TensorError(tensor, range, " do not match: they end before they begin");
  if (end > data_bytes) {
    return TensorError(tensor, range, " do not match the file: its data has ", data_bytes, " bytes");
  }
  if (end - begin != expected_bytes) {
    return TensorError(tensor, range, " do not match ", entry->dtype, " ", entry->ShapeString(), ": ", expected_bytes,
                       " bytes");
  }
  entry->begin = begin;
  entry->bytes = end - begin;
  return absl::OkStatus();
}

absl::StatusOr<TensorEntry> ReadEntry(absl::string_view name, const Json& value, int64_t data_bytes) {
  if (!value.is_object()) return TensorError(name, "its description is no object");
  for (const char* key : {"dtype", "shape", "data_offsets"}) {
    if (!value.contains(key)) return TensorError(name, "\"", key, "\" is missing");
  }
  TensorEntry entry;
  ASSIGN_OR_RETURN(int bits, DTypeBits(name, value["dtype"]));
  entry.dtype = value["dtype"].get<std::string>();
  ASSIGN_OR_RETURN(const int64_t bytes, ReadShape(name, value["shape"], bits, &entry));
  RETURN_IF_ERROR(ReadOffsets(name, value["data_offsets"], bytes, data_bytes, &entry));
  return entry;
}

absl::Status CheckMetadata(const Json& metadata) {
  if (!metadata.is_object()) return absl::InvalidArgumentError("header: __metadata__ is no object");
  for (const auto& [key, value] : metadata.items()) {
    if (!value.is_string()) {
      return absl::InvalidArgumentError(absl::StrCat("header: __metadata__[\"", Excerpt(key), "\"] is no string"));
    }
  }
  return absl::OkStatus();
}

// The tensors, sorted by offset, must cover all of the data.
absl::Status CheckTiling(const std::vector<NamedEntry>& tensors, int64_t data_bytes) {
  int64_t at = 0;
  for (const auto& [name, entry] : tensors) {
    if (entry.begin != at) {
      return TensorError(name, "offsets [", entry.begin, ",", entry.begin + entry.bytes,
                         ") do not match the tensor before, which ends at ", at, ": ",
                         entry.begin > at ? "hole" : "overlap");
    }
    at += entry.bytes;
  }
  if (at != data_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("header: tensors end at byte ", at, " of the data, the file has ", data_bytes));
  }
  return absl::OkStatus();
}

}  // namespace

std::string TensorEntry::ShapeString() const { return absl::StrCat("[", absl::StrJoin(shape, ", "), "]"); }

absl::StatusOr<DType> ParseSafetensorsDType(absl::string_view name) {
  for (const auto& [known, dtype] : kLoadable) {
    if (name == known) return dtype;
  }
  return absl::UnimplementedError(absl::StrCat("dtype ", Excerpt(name), " cannot be loaded"));
}

absl::StatusOr<std::vector<NamedEntry>> ParseSafetensorsHeader(absl::string_view json, int64_t data_begin,
                                                               int64_t data_bytes) {
  if (json.empty() || json[0] != '{') return absl::InvalidArgumentError("header: syntax error at byte 0: no '{'");
  ASSIGN_OR_RETURN(Json root, ParseStrictJson("header", json, {.max_depth = 8, .max_values = 16 * kMaxTensorsPerFile}));
  if (!root.is_object()) return absl::InvalidArgumentError("header: no object");
  if (root.size() > static_cast<size_t>(kMaxTensorsPerFile)) {
    return absl::InvalidArgumentError(absl::StrCat("header: ", root.size(), " keys, limit ", kMaxTensorsPerFile));
  }
  std::vector<NamedEntry> tensors;
  tensors.reserve(root.size());
  for (const auto& [name, value] : root.items()) {
    if (name == "__metadata__") {
      RETURN_IF_ERROR(CheckMetadata(value));
      continue;
    }
    ASSIGN_OR_RETURN(TensorEntry entry, ReadEntry(name, value, data_bytes));
    tensors.emplace_back(name, std::move(entry));
  }
  // Empty tensors share their offset with the next one: they come first.
  std::sort(tensors.begin(), tensors.end(), [](const NamedEntry& a, const NamedEntry& b) {
    return std::make_tuple(a.second.begin, a.second.bytes, absl::string_view(a.first)) <
           std::make_tuple(b.second.begin, b.second.bytes, absl::string_view(b.first));
  });
  RETURN_IF_ERROR(CheckTiling(tensors, data_bytes));
  for (auto& [name, entry] : tensors) entry.begin += data_begin;
  return tensors;
}

absl::StatusOr<std::vector<NamedEntry>> ReadSafetensorsHeader(
    int64_t file_bytes, absl::FunctionRef<absl::Status(int64_t, absl::Span<char>)> read, std::string* text) {
  if (file_bytes < 8) {
    return absl::InvalidArgumentError(
        absl::StrCat("header length needs 8 bytes, which exceeds file size ", file_bytes));
  }
  char prefix[8];
  RETURN_IF_ERROR(read(0, absl::MakeSpan(prefix)));
  uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = (length << 8) | static_cast<unsigned char>(prefix[i]);
  // Lengths of 640 and 1152 begin as pickles do, so only what cannot be a length is another format.
  if (length > static_cast<uint64_t>(std::min(file_bytes - 8, kMaxSafetensorsHeader)) &&
      LooksForeign(absl::string_view(prefix, 8))) {
    return absl::UnimplementedError("unsupported format; only safetensors");
  }
  if (length > static_cast<uint64_t>(file_bytes - 8)) {
    return absl::InvalidArgumentError(absl::StrCat("header length ", length, " exceeds file size ", file_bytes));
  }
  if (length > static_cast<uint64_t>(kMaxSafetensorsHeader)) {
    return absl::InvalidArgumentError(absl::StrCat("header length ", length, " exceeds limit ", kMaxSafetensorsHeader));
  }
  if (length == 0) return absl::InvalidArgumentError("header length 0: there is no header");
  text->resize(length);
  RETURN_IF_ERROR(read(8, absl::MakeSpan(text->data(), text->size())));
  const int64_t data_begin = 8 + static_cast<int64_t>(length);
  return ParseSafetensorsHeader(*text, data_begin, file_bytes - data_begin);
}

absl::string_view SafetensorsDTypeName(DType dtype) {
  return std::find_if(std::begin(kLoadable), std::end(kLoadable),
                      [&](const auto& each) { return each.second == dtype; })
      ->first;
}

}  // namespace switchyard::checkpoint
