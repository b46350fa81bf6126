// Folders of jobs in the checkpoint root: a checkpoint that has to stay, and the folder of a deleted job.  Block on the
// disk; thread-safe.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "scheduler/base/io/root_dir.h"

namespace switchyard::server {

// Marks a checkpoint of a job (kKeptCheckpoint), so that the job does not remove it when it has newer ones.  Does
// nothing if the folder is no checkpoint of a job.  NotFound: its job has removed it meanwhile; the file system's.
absl::Status KeepCheckpoint(const RootDir& root, const std::string& folder);

// The path from the root to a folder beneath it, links resolved; "" if it is elsewhere or not there.
std::string FolderBeneath(const RootDir& root, const std::string& path);

// Whether `folder`, relative to the root, is the job's or in it.
bool IsOfJob(const std::string& folder, const std::string& id);

// Returns the bytes that this has freed: those of files without another hard link, which a fork would have.  0 if there
// is no folder.  A symbolic link is removed, and what it leads to stays.  The folder gets another name before it loses
// its first file.  Errors: the file system's, after which a part of the folder may be left, which another call removes;
// InvalidArgument for a name that is not plain.
absl::StatusOr<int64_t> RemoveJobFolder(const RootDir& root, const std::string& id);

}  // namespace switchyard::server
