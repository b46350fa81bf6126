#include "scheduler/base/gguf/gguf_header.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "scheduler/base/gguf/header_cursor.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/base/text/quote.h"

namespace switchyard {
namespace {

constexpr uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr uint32_t kOldestVersion = 2;
constexpr uint32_t kNewestVersion = 3;

template <class... Parts>
absl::Status Refuse(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

// A value whose bytes are not yet where they stay.
struct PlacedValue {
  std::string key;
  GgufValueType type = GgufValueType::kUint8;
  bool is_array = false;
  int64_t size = 1;
  int64_t begin = 0;  // of its bytes, in the header
  int64_t end = 0;
};

struct Counts {
  int64_t tensors;
  int64_t keys;
};

absl::StatusOr<uint32_t> ReadVersion(HeaderCursor& cursor) {
  ASSIGN_OR_RETURN(const uint32_t magic, cursor.Next<uint32_t>("the magic"));
  if (magic != kMagic) {
    return Refuse("expected the magic \"GGUF\", found ", Quote(cursor.Since(0)), "; it is no GGUF file");
  }
  ASSIGN_OR_RETURN(const uint32_t version, cursor.Next<uint32_t>("the version"));
  if (version >= kOldestVersion && version <= kNewestVersion) return version;
  if ((version & 0xffff) == 0 && version != 0) {
    return Refuse("the file is big-endian (version ", absl::Hex(version, absl::kZeroPad8), "), expected little-endian");
  }
  return Refuse("expected version ", kOldestVersion, " or ", kNewestVersion, ", found ", version);
}

absl::StatusOr<Counts> ReadCounts(HeaderCursor& cursor) {
  ASSIGN_OR_RETURN(const uint64_t tensors, cursor.Next<uint64_t>("the number of tensors"));
  if (tensors > static_cast<uint64_t>(kMaxGgufTensors)) return Refuse(tensors, " tensors, limit ", kMaxGgufTensors);
  ASSIGN_OR_RETURN(const uint64_t keys, cursor.Next<uint64_t>("the number of keys"));
  if (keys > static_cast<uint64_t>(kMaxGgufKeys)) return Refuse(keys, " keys of metadata, limit ", kMaxGgufKeys);
  return Counts{static_cast<int64_t>(tensors), static_cast<int64_t>(keys)};
}

absl::StatusOr<GgufValueType> ReadValueType(HeaderCursor& cursor, absl::string_view what) {
  ASSIGN_OR_RETURN(const uint32_t type, cursor.Next<uint32_t>(what));
  if (type < kNumGgufValueTypes) return static_cast<GgufValueType>(type);
  return Refuse(what, ": unknown type of value ", type, ", expected 0 to ", kNumGgufValueTypes - 1);
}

absl::Status CheckBools(absl::string_view bytes, absl::string_view what) {
  for (const char byte : bytes) {
    if (byte != 0 && byte != 1)
      return Refuse(what, ": a bool of value ", static_cast<uint8_t>(byte), ", expected 0 or 1");
  }
  return absl::OkStatus();
}

absl::StatusOr<PlacedValue> ReadValue(HeaderCursor& cursor, std::string key, absl::string_view what) {
  PlacedValue value;
  value.key = std::move(key);
  ASSIGN_OR_RETURN(value.type, ReadValueType(cursor, what));
  if (value.type == GgufValueType::kArray) {
    value.is_array = true;
    ASSIGN_OR_RETURN(value.type, ReadValueType(cursor, what));
    if (value.type == GgufValueType::kArray) return Refuse(what, ": an array of arrays is not supported");
    ASSIGN_OR_RETURN(const uint64_t size, cursor.Next<uint64_t>(what));
    if (size > static_cast<uint64_t>(kMaxGgufArray)) {
      return Refuse(what, ": an array of ", size, " elements, limit ", kMaxGgufArray);
    }
    value.size = static_cast<int64_t>(size);
  }
  value.begin = cursor.at();
  if (value.type == GgufValueType::kString) {
    for (int64_t i = 0; i < value.size; ++i) RETURN_IF_ERROR(cursor.SkipString(kMaxGgufStringBytes, what));
  } else {
    RETURN_IF_ERROR(cursor.Skip(static_cast<uint64_t>(value.size * GgufScalarBytes(value.type)), what));
  }
  value.end = cursor.at();
  if (value.type == GgufValueType::kBool) RETURN_IF_ERROR(CheckBools(cursor.Since(value.begin), what));
  return value;
}

absl::StatusOr<std::vector<PlacedValue>> ReadMetadata(HeaderCursor& cursor, int64_t num_keys) {
  std::vector<PlacedValue> values;
  absl::flat_hash_set<std::string> keys;
  for (int64_t i = 0; i < num_keys; ++i) {
    ASSIGN_OR_RETURN(std::string key,
                     cursor.NextString(kMaxGgufKeyBytes, absl::StrCat("key ", i + 1, " of ", num_keys)));
    const std::string what = absl::StrCat("key \"", Excerpt(key), "\"");
    if (key.empty()) return Refuse(what, ": key ", i + 1, " of ", num_keys, " is empty");
    if (!keys.insert(key).second) return Refuse(what, ": is there twice");
    ASSIGN_OR_RETURN(PlacedValue value, ReadValue(cursor, std::move(key), what));
    values.push_back(std::move(value));
  }
  return values;
}

absl::StatusOr<int64_t> ReadAlignment(const GgufMetadata& metadata) {
  ASSIGN_OR_RETURN(const int64_t alignment, metadata.Int(kGgufAlignmentKey, kDefaultGgufAlignment));
  if (alignment < 1 || alignment > kMaxGgufAlignment || (alignment & (alignment - 1)) != 0) {
    return Refuse("key \"", kGgufAlignmentKey, "\": expected a power of two up to ", kMaxGgufAlignment, ", found ",
                  alignment);
  }
  return alignment;
}

absl::Status ReadShape(HeaderCursor& cursor, absl::string_view what, GgufTensor* tensor) {
  ASSIGN_OR_RETURN(const uint32_t rank, cursor.Next<uint32_t>(what));
  if (rank < 1 || rank > kMaxGgufRank)
    return Refuse(what, ": expected 1 to ", kMaxGgufRank, " dimensions, found ", rank);
  for (uint32_t i = 0; i < rank; ++i) {
    ASSIGN_OR_RETURN(const int64_t dim, cursor.Next<int64_t>(what));
    if (dim < 1) return Refuse(what, ": expected dimensions of at least 1, found ", dim);
    tensor->shape.insert(tensor->shape.begin(), dim);
  }
  return absl::OkStatus();
}

// Sets the tensor's format and bytes.
absl::Status ReadFormat(HeaderCursor& cursor, absl::string_view what, GgufTensor* tensor) {
  ASSIGN_OR_RETURN(const uint32_t type, cursor.Next<uint32_t>(what));
  tensor->format = FindGgufBlockFormat(type);
  if (tensor->format == nullptr) {
    return Refuse(what, ": unknown type ", type, "; is the file newer than this program?");
  }
  if (tensor->shape.back() % tensor->format->elements != 0) {
    return Refuse(what, ": rows of ", tensor->shape.back(), " elements do not divide into blocks of ",
                  tensor->format->elements, ", as ", tensor->format->name, " has");
  }
  int64_t bytes = tensor->shape.back() / tensor->format->elements;
  bool overflow = __builtin_mul_overflow(bytes, int64_t{tensor->format->bytes}, &bytes);
  for (size_t i = 0; i + 1 < tensor->shape.size(); ++i) {
    overflow = overflow || __builtin_mul_overflow(bytes, tensor->shape[i], &bytes);
  }
  if (overflow) return Refuse(what, ": size overflows: ", tensor->ShapeString(), " of ", tensor->format->name);
  tensor->bytes = bytes;
  return absl::OkStatus();
}

// Its `begin` is from the data's begin, which is not known before the table's end.
absl::StatusOr<GgufTensor> ReadTensor(HeaderCursor& cursor, std::string name, int64_t alignment) {
  const std::string what = absl::StrCat("tensor \"", Excerpt(name), "\"");
  if (name.empty()) return Refuse(what, ": the name is empty");
  GgufTensor tensor = {.name = std::move(name)};
  RETURN_IF_ERROR(ReadShape(cursor, what, &tensor));
  RETURN_IF_ERROR(ReadFormat(cursor, what, &tensor));
  ASSIGN_OR_RETURN(const uint64_t offset, cursor.Next<uint64_t>(what));
  if (offset > static_cast<uint64_t>(cursor.file_bytes())) {
    return Refuse(what, ": offset ", offset, " is beyond the end of the file, which has ", cursor.file_bytes(),
                  " bytes");
  }
  tensor.begin = static_cast<int64_t>(offset);
  if (tensor.begin % alignment != 0)
    return Refuse(what, ": offset ", offset, " is no multiple of the alignment ", alignment);
  return tensor;
}

absl::Status CheckPlaces(int64_t file_bytes, std::vector<GgufTensor>& tensors) {
  std::sort(tensors.begin(), tensors.end(), [](const GgufTensor& a, const GgufTensor& b) {
    return std::tie(a.begin, a.name) < std::tie(b.begin, b.name);
  });
  for (size_t i = 0; i < tensors.size(); ++i) {
    const GgufTensor& each = tensors[i];
    const std::string what = absl::StrCat("tensor \"", Excerpt(each.name), "\": ", each.format->name, " ",
                                          each.ShapeString(), " of ", each.bytes, " bytes at byte ", each.begin);
    if (each.begin > file_bytes || each.bytes > file_bytes - each.begin) {
      return Refuse(what, " does not fit the file, which ends at byte ", file_bytes, "; is the download incomplete?");
    }
    if (i == 0) continue;
    const int64_t end = tensors[i - 1].begin + tensors[i - 1].bytes;
    if (each.begin < end) {
      return Refuse(what, " overlaps tensor \"", Excerpt(tensors[i - 1].name), "\", which ends at byte ", end);
    }
  }
  return absl::OkStatus();
}

absl::Status ReadTensors(HeaderCursor& cursor, int64_t num_tensors, GgufHeader* header) {
  absl::flat_hash_set<std::string> names;
  for (int64_t i = 0; i < num_tensors; ++i) {
    ASSIGN_OR_RETURN(std::string name,
                     cursor.NextString(kMaxGgufNameBytes, absl::StrCat("name of tensor ", i + 1, " of ", num_tensors)));
    if (!names.insert(name).second) return Refuse("tensor \"", Excerpt(name), "\": is there twice");
    ASSIGN_OR_RETURN(GgufTensor tensor, ReadTensor(cursor, std::move(name), header->alignment));
    header->tensors.push_back(std::move(tensor));
  }
  header->data_begin = (cursor.at() + header->alignment - 1) / header->alignment * header->alignment;
  for (GgufTensor& each : header->tensors) each.begin += header->data_begin;
  return CheckPlaces(cursor.file_bytes(), header->tensors);
}

GgufMetadata MakeMetadata(std::vector<PlacedValue> values, absl::string_view bytes) {
  std::vector<std::pair<std::string, GgufValue>> entries;
  entries.reserve(values.size());
  for (PlacedValue& each : values) {
    const absl::string_view text =
        bytes.substr(static_cast<size_t>(each.begin), static_cast<size_t>(each.end - each.begin));
    entries.emplace_back(std::move(each.key), GgufValue(each.type, each.is_array, each.size, text));
  }
  return GgufMetadata(std::move(entries));
}

}  // namespace

std::string GgufTensor::ShapeString() const { return absl::StrCat("[", absl::StrJoin(shape, ", "), "]"); }

absl::StatusOr<GgufHeader> ReadGgufHeader(int64_t file_bytes,
                                          absl::FunctionRef<absl::Status(int64_t, absl::Span<char>)> read) {
  HeaderCursor cursor(file_bytes, kMaxGgufHeader, read);
  GgufHeader header;
  ASSIGN_OR_RETURN(header.version, ReadVersion(cursor));
  ASSIGN_OR_RETURN(const Counts counts, ReadCounts(cursor));
  ASSIGN_OR_RETURN(std::vector<PlacedValue> values, ReadMetadata(cursor, counts.keys));
  ASSIGN_OR_RETURN(header.alignment, ReadAlignment(MakeMetadata(values, cursor.Since(0))));
  RETURN_IF_ERROR(ReadTensors(cursor, counts.tensors, &header));
  header.bytes = std::make_unique<const std::string>(cursor.Take());
  header.metadata = MakeMetadata(std::move(values), *header.bytes);
  return header;
}

}  // namespace switchyard
