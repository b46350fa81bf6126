// A folder under which users name files: whatever they write, nothing outside of it is opened.
//
// Names are relative paths (scheduler/jobs/job_spec.h, CheckRelativePath: no "..", no absolute ones).  Symbolic links
// are followed only beneath the root; the kernel sees to it (openat2, Linux 5.6).  Thread-safe after Open. Errors:
// NotFound, InvalidArgument for what leads out, is a folder, a FIFO or a device, PermissionDenied, ResourceExhausted
// for a full disk, Unavailable for a disk that does not answer and where descriptors or memory are short.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "scheduler/base/io/unique_fd.h"

namespace switchyard {

class RootDir {
 public:
  // `what` is for messages: "the dataset root".  InvalidArgument: no folder, or none for us; Unavailable: as above;
  // FailedPrecondition: a kernel or a sandbox without openat2, where names could lead out.
  static absl::StatusOr<RootDir> Open(const std::string& path, const std::string& what);

  // A descriptor of a regular file, for reading; the caller closes it.
  absl::StatusOr<int> OpenFile(const std::string& name) const;
  // Whether OpenFile would open it.
  bool HasFile(const std::string& name) const;
  // A descriptor of a folder (O_DIRECTORY); the caller closes it.
  absl::StatusOr<int> OpenFolder(const std::string& name) const;
  // As open(2) with `flags` and `mode`, beneath the root; the caller looks at what it is.
  absl::StatusOr<int> OpenAs(const std::string& name, int flags, mode_t mode) const;
  // Makes the folders of `name` that are not there (0777 less umask).
  absl::Status MakeFolders(const std::string& name) const;
  // Whole contents of a regular file; InvalidArgument "NAME: S bytes, limit L" of a larger one.
  absl::StatusOr<std::string> ReadSmallFile(const std::string& name, int64_t max_bytes) const;

  const std::string& path() const { return path_; }

 private:
  RootDir(UniqueFd fd, std::string path, std::string what)
      : fd_(std::move(fd)), path_(std::move(path)), what_(std::move(what)) {}
  absl::Status Problem(const std::string& name, int error) const;

  UniqueFd fd_;
  std::string path_, what_;
};

// As openat2(2): opens `name` beneath the folder `root_fd`, links followed only beneath it, or returns -1 with errno.
int OpenBeneath(int root_fd, const std::string& name, int flags, mode_t mode = 0);
// Bytes [0, size) of an open file.  Returns how many came before its end or an error, which *error is then (else 0).
size_t ReadWhole(int fd, char* to, size_t size, int* error);

// InvalidArgument if one of the two folders is the other, or in it, also by way of links: what is written into one
// would be read out of the other.  OK where one is empty or not there.
absl::Status CheckRootsApart(const std::string& a_name, const std::string& a, const std::string& b_name,
                             const std::string& b);
// InvalidArgument "NAME=PATH: …" for what is no folder that this process may write into; OK where it is empty.
absl::Status CheckWritableFolder(const std::string& name, const std::string& path);
// Whether what is written there, or will be once the folder is made, takes memory (tmpfs).
bool IsInMemory(const std::string& path);

}  // namespace switchyard
