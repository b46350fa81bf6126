#include "workers/checkpoint/safetensors/safetensors_writer.h"

#include <algorithm>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"
#include "scheduler/base/status_macros.h"
#include "scheduler/base/text/json_value.h"
#include "scheduler/base/text/quote.h"
#include "workers/checkpoint/safetensors/safetensors_header.h"
#include "workers/checkpoint/tensors/checkpoint.h"

namespace switchyard::checkpoint {
namespace {

template <class... Parts>
absl::Status Wrong(absl::string_view tensor, const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat("tensor \"", Excerpt(tensor), "\": ", parts...));
}

absl::StatusOr<int64_t> BytesOf(const TensorToWrite& tensor) {
  if (tensor.shape.size() > static_cast<size_t>(kMaxSafetensorsRank)) {
    return Wrong(tensor.name, "rank ", tensor.shape.size(), ", limit ", kMaxSafetensorsRank);
  }
  int64_t bytes = DTypeBytes(tensor.dtype);
  bool empty = false;
  for (const int64_t dim : tensor.shape) {
    if (dim < 0) return Wrong(tensor.name, "dimension ", dim, " is negative");
    empty |= dim == 0;
    if (__builtin_mul_overflow(bytes, std::max<int64_t>(dim, 1), &bytes)) {
      return Wrong(tensor.name, "shape product overflows");
    }
  }
  return empty ? 0 : bytes;
}

}  // namespace

std::function<absl::Status(ByteSink)> BytesAt(const void* bytes, int64_t count) {
  return [bytes, count](ByteSink sink) {
    return sink(absl::string_view(static_cast<const char*>(bytes), static_cast<size_t>(count)));
  };
}

absl::StatusOr<SafetensorsWriter> SafetensorsWriter::Create(absl::Span<const TensorToWrite> tensors) {
  SafetensorsWriter writer;
  for (const TensorToWrite& tensor : tensors) writer.tensors_.push_back(&tensor);
  std::stable_sort(writer.tensors_.begin(), writer.tensors_.end(),
                   [](const auto* a, const auto* b) { return DTypeBytes(a->dtype) > DTypeBytes(b->dtype); });
  std::string json = R"({"__metadata__":{"format":"pt"})";
  absl::flat_hash_set<std::string> names = {"__metadata__"};
  int64_t at = 0;
  for (const TensorToWrite* tensor : writer.tensors_) {
    if (!names.insert(tensor->name).second) return Wrong(tensor->name, "the name is given twice or reserved");
    ASSIGN_OR_RETURN(int64_t bytes, BytesOf(*tensor));
    int64_t end = 0;
    if (__builtin_add_overflow(at, bytes, &end)) return Wrong(tensor->name, "the file's size overflows");
    const std::string quoted = JsonText(nlohmann::json(tensor->name));
    absl::StrAppend(&json, ",", quoted, ":{\"dtype\":\"", SafetensorsDTypeName(tensor->dtype), "\",\"shape\":[",
                    absl::StrJoin(tensor->shape, ","), "],\"data_offsets\":[", at, ",", end, "]}");
    writer.bytes_.push_back(bytes);
    at = end;
  }
  json.push_back('}');
  json.append((8 - json.size() % 8) % 8, ' ');
  if (static_cast<int64_t>(json.size()) > kMaxSafetensorsHeader) {
    return absl::InvalidArgumentError(absl::StrCat("header length ", json.size(), " exceeds limit ",
                                                   kMaxSafetensorsHeader, ": spread the tensors over more files"));
  }
  for (int i = 0; i < 8; ++i) writer.head_.push_back(static_cast<char>(json.size() >> (8 * i)));
  writer.head_ += json;
  writer.file_bytes_ = static_cast<int64_t>(writer.head_.size()) + at;
  return writer;
}

absl::Status SafetensorsWriter::Write(ByteSink sink) const {
  RETURN_IF_ERROR(sink(head_));
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (bytes_[i] == 0) continue;
    int64_t given = 0;
    RETURN_IF_ERROR(tensors_[i]->contents([&](absl::string_view bytes) {
      given += static_cast<int64_t>(bytes.size());
      return given <= bytes_[i] ? sink(bytes) : absl::OkStatus();
    }));
    if (given != bytes_[i]) {
      return absl::InternalError(absl::StrCat("tensor \"", Excerpt(tensors_[i]->name), "\": its contents are ", given,
                                              " bytes, its shape has ", bytes_[i]));
    }
  }
  return absl::OkStatus();
}

}  // namespace switchyard::checkpoint
