// Interface to a file system with the calls that checkpoints need; tests make it fail and crash.
//
// A path is below one root: "" (the root), "name" or "folder/name", each a plain name.  Nothing outside the root is
// opened, made or removed, and no symbolic link is followed.  A file's contents survive a crash once its Sync has
// returned OK, and a folder's entries (made, renamed, removed) once its SyncFolder has.  Writes before a sync that
// failed count as lost, even if a later sync succeeds.
// Every call blocks on the disk.  FileSystem is thread-safe; a File has one user at a time.
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
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace switchyard::checkpoint {

enum class OpenMode {
  kRead,
  kCreate,  // a new file; AlreadyExists if the name is taken
  // Creates the file if there is none, empties it and locks it until it is closed.  FailedPrecondition "locked by <its
  // contents>" while another File, of any process, holds the lock.
  kLock,
};

class File {
 public:
  virtual ~File() = default;  // closes it
  virtual absl::StatusOr<int64_t> Size() const = 0;
  // Reads exactly to.size() bytes from `begin` on.
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
  // Atomic; replaces a file `to`, or an empty folder.
  virtual absl::Status Rename(const std::string& from, const std::string& to) = 0;
  virtual absl::Status Remove(const std::string& path) = 0;  // a file or an empty folder
  virtual absl::Status SyncFolder(const std::string& folder) = 0;
  virtual absl::StatusOr<int64_t> FreeBytes() = 0;
};

// Replaces the contents of a file of the root, atomically and durably: writes and syncs `unfinished`, a free name, then
// renames it to `name`.  After an error either contents may be there, and `unfinished` may stay.
absl::Status ReplaceFile(FileSystem* files, const std::string& name, const std::string& unfinished,
                         absl::string_view contents);

// Reads a whole file.  InvalidArgument "<path>: S bytes, limit L" when it is larger.
absl::StatusOr<std::string> ReadWholeFile(FileSystem* files, const std::string& path, int64_t max_bytes);

// Splits a path into {folder or "", name}; {"", ""} for the root.  InvalidArgument: not such a path.
struct CheckpointPath {
  std::string folder;
  std::string name;
};
absl::StatusOr<CheckpointPath> ParseCheckpointPath(const std::string& path);

}  // namespace switchyard::checkpoint
