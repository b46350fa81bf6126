// What checkpoints need of a file system, and no more; the seam at which tests let it fail and crash.
//
// A path is beneath one root: "" (the root), "name" or "folder/name", each a plain name.  Nothing outside the root is
// opened, made or removed, and no symbolic link is followed.  What survives a crash: a file's contents once its Sync
// has returned OK, a folder's entries (made, renamed, removed) once SyncFolder of it has.  After a sync that failed,
// what was written before it counts as lost for ever, whatever a later one says.
// Every call blocks on the disk.  FileSystem is thread-safe, a File has one user at a time.
// Errors: NotFound, AlreadyExists, ResourceExhausted (no space), Unavailable (the disk fails), DataLoss (a file ends
// early), PermissionDenied (links too), InvalidArgument (not such a path, not a regular file), FailedPrecondition
// (locked).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace switchyard::checkpoint {

enum class OpenMode {
  kRead,    // what is there
  kCreate,  // a new file; AlreadyExists if the name is taken
  // Made if it is not there, then emptied, and this File's alone until it is closed: FailedPrecondition "locked by
  // <its contents>" as long as another File, of any process, has it open so.
  kLock,
};

class File {
 public:
  virtual ~File() = default;  // closes it
  virtual absl::StatusOr<int64_t> Size() const = 0;
  // Exactly to.size() bytes from `begin` on.
  virtual absl::Status Read(int64_t begin, absl::Span<char> to) const = 0;
  virtual absl::Status Append(absl::string_view bytes) = 0;
  virtual absl::Status Sync() = 0;
};

struct FolderEntry {
  std::string name;
  bool is_folder = false;
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;
  virtual absl::StatusOr<std::unique_ptr<File>> Open(const std::string& path, OpenMode mode) = 0;
  virtual absl::Status MakeFolder(const std::string& path) = 0;
  // Sorted by name.
  virtual absl::StatusOr<std::vector<FolderEntry>> List(const std::string& folder) = 0;
  // At once or not at all; takes the place of a file `to`, or of an empty folder.
  virtual absl::Status Rename(const std::string& from, const std::string& to) = 0;
  virtual absl::Status Remove(const std::string& path) = 0;  // a file or an empty folder
  virtual absl::Status SyncFolder(const std::string& folder) = 0;
  virtual absl::StatusOr<int64_t> FreeBytes() = 0;
};

// Contents of a file of the root become these, at once or not at all, and stay so once it has returned OK: written and
// synced as `unfinished`, a name beside it that is not taken, which then becomes `name`.  After an error either
// contents may be there, and `unfinished` may stay.
absl::Status ReplaceFile(FileSystem* files, const std::string& name, const std::string& unfinished,
                         absl::string_view contents);

// A whole file.  InvalidArgument "<path>: S bytes, limit L" when it is larger.
absl::StatusOr<std::string> ReadWholeFile(FileSystem* files, const std::string& path, int64_t max_bytes);

// Splits a path into {folder or "", name}; {"", ""} for the root.  InvalidArgument for what is none.
struct CheckpointPath {
  std::string folder;
  std::string name;
};
absl::StatusOr<CheckpointPath> ParseCheckpointPath(const std::string& path);

}  // namespace switchyard::checkpoint
