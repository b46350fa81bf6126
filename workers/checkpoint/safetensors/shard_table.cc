#include "workers/checkpoint/safetensors/shard_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"
#include "scheduler/base/io/input_file.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/base/text/quote.h"
#include "workers/checkpoint/safetensors/safetensors_header.h"

namespace switchyard::checkpoint {

absl::StatusOr<ShardTable> ShardTable::Open(FileSystem* files, const std::string& folder, const Manifest& manifest,
                                            absl::string_view prefix) {
  ShardTable table;
  for (const FileRecord& record : manifest.files) {
    if (absl::StartsWith(record.name, prefix) && absl::EndsWith(record.name, ".safetensors")) {
      RETURN_IF_ERROR(table.Add(files, folder, record.name));
    }
  }
  for (const auto& [name, unused] : table.places_) table.names_.push_back(name);
  std::sort(table.names_.begin(), table.names_.end());
  return table;
}

absl::Status ShardTable::Add(FileSystem* files, const std::string& folder, const std::string& name) {
  const std::string path = absl::StrCat(folder, "/", name);
  ASSIGN_OR_RETURN(std::unique_ptr<File> file, files->Open(path, OpenMode::kRead));
  ASSIGN_OR_RETURN(int64_t size, file->Size());
  std::string text;
  auto tensors = ReadSafetensorsHeader(
      size, [&](int64_t begin, absl::Span<char> to) { return file->Read(begin, to); }, &text);
  if (!tensors.ok()) return InFile(path, tensors.status());
  const int index = static_cast<int>(files_.size());
  for (auto& [tensor, entry] : *tensors) {
    const auto [it, is_new] = places_.try_emplace(tensor, Place{index, std::move(entry)});
    if (is_new) continue;
    return absl::InvalidArgumentError(absl::StrCat(path, ": tensor \"", Excerpt(tensor), "\" is in ",
                                                   file_names_[static_cast<size_t>(it->second.file)], ", too"));
  }
  files_.push_back(std::move(file));
  file_names_.push_back(name);
  return absl::OkStatus();
}

std::optional<ShardTable::Place> ShardTable::Find(absl::string_view tensor) const {
  const auto it = places_.find(tensor);
  if (it == places_.end()) return std::nullopt;
  return it->second;
}

absl::Status ShardTable::Read(const Place& place, int64_t begin, absl::Span<char> to) const {
  SY_CHECK(begin >= 0 && begin + static_cast<int64_t>(to.size()) <= place.entry.bytes);
  return files_[static_cast<size_t>(place.file)]->Read(place.entry.begin + begin, to);
}

}  // namespace switchyard::checkpoint
