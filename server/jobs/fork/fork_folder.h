// The folder of a fork: its parent's checkpoint, so that the parent is only read and may lose its own meanwhile.
//
// A folder is made before its job is in the journal.  Until ConfirmForkFolder it has a file FORKING; a server that
// starts removes the folders with that file that are of no job, so a crash leaves nothing that is taken for a job.
// Files are hard links where the file system has them, else copies: no file of a checkpoint changes in place.  All
// functions block on the disk; thread-safe.  Does not do: checksums, which workers compare when the job starts.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "scheduler/base/io/root_dir.h"

namespace switchyard::server {

inline constexpr char kForking[] = "FORKING";

// The steps of a job's finished checkpoints, in the order in which workers look for one to go on from
// (workers/checkpoint/manifest/find_checkpoint.h): that which LATEST names, those before it, then those after it, which
// an earlier attempt has left or an attempt has found damaged.  None if the job has no folder.
absl::StatusOr<std::vector<int64_t>> ListCheckpoints(const RootDir& root, const std::string& job);

// Files of the job's folder with log probabilities of its reference (jobs::IsReferenceFile).  None if it has no folder.
absl::StatusOr<std::vector<std::string>> ListReferences(const RootDir& root, const std::string& job);

struct ForkFiles {
  std::string parent, fork;            // ids
  int64_t step = 0;                    // of the checkpoint
  std::vector<std::string> also = {};  // files of the parent's folder that the fork gets if they are there
  bool may_link = true;                // false: always copies
  std::function<bool()> give_up = {};  // asked before each file and each MiB of a copy; empty: never
};
struct ForkFolder {
  int64_t checkpoint_bytes = 0;
  std::vector<std::string> also = {};  // those that were there
};
// Makes the fork's folder, durable.  After an error there is none.  Errors: NotFound: the checkpoint is not there, or
// was removed meanwhile; AlreadyExists: the fork's folder; ResourceExhausted: the disk is full; Cancelled: give_up; the
// file system's.
absl::StatusOr<ForkFolder> MakeForkFolder(const RootDir& root, const ForkFiles& files);
// The job is in the journal.
absl::Status ConfirmForkFolder(const RootDir& root, const std::string& fork);
// Logs an error.
void RemoveForkFolder(const RootDir& root, const std::string& fork);
// Returns the folders of forks that were not confirmed and are of no job, which have a job's id as their name and
// ForkFiles' mark; confirms those of jobs.  Logs errors.  REQUIRES: no fork is being made.
std::vector<std::string> FindUnfinishedForks(const RootDir& root,
                                             absl::FunctionRef<bool(const std::string& id)> is_job);

}  // namespace switchyard::server
