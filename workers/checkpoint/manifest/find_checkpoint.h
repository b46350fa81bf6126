// Which checkpoint of a root to go on from: the one that LATEST names, else the best of the others.
//
// A checkpoint counts if its manifest is whole and its files are what the manifest says; it is never loaded in part
// or on trust.  Thread-safe; reads only, needs no lock.  Does not do: removal of what is damaged (a writer's matter).
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "workers/checkpoint/files/file_sums.h"
#include "workers/checkpoint/files/file_system.h"
#include "workers/checkpoint/manifest/manifest.h"

namespace switchyard::checkpoint {

enum class CheckpointCheck {
  kSizes,     // manifest, names and sizes
  kContents,  // and every byte, which are all read
};

struct FoundCheckpoint {
  std::string folder;
  Manifest manifest;
  // What was wrong with those that would have been better, one line each, with file and place; "" if LATEST's was
  // taken.  For a warning: training goes on from an older state than it had.
  std::vector<std::string> rejected;
  bool unread = false;  // one of those, or LATEST, could only not be read (Unavailable): another look may find it whole
};

// Tries LATEST's, then older ones by falling step, then those beyond it, which no LATEST ever named or another line of
// training left; if LATEST cannot be read, all by falling step.
// Errors: NotFound if there is no checkpoint at all; DataLoss if none is whole, with what is wrong with each,
// Unavailable if one of them could only not be read; FailedPrecondition for one of a newer format, which is not passed
// over; on_read's.
absl::StatusOr<FoundCheckpoint> FindCheckpoint(FileSystem* files, CheckpointCheck check,
                                               const OnRead& on_read = nullptr);

// This very one, or what is wrong with it.
absl::StatusOr<Manifest> OpenCheckpoint(FileSystem* files, const std::string& folder, CheckpointCheck check);

}  // namespace switchyard::checkpoint
