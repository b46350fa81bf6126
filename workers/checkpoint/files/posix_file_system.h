// The FileSystem of a directory of this machine (or one that it mounts), which is held open by descriptor.
// Files are 0666 and folders 0777 less the umask.  The lock is flock's: it ends with the process.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "workers/checkpoint/files/file_system.h"

namespace switchyard::checkpoint {

// Opens an existing directory.  NotFound or PermissionDenied, with the path, if it does not open.
absl::StatusOr<std::unique_ptr<FileSystem>> OpenPosixFileSystem(const std::string& directory);
// A File for reading that owns the descriptor of a regular file.  path: for messages.
std::unique_ptr<File> FileOfDescriptor(int fd, const std::string& path);

}  // namespace switchyard::checkpoint
