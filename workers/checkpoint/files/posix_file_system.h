// The real FileSystem: a directory of this machine (or one that it mounts), held open by descriptor.
// Files are 0644 and folders 0755 less the umask.  The lock is flock's: it ends with the process, whatever ends it.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "workers/checkpoint/files/file_system.h"

namespace switchyard::checkpoint {

// NotFound or PermissionDenied, with the path, if it is no directory that opens; it is not made.
absl::StatusOr<std::unique_ptr<FileSystem>> OpenPosixFileSystem(const std::string& directory);
// A descriptor of a regular file, which it closes, for reading.  path: for messages.
std::unique_ptr<File> FileOfDescriptor(int fd, const std::string& path);

}  // namespace switchyard::checkpoint
