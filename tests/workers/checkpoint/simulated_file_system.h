// A FileSystem in memory that distinguishes durable contents from others, fails or crashes at the k-th call that
// changes something, and then has contents that a real one may have kept.  Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "workers/checkpoint/files/file_system.h"

namespace switchyard::checkpoint {

// The part of unsynced changes that survives a crash.
enum class CrashState {
  kNothing,
  kEverything,
  kEmptyFiles,       // names, but of contents only what was synced
  kHalfFiles,        // names, and half of the contents that were not synced
  kContentsNoNames,  // contents, but no names
  kRandom,           // some of the changes of each folder, some bytes of each file
};

class SimulatedFileSystem : public FileSystem {
 public:
  SimulatedFileSystem();

  absl::StatusOr<std::unique_ptr<File>> Open(const std::string& path, OpenMode mode) override;
  absl::Status MakeFolder(const std::string& path) override;
  absl::StatusOr<std::vector<FolderEntry>> List(const std::string& folder) override;
  absl::Status Rename(const std::string& from, const std::string& to) override;
  absl::Status Remove(const std::string& path) override;
  absl::Status SyncFolder(const std::string& folder) override;
  absl::StatusOr<int64_t> FreeBytes() override { return free_bytes_; }

  // Calls so far that change something.
  int64_t calls() const { return disk_->calls; }
  // Crashes at the at-th such call, which may append half of its bytes; later calls change nothing.
  void CrashAt(int64_t at) { disk_->crash_at = at; }
  // The at-th such call alone fails, an Append after half its bytes.  What a sync that fails did not sync is lost.
  void FailAt(int64_t at, absl::StatusCode code) {
    disk_->fail_at = at;
    disk_->code = code;
  }
  bool crashed() const { return disk_->crash_at > 0 && disk_->calls >= disk_->crash_at; }
  // The machine comes up again; no lock is held, no fault is planned.
  std::unique_ptr<SimulatedFileSystem> Restart(CrashState state, uint64_t seed = 0) const;
  void set_free_bytes(int64_t bytes) { free_bytes_ = bytes; }
  // A file's contents, to be damaged.  nullptr if it is not there.
  std::string* Contents(const std::string& path);

 private:
  friend class SimulatedFile;
  struct Change {
    std::string erased, set;  // "" = none
    int inode = 0;            // that `set` names
  };
  struct Inode {
    bool is_folder = false;
    // A file: as processes see it; what a sync would make durable; what is.
    std::string live, stable, durable;
    std::map<std::string, int> entries, durable_entries;
    std::vector<Change> pending;  // of a folder, in order
    bool locked = false;
  };
  struct Disk {
    std::map<int, Inode> inodes;
    int64_t calls = 0, crash_at = 0, fail_at = 0;
    absl::StatusCode code = absl::StatusCode::kInternal;
    // Counts a call that changes something; the error if it is to fail.
    absl::Status Step(const std::string& what);
  };

  // The inode of a path; NotFound.
  absl::StatusOr<int> Find(const std::string& path) const;
  // The folder's inode, and the name in it.
  absl::StatusOr<std::pair<int, std::string>> FindPlace(const std::string& path) const;
  void Apply(int folder, const Change& change);
  int NewInode(bool is_folder);

  std::shared_ptr<Disk> disk_;  // owners: this and its open files
  int64_t free_bytes_ = int64_t{1} << 30;
};

}  // namespace switchyard::checkpoint
