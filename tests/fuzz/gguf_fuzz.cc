// Headers of GGUF files.  What is taken has tensors that lie in the file, in order, without overlap, and have the sizes
// of their blocks; every value of its metadata can be read; and it is the same when it is written and read again.
#include <algorithm>
#include <cstring>
#include <string>

#include "scheduler/base/gguf/gguf_header.h"
#include "tests/fuzz/fuzz.h"

namespace switchyard::fuzz {
namespace {

absl::StatusOr<GgufHeader> ReadFile(absl::string_view file) {
  return ReadGgufHeader(static_cast<int64_t>(file.size()), [&](int64_t begin, absl::Span<char> to) {
    SY_CHECK(begin >= 0 && begin + static_cast<int64_t>(to.size()) <= static_cast<int64_t>(file.size()));
    std::memcpy(to.data(), file.data() + begin, to.size());
    return absl::OkStatus();
  });
}

template <class Int>
void Append(Int value, std::string* out) {
  out->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

void AppendText(absl::string_view text, std::string* out) {
  Append(uint64_t{text.size()}, out);
  out->append(text.data(), text.size());
}

// As the bytes of a file whose data is zeros.
std::string Written(const GgufHeader& header) {
  std::string out = "GGUF";
  Append(header.version, &out);
  Append(uint64_t{header.tensors.size()}, &out);
  Append(uint64_t{header.metadata.entries().size()}, &out);
  for (const auto& [key, value] : header.metadata.entries()) {
    AppendText(key, &out);
    if (value.is_array()) {
      Append(static_cast<uint32_t>(GgufValueType::kArray), &out);
      Append(static_cast<uint32_t>(value.type()), &out);
      Append(value.size(), &out);
    } else {
      Append(static_cast<uint32_t>(value.type()), &out);
    }
    out.append(value.bytes().data(), value.bytes().size());
  }
  for (const GgufTensor& tensor : header.tensors) {
    AppendText(tensor.name, &out);
    Append(static_cast<uint32_t>(tensor.shape.size()), &out);
    for (auto dim = tensor.shape.rbegin(); dim != tensor.shape.rend(); ++dim) Append(*dim, &out);
    Append(tensor.format->type, &out);
    Append(tensor.begin - header.data_begin, &out);
  }
  return out;
}

// An array is read in one way at most (integers are numbers, too), and then whole.
void CheckValue(const GgufValue& value) {
  SY_CHECK(value.is_array() || value.size() == 1);
  const auto size = static_cast<size_t>(value.size());
  const auto ints = value.Ints();
  const auto numbers = value.Numbers();
  const auto strings = value.Strings();
  const auto bools = value.Bools();
  SY_CHECK(!ints.has_value() || (ints->size() == size && numbers.has_value()));
  SY_CHECK(!numbers.has_value() || numbers->size() == size);
  SY_CHECK(!bools.has_value() || bools->size() == size);
  if (strings.has_value()) {
    size_t bytes = 0;
    for (const absl::string_view each : *strings) bytes += 8 + each.size();
    SY_CHECK_EQ(bytes, value.bytes().size());
    SY_CHECK_EQ(strings->size(), size);
  }
  const bool scalar = value.Number().has_value() || value.String().has_value() || value.Bool().has_value();
  SY_CHECK(scalar != value.is_array());
}

void CheckTensors(const GgufHeader& header, int64_t file_bytes) {
  int64_t at = header.data_begin;
  for (const GgufTensor& tensor : header.tensors) {
    SY_CHECK(tensor.begin >= at);
    SY_CHECK_EQ((tensor.begin - header.data_begin) % header.alignment, 0);
    SY_CHECK(tensor.shape.size() >= 1 && tensor.shape.size() <= kMaxGgufRank);
    int64_t rows = 1;
    for (size_t i = 0; i + 1 < tensor.shape.size(); ++i) rows *= tensor.shape[i];
    SY_CHECK_EQ(tensor.bytes, rows * tensor.row_bytes());
    at = tensor.begin + tensor.bytes;
    SY_CHECK(at <= file_bytes);
  }
}

}  // namespace

void Fuzz(absl::string_view input) {
  const auto header = ReadFile(input);
  CheckSameEnd(header, ReadFile(input));
  if (!header.ok()) return;
  for (const auto& [key, value] : header->metadata.entries()) CheckValue(value);
  CheckTensors(*header, static_cast<int64_t>(input.size()));
  std::string file = Written(*header);
  file.resize(std::max(input.size(), file.size()));
  const auto again = ReadFile(file);
  SY_CHECK_OK(again.status());
  SY_CHECK_EQ(Written(*again), Written(*header));
}

}  // namespace switchyard::fuzz
