// Headers of safetensors files: the input is a file, and, behind two bytes with the size of its data, the header alone.
// What it takes tiles the data, and is the same when it is written and read again.
#include <cstring>
#include <map>

#include "tests/fuzz/fuzz.h"
#include "workers/checkpoint/safetensors/safetensors_header.h"
#include "workers/checkpoint/safetensors/safetensors_writer.h"

namespace switchyard::fuzz {
namespace {

using Tensors = std::vector<std::pair<std::string, checkpoint::TensorEntry>>;

absl::StatusOr<Tensors> ReadFile(absl::string_view file) {
  const auto read = [&](int64_t begin, absl::Span<char> to) {
    SY_CHECK(begin >= 0 && begin + static_cast<int64_t>(to.size()) <= static_cast<int64_t>(file.size()));
    std::memcpy(to.data(), file.data() + begin, to.size());
    return absl::OkStatus();
  };
  std::string text;
  return checkpoint::ReadSafetensorsHeader(static_cast<int64_t>(file.size()), read, &text);
}

// Writes a file of the same tensors, if all have types that we write, and reads it.
void CheckWritten(const Tensors& tensors, int64_t data_begin, int64_t data_bytes) {
  std::vector<checkpoint::TensorToWrite> to_write;
  const std::string zeros(static_cast<size_t>(data_bytes), '\0');
  int64_t at = data_begin;
  for (const auto& [name, entry] : tensors) {
    SY_CHECK_EQ(entry.begin, at);
    at += entry.bytes;
    if (const auto dtype = checkpoint::ParseSafetensorsDType(entry.dtype); dtype.ok()) {
      to_write.push_back({name, *dtype, entry.shape, checkpoint::BytesAt(zeros.data(), entry.bytes)});
    }
  }
  SY_CHECK_EQ(at, data_begin + data_bytes);
  auto writer = checkpoint::SafetensorsWriter::Create(to_write);
  SY_CHECK_OK(writer.status());
  std::string file;
  const auto append = [&](absl::string_view bytes) {
    file.append(bytes.data(), bytes.size());
    return absl::OkStatus();
  };
  SY_CHECK_OK(writer->Write(append));
  SY_CHECK_EQ(static_cast<int64_t>(file.size()), writer->file_bytes());
  const auto again = ReadFile(file);
  SY_CHECK_OK(again.status());
  SY_CHECK_EQ(again->size(), to_write.size());
  const std::map<std::string, checkpoint::TensorEntry> by_name(again->begin(), again->end());
  for (const auto& each : to_write) SY_CHECK(by_name.at(each.name).shape == each.shape);
}

}  // namespace

void Fuzz(absl::string_view input) {
  const auto file = ReadFile(input);
  CheckSameEnd(file, ReadFile(input));
  if (file.ok() && !file->empty())
    CheckWritten(*file, file->front().second.begin, input.size() - file->front().second.begin);
  if (input.size() < 2) return;
  const int64_t data_bytes = static_cast<uint8_t>(input[0]) + 256 * static_cast<uint8_t>(input[1]);
  const auto header = checkpoint::ParseSafetensorsHeader(input.substr(2), 8, data_bytes);
  if (header.ok()) CheckWritten(*header, 8, data_bytes);
}

}  // namespace switchyard::fuzz
