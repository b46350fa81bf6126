#include "workers/quantize/output_dir.h"

#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/io/model_dir.h"
#include "scheduler/base/log.h"
#include "scheduler/base/status_macros.h"
#include "workers/checkpoint/files/posix_file_system.h"

namespace switchyard::quantize {

namespace fs = std::filesystem;

absl::StatusOr<std::unique_ptr<OutputDir>> OutputDir::Create(const std::string& path) {
  if (path.empty()) return absl::InvalidArgumentError("--output: name a directory that does not exist");
  std::error_code error;
  const fs::path whole = fs::absolute(path, error).lexically_normal();
  const fs::path named = whole.has_filename() ? whole : whole.parent_path();  // without a '/' at its end
  const std::string name = named.filename(), at = absl::StrCat("--output=", path, ": ");
  if (!CheckPlainName(name).ok()) return absl::InvalidArgumentError(absl::StrCat(at, "is no name of a directory"));
  if (!fs::is_directory(named.parent_path(), error)) {
    return absl::InvalidArgumentError(absl::StrCat(at, named.parent_path().string(), " is no directory"));
  }
  if (fs::exists(fs::symlink_status(named, error)) && !(fs::is_directory(named, error) && fs::is_empty(named, error))) {
    return absl::AlreadyExistsError(absl::StrCat(at, "exists; name a directory that does not, or an empty one"));
  }
  auto files = checkpoint::OpenPosixFileSystem(named.parent_path());
  if (!files.ok()) return absl::Status(files.status().code(), absl::StrCat(at, files.status().message()));
  std::unique_ptr<OutputDir> output(new OutputDir(*std::move(files), name));
  const absl::Status made = output->files_->MakeFolder(output->unfinished_);
  if (made.ok()) return output;
  output->finished_ = true;  // it is not ours to be removed
  if (!absl::IsAlreadyExists(made)) return absl::Status(made.code(), absl::StrCat(at, made.message()));
  return absl::AlreadyExistsError(absl::StrCat(at, named.string(), ".unfinished exists; another run writes it, or one ",
                                               "was killed: then remove it"));
}

OutputDir::~OutputDir() {
  if (finished_) return;
  const auto entries = files_->List(unfinished_);
  absl::Status status = entries.status();
  if (entries.ok()) {
    for (const checkpoint::FolderEntry& entry : *entries)
      status.Update(files_->Remove(absl::StrCat(unfinished_, "/", entry.name)));
  }
  status.Update(files_->Remove(unfinished_));
  if (!status.ok()) LogWarn("cannot remove ", unfinished_, ": ", status.message());
}

absl::Status OutputDir::Write(const checkpoint::CheckpointFile& file) {
  ASSIGN_OR_RETURN(const std::vector<checkpoint::FileRecord> records,
                   checkpoint::WriteFiles(files_.get(), unfinished_, {&file, 1}));
  for (const checkpoint::FileRecord& record : records) bytes_ += record.sums.bytes;
  return absl::OkStatus();
}

absl::Status OutputDir::Finish() {
  RETURN_IF_ERROR(files_->Rename(unfinished_, name_));
  finished_ = true;
  return files_->SyncFolder("");
}

}  // namespace switchyard::quantize
