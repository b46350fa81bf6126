// Removes the folder of a deleted job.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "scheduler/base/io/root_dir.h"

namespace switchyard::server {

// Returns the bytes that this has freed: those of files without another hard link, which a fork would have.  0 if there
// is no folder.  A symbolic link is removed, and what it leads to stays.  Blocks on the disk; thread-safe.  Errors: the
// file system's, after which a part of the folder may be left; InvalidArgument for a name that is not plain.
absl::StatusOr<int64_t> RemoveJobFolder(const RootDir& root, const std::string& id);

}  // namespace switchyard::server
