#include "workers/checkpoint/manifest/find_checkpoint.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "scheduler/base/io/input_file.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::checkpoint {
namespace {

absl::StatusOr<Manifest> CheckAll(FileSystem* files, const std::string& folder, const std::string& sha256,
                                  const OnRead& on_read) {
  ASSIGN_OR_RETURN(Manifest manifest, OpenCheckpoint(files, folder, sha256));
  for (const FileRecord& record : manifest.files) {
    const std::string path = absl::StrCat(folder, "/", record.name);
    ASSIGN_OR_RETURN(const std::unique_ptr<File> file, files->Open(path, OpenMode::kRead));
    RETURN_IF_ERROR(CheckSums(*file, path, record.sums, on_read));
  }
  return manifest;
}

// The steps to try when LATEST names `latest` (-1: LATEST cannot be read).
absl::StatusOr<std::vector<int64_t>> Candidates(FileSystem* files, int64_t latest) {
  ASSIGN_OR_RETURN(std::vector<int64_t> steps, ListSteps(files));
  if (latest < 0) return steps;
  std::erase(steps, latest);
  std::stable_partition(steps.begin(), steps.end(), [&](int64_t step) { return step < latest; });
  steps.insert(steps.begin(), latest);
  return steps;
}

}  // namespace

absl::StatusOr<Latest> ReadLatest(FileSystem* files) {
  ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(files, kLatestName, kMaxLatestBytes));
  absl::StatusOr<Latest> latest = DecodeLatest(text);
  if (!latest.ok()) return InFile(kLatestName, latest.status());
  return latest;
}

absl::StatusOr<Manifest> ReadManifest(FileSystem* files, const std::string& folder, const std::string& sha256) {
  const std::string path = absl::StrCat(folder, "/", kManifestName);
  ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(files, path, kMaxManifestBytes));
  absl::StatusOr<Manifest> manifest = DecodeManifest(text);
  if (!manifest.ok()) return InFile(path, manifest.status());
  if (!sha256.empty() && Sha256Hex(text) != sha256) {
    return absl::DataLossError(absl::StrCat(path, ": not the manifest that ", kLatestName, " names"));
  }
  if (StepFolder(manifest->step) != folder) {
    return absl::DataLossError(absl::StrCat(path, ": is of step ", manifest->step));
  }
  return manifest;
}

absl::Status CheckSizes(FileSystem* files, const std::string& folder, const Manifest& manifest) {
  for (const FileRecord& record : manifest.files) {
    const std::string path = absl::StrCat(folder, "/", record.name);
    ASSIGN_OR_RETURN(const std::unique_ptr<File> file, files->Open(path, OpenMode::kRead));
    ASSIGN_OR_RETURN(const int64_t size, file->Size());
    if (size != record.sums.bytes) {
      return absl::DataLossError(absl::StrCat(path, ": ", size, " bytes, its record says ", record.sums.bytes));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int64_t>> ListSteps(FileSystem* files) {
  ASSIGN_OR_RETURN(const std::vector<FolderEntry> entries, files->List(""));
  std::vector<int64_t> steps;
  for (const FolderEntry& entry : entries) {
    if (entry.is_folder && StepOfFolder(entry.name) >= 0) steps.push_back(StepOfFolder(entry.name));
  }
  std::sort(steps.rbegin(), steps.rend());
  return steps;
}

absl::StatusOr<Manifest> OpenCheckpoint(FileSystem* files, const std::string& folder, const std::string& sha256) {
  ASSIGN_OR_RETURN(Manifest manifest, ReadManifest(files, folder, sha256));
  RETURN_IF_ERROR(CheckSizes(files, folder, manifest));
  return manifest;
}

absl::StatusOr<FoundCheckpoint> FindCheckpoint(FileSystem* files, const OnRead& on_read) {
  FoundCheckpoint found;
  const absl::StatusOr<Latest> latest = ReadLatest(files);
  if (!latest.ok() && !absl::IsNotFound(latest.status())) found.rejected.emplace_back(latest.status().message());
  found.unread = absl::IsUnavailable(latest.status());
  ASSIGN_OR_RETURN(const std::vector<int64_t> steps,
                   Candidates(files, latest.ok() ? StepOfFolder(latest->folder) : -1));
  for (const int64_t step : steps) {
    found.folder = StepFolder(step);
    const std::string sha256 = latest.ok() && latest->folder == found.folder ? latest->manifest_sha256 : "";
    absl::StatusOr<Manifest> manifest = CheckAll(files, found.folder, sha256, on_read);
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
