// Gives a fork what it begins with: chooses the parent's checkpoint and makes the fork's folder.  Blocks on the disk;
// thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "scheduler/base/io/root_dir.h"
#include "server/jobs/fork/fork_spec.h"
#include "server/jobs/job.h"

namespace switchyard::server {

// A fork that has its folder and is not yet in the journal.
struct ForkedJob {
  std::string id;
  jobs::JobSpec spec;
  jobs::ForkOrigin origin = {};
  jobs::SavedCheckpoint checkpoint = {};  // in its own folder
  int32_t files_ready = 0;                // packed outputs that it has of its parent
};
// How many packed outputs of the parent, which are still there, hold for a fork with this spec.
int32_t PackedForFork(const RootDir& root, const Job& parent, const jobs::JobSpec& spec);

// Chooses the checkpoint and makes the folder, with the parent's packed data, decisions and losses where they hold for
// the fork.  Errors: FAILED_PRECONDITION: the parent has no checkpoint; NOT_FOUND: none of that step, with the steps
// that there are; INVALID_ARGUMENT: CheckStepsLeft; FAILED_PRECONDITION (DISK_FULL); MakeForkFolder's other ones.
// `give_up`: as in ForkFiles.
absl::StatusOr<ForkedJob> SeedFork(const RootDir& root, const Job& parent, const ForkRequest& request,
                                   const jobs::JobSpec& spec, const std::string& id, int64_t unix_ms,
                                   const std::function<bool()>& give_up = nullptr);

}  // namespace switchyard::server
