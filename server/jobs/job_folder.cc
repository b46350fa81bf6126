#include "server/jobs/job_folder.h"

#include <fcntl.h>

#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "scheduler/base/io/model_dir.h"
#include "scheduler/base/io/unique_fd.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/jobs/checkpoint_names.h"

namespace switchyard::server {
namespace {

namespace fs = std::filesystem;

// Behind a job's id: its folder while it is removed.  Workers take nothing beneath a name with ".tmp-" for a model.
constexpr char kBeingRemoved[] = ".tmp-removed";

// Bytes of the folder's files that have no other name.  Files that cannot be looked at do not count.
int64_t OwnBytes(const fs::path& folder) {
  std::error_code error;
  int64_t bytes = 0;
  for (fs::recursive_directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    std::error_code of_file;
    if (!fs::is_regular_file(it->symlink_status(of_file)) || it->hard_link_count(of_file) != 1) continue;
    const uintmax_t size = it->file_size(of_file);
    if (!of_file) bytes += static_cast<int64_t>(size);
  }
  return bytes;
}

// Removes the folder, or the link, if it is there.  Returns the bytes that this has freed.
int64_t Remove(const fs::path& folder, std::error_code* error) {
  std::error_code none;
  const fs::file_status status = fs::symlink_status(folder, none);
  if (!fs::exists(status)) return 0;
  const int64_t bytes = fs::is_directory(status) ? OwnBytes(folder) : 0;
  fs::remove_all(folder, *error);
  return bytes;
}

}  // namespace

absl::Status KeepCheckpoint(const RootDir& root, const std::string& folder) {
  if (jobs::StepOfFolder(fs::path(folder).filename().string()) < 0) return absl::OkStatus();
  const auto check = [&] {
    const absl::StatusOr<int> fd = root.OpenFile(absl::StrCat(folder, "/", jobs::kCheckpointManifest));
    const UniqueFd manifest(fd.value_or(-1));
    return fd.status();
  };
  if (!check().ok()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const int fd,
                   root.OpenAs(absl::StrCat(folder, "/", jobs::kKeptCheckpoint), O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
  const UniqueFd made(fd);
  // The job gives a checkpoint another name before it looks for the mark and removes files, so that one which has its
  // name now stays.
  return check();
}

std::string FolderBeneath(const RootDir& root, const std::string& path) {
  std::error_code error;
  const fs::path from = fs::canonical(root.path(), error);
  if (error) return "";
  const fs::path folder = fs::canonical(path, error);
  if (error) return "";
  const std::string relative = folder.lexically_relative(from).string();
  return relative == "." || absl::StartsWith(relative, "..") ? "" : relative;
}

bool IsOfJob(const std::string& folder, const std::string& id) {
  return folder == id || absl::StartsWith(folder, absl::StrCat(id, "/"));
}

absl::StatusOr<int64_t> RemoveJobFolder(const RootDir& root, const std::string& id) {
  RETURN_IF_ERROR(CheckPlainName(id));
  const fs::path folder = fs::path(root.path()) / id, away = fs::path(root.path()) / absl::StrCat(id, kBeingRemoved);
  std::error_code error;
  int64_t bytes = Remove(away, &error);  // what an earlier try has left
  // A fork that is being made finds no folder then, instead of one that lacks some files.
  if (!error) fs::rename(folder, away, error);
  if (error == std::errc::no_such_file_or_directory) return bytes;
  if (!error) bytes += Remove(away, &error);
  if (!error) return bytes;
  return absl::UnavailableError(absl::StrCat(id, ": its folder cannot be removed: ", error.message()));
}

}  // namespace switchyard::server
