#include "workers/checkpoint/manifest/find_checkpoint.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "scheduler/base/status_macros.h"
#include "workers/checkpoint/manifest/read_manifest.h"

namespace switchyard::checkpoint {
namespace {

absl::StatusOr<Manifest> Open(FileSystem* files, const std::string& folder, const std::string& sha256,
                              CheckpointCheck check, const OnRead& on_read) {
  absl::StatusOr<Manifest> manifest = ReadManifest(files, folder, sha256);
  RETURN_IF_ERROR(manifest.status());
  RETURN_IF_ERROR(CheckSizes(files, folder, *manifest));
  if (check == CheckpointCheck::kContents) RETURN_IF_ERROR(CheckContents(files, folder, *manifest, on_read));
  return manifest;
}

// The steps to try when LATEST names `latest` (-1: none that can be read).
absl::StatusOr<std::vector<int64_t>> Candidates(FileSystem* files, int64_t latest) {
  std::vector<FolderEntry> entries;
  ASSIGN_OR_RETURN(entries, files->List(""));
  std::vector<int64_t> steps;
  for (const FolderEntry& entry : entries) {
    const int64_t step = StepOfFolder(entry.name);
    if (step >= 0 && entry.is_folder && step != latest) steps.push_back(step);
  }
  std::sort(steps.rbegin(), steps.rend());
  if (latest < 0) return steps;
  std::stable_partition(steps.begin(), steps.end(), [&](int64_t step) { return step < latest; });
  steps.insert(steps.begin(), latest);
  return steps;
}

}  // namespace

absl::StatusOr<Manifest> OpenCheckpoint(FileSystem* files, const std::string& folder, CheckpointCheck check) {
  return Open(files, folder, "", check, nullptr);
}

absl::StatusOr<FoundCheckpoint> FindCheckpoint(FileSystem* files, CheckpointCheck check, const OnRead& on_read) {
  FoundCheckpoint found;
  const absl::StatusOr<Latest> latest = ReadLatest(files);
  if (!latest.ok() && !absl::IsNotFound(latest.status())) found.rejected.emplace_back(latest.status().message());
  found.unread = absl::IsUnavailable(latest.status());
  std::vector<int64_t> steps;
  ASSIGN_OR_RETURN(steps, Candidates(files, latest.ok() ? StepOfFolder(latest->folder) : -1));
  for (const int64_t step : steps) {
    found.folder = StepFolder(step);
    const bool named = latest.ok() && latest->folder == found.folder;
    absl::StatusOr<Manifest> manifest = Open(files, found.folder, named ? latest->manifest_sha256 : "", check, on_read);
    if (manifest.ok()) {
      found.manifest = *std::move(manifest);
      return found;
    }
    if (absl::IsFailedPrecondition(manifest.status()) || absl::IsCancelled(manifest.status())) return manifest.status();
    found.unread |= absl::IsUnavailable(manifest.status());
    found.rejected.emplace_back(manifest.status().message());
  }
  if (found.rejected.empty()) return absl::NotFoundError("there is no checkpoint");
  const std::string wrong = absl::StrJoin(found.rejected, "; ");
  if (found.unread) return absl::UnavailableError(absl::StrCat("no checkpoint can be read: ", wrong));
  return absl::DataLossError(absl::StrCat("no checkpoint is whole: ", wrong));
}

}  // namespace switchyard::checkpoint
