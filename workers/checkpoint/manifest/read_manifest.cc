#include "workers/checkpoint/manifest/read_manifest.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::checkpoint {
namespace {

absl::Status InFile(absl::string_view path, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
}

}  // namespace

absl::StatusOr<Latest> ReadLatest(FileSystem* files) {
  std::string text;
  ASSIGN_OR_RETURN(text, ReadWholeFile(files, kLatestName, kMaxLatestBytes));
  absl::StatusOr<Latest> latest = DecodeLatest(text);
  if (!latest.ok()) return InFile(kLatestName, latest.status());
  return latest;
}

absl::StatusOr<Manifest> ReadManifest(FileSystem* files, const std::string& folder, const std::string& sha256) {
  const std::string path = absl::StrCat(folder, "/", kManifestName);
  std::string text;
  ASSIGN_OR_RETURN(text, ReadWholeFile(files, path, kMaxManifestBytes));
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
    std::unique_ptr<File> file;
    ASSIGN_OR_RETURN(file, files->Open(path, OpenMode::kRead));
    int64_t size = 0;
    ASSIGN_OR_RETURN(size, file->Size());
    if (size != record.sums.bytes) {
      return absl::DataLossError(absl::StrCat(path, ": ", size, " bytes, its record says ", record.sums.bytes));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckContents(FileSystem* files, const std::string& folder, const Manifest& manifest,
                           const OnRead& on_read) {
  for (const FileRecord& record : manifest.files) {
    RETURN_IF_ERROR(CheckSums(files, absl::StrCat(folder, "/", record.name), record.sums, on_read));
  }
  return absl::OkStatus();
}

}  // namespace switchyard::checkpoint
