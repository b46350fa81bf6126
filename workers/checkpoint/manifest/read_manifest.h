// LATEST and manifests as they are on the disk.  Every error names its file.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "workers/checkpoint/files/file_sums.h"
#include "workers/checkpoint/files/file_system.h"
#include "workers/checkpoint/manifest/manifest.h"

namespace switchyard::checkpoint {

absl::StatusOr<Latest> ReadLatest(FileSystem* files);
// `sha256`: what LATEST says of it; "" = not asked.  Also DataLoss if the manifest is of another step than its folder.
absl::StatusOr<Manifest> ReadManifest(FileSystem* files, const std::string& folder, const std::string& sha256);
// That all files are there in the sizes that the manifest has: NotFound, DataLoss.
absl::Status CheckSizes(FileSystem* files, const std::string& folder, const Manifest& manifest);
// The same of their contents, all of which are read.
absl::Status CheckContents(FileSystem* files, const std::string& folder, const Manifest& manifest,
                           const OnRead& on_read = nullptr);

}  // namespace switchyard::checkpoint
