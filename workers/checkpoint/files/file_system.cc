#include "workers/checkpoint/files/file_system.h"

#include "scheduler/base/io/model_dir.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::checkpoint {

absl::Status ReplaceFile(FileSystem* files, const std::string& name, const std::string& unfinished,
                         absl::string_view contents) {
  {
    ASSIGN_OR_RETURN(std::unique_ptr<File> file, files->Open(unfinished, OpenMode::kCreate));
    RETURN_IF_ERROR(file->Append(contents));
    RETURN_IF_ERROR(file->Sync());
  }
  RETURN_IF_ERROR(files->Rename(unfinished, name));
  return files->SyncFolder("");
}

absl::StatusOr<std::string> ReadWholeFile(FileSystem* files, const std::string& path, int64_t max_bytes) {
  ASSIGN_OR_RETURN(std::unique_ptr<File> file, files->Open(path, OpenMode::kRead));
  ASSIGN_OR_RETURN(int64_t size, file->Size());
  if (size > max_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", size, " bytes, limit ", max_bytes));
  }
  std::string text(static_cast<size_t>(size), '\0');
  RETURN_IF_ERROR(file->Read(0, absl::MakeSpan(text.data(), text.size())));
  return text;
}

absl::StatusOr<CheckpointPath> ParseCheckpointPath(const std::string& path) {
  if (path.empty()) return CheckpointPath{};
  CheckpointPath out;
  const size_t slash = path.find('/');
  if (slash != std::string::npos) {
    out.folder = path.substr(0, slash);
    RETURN_IF_ERROR(CheckPlainName(out.folder));
  }
  out.name = slash == std::string::npos ? path : path.substr(slash + 1);
  RETURN_IF_ERROR(CheckPlainName(out.name));
  return out;
}

}  // namespace switchyard::checkpoint
