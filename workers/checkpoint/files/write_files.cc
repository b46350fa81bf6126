#include "workers/checkpoint/files/write_files.h"

#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "scheduler/base/io/input_file.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::checkpoint {
namespace {

constexpr int64_t kMaxSideFileBytes = int64_t{64} << 20;
// Names, folders and the last block of each file.
constexpr int64_t kSlackBytes = 64 << 10;

bool HasTensors(const CheckpointFile& file) { return absl::EndsWith(file.name, ".safetensors"); }

absl::StatusOr<FileSums> WriteOne(FileSystem* file_system, const std::string& path, const CheckpointFile& file) {
  ASSIGN_OR_RETURN(std::unique_ptr<SummedFile> out, SummedFile::Create(file_system, path));
  if (HasTensors(file)) {
    ASSIGN_OR_RETURN(const SafetensorsWriter writer, SafetensorsWriter::Create(file.tensors));
    RETURN_IF_ERROR(writer.Write([&](absl::string_view bytes) { return out->Append(bytes); }));
  } else {
    RETURN_IF_ERROR(out->Append(file.text));
  }
  return out->Finish();
}

}  // namespace

absl::StatusOr<int64_t> BytesOfFiles(absl::Span<const CheckpointFile> files) {
  int64_t bytes = 0;
  for (const CheckpointFile& file : files) {
    if (!HasTensors(file)) {
      bytes += static_cast<int64_t>(file.text.size());
      continue;
    }
    const absl::StatusOr<SafetensorsWriter> writer = SafetensorsWriter::Create(file.tensors);
    if (!writer.ok()) return InFile(file.name, writer.status());
    bytes += writer->file_bytes();
  }
  return bytes;
}

absl::Status CheckRoom(FileSystem* file_system, const std::string& where, int64_t needed) {
  ASSIGN_OR_RETURN(int64_t free, file_system->FreeBytes());
  if (needed <= free - kSlackBytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat(where, ": needs ", needed + kSlackBytes, " bytes, ", free, " are free"));
}

absl::StatusOr<std::vector<FileRecord>> WriteFiles(FileSystem* file_system, const std::string& folder,
                                                   absl::Span<const CheckpointFile> files) {
  ASSIGN_OR_RETURN(int64_t needed, BytesOfFiles(files));
  RETURN_IF_ERROR(CheckRoom(file_system, folder, needed));
  std::vector<FileRecord> records;
  for (const CheckpointFile& file : files) {
    const std::string path = absl::StrCat(folder, "/", file.name);
    absl::StatusOr<FileSums> sums = WriteOne(file_system, path, file);
    if (!sums.ok()) return InFile(file.name, sums.status());
    records.push_back({file.name, *std::move(sums)});
  }
  RETURN_IF_ERROR(file_system->SyncFolder(folder));
  return records;
}

absl::StatusOr<std::vector<CheckpointFile>> SideFiles(const ModelDir& model) {
  std::vector<CheckpointFile> files;
  for (const char* name :
       {"added_tokens.json", "chat_template.jinja", "config.json", "generation_config.json", "merges.txt",
        "special_tokens_map.json", "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json"}) {
    if (!model.Exists(name)) continue;
    CheckpointFile file{name, {}, {}};
    ASSIGN_OR_RETURN(file.text, model.ReadSmallFile(name, kMaxSideFileBytes));
    files.push_back(std::move(file));
  }
  return files;
}

}  // namespace switchyard::checkpoint
