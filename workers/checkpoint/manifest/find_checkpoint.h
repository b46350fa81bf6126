// Reads LATEST and manifests from the disk, and finds the checkpoint of a root to continue from: the one that LATEST
// names, else the best of the others.
//
// A checkpoint is valid if its manifest is whole and its files match the manifest; it is never loaded in part or
// unchecked.  Thread-safe; reads only, needs no lock.  Every error names its file.  Does not do: removal of damaged
// checkpoints (the writer does).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "workers/checkpoint/files/file_sums.h"
#include "workers/checkpoint/files/file_system.h"
#include "workers/checkpoint/manifest/manifest.h"

namespace switchyard::checkpoint {

absl::StatusOr<Latest> ReadLatest(FileSystem* files);
// sha256: of the manifest, from LATEST; "": not compared.  Also DataLoss if its step is not that of the folder.
absl::StatusOr<Manifest> ReadManifest(FileSystem* files, const std::string& folder, const std::string& sha256);
// Errors: NotFound, DataLoss, unless all files are there in the sizes that the manifest has.
absl::Status CheckSizes(FileSystem* files, const std::string& folder, const Manifest& manifest);
// The steps that have a folder, in falling order.
absl::StatusOr<std::vector<int64_t>> ListSteps(FileSystem* files);

struct FoundCheckpoint {
  std::string folder;
  Manifest manifest;
  // The faults of better checkpoints, one line each, with file and place.  For a warning that training continues from
  // an older state.
  std::vector<std::string> rejected;
  bool unread = false;  // LATEST or a better one was Unavailable: a later try may find it whole
};

// Reads and compares every byte of the checkpoint that LATEST names, then older ones by falling step, then later ones,
// which another line of training may have left; if LATEST cannot be read, all by falling step. Errors: NotFound if
// there is no checkpoint at all; DataLoss if none is whole, with what is wrong with each; Unavailable if one of them
// could not be read; FailedPrecondition for one of a newer format, which is not passed over; on_read's.
absl::StatusOr<FoundCheckpoint> FindCheckpoint(FileSystem* files, const OnRead& on_read = nullptr);

// Returns the manifest of this checkpoint, or its fault; compares names and sizes, no contents.
absl::StatusOr<Manifest> OpenCheckpoint(FileSystem* files, const std::string& folder, const std::string& sha256 = "");

}  // namespace switchyard::checkpoint
