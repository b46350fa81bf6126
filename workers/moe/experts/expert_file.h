// All experts of a model, packed as matrix products and copies want them, in one file that the workers of a machine
// map: in host memory once, however many workers there are, and there at once when a worker starts again.
//
// The file, in the machine's byte order (it never leaves the machine):
//   0      "SYEXPT01" · u64 state (kComplete, written last) · i64 bytes done so far, process that builds it
//   32     u64 checksum of what follows up to `data` · i64 file bytes, data, stride, experts, identity's length
//   80     identity: text, what the file was made from and for
//   4096   u64 checksum of each expert's bytes [experts]
//   data   expert (layer, id) at data + (layer * E + id) * stride, each a PackedExpert; data and stride are multiples
//          of 2 MiB for experts of 32 MiB and more, else of 4 KiB
// Its name is made of the user and the identity.  It is 0600, and belongs to this user or is refused.  Everybody who
// maps it holds a shared flock on it, who builds it an exclusive one; the others wait as long as that one makes
// progress.  A file that is incomplete, of another identity or length, or whose bytes do not have their checksums is
// built again, never used.
//
// Opening reads all of it once.  In a directory in memory (tmpfs), files of other identities that no process uses are
// removed before one is built.  Immutable once open; thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "workers/moe/experts/packed_expert.h"
#include "workers/tensor/device.h"

namespace switchyard::moe {

struct ExpertFileOptions {
  std::string dir = "/dev/shm";  // made (0700) if it is not there
  std::string weights;           // what tells these weights from others: hash and age of their files
  PackedExpert expert;
  DeviceKind device = DeviceKind::kCpu;         // whose packing
  int num_layers = 0;                           // that have experts
  int num_experts = 0;                          // E
  int64_t available_bytes = INT64_MAX;          // of memory, for a file that is built in memory
  absl::Duration patience = absl::Seconds(60);  // with a builder that makes no progress
};

class ExpertFile {
 public:
  // Told now and then while it waits, builds or reads; false ends it (Cancelled).
  using Progress = absl::FunctionRef<bool(int64_t bytes_done, int64_t bytes_total)>;
  // Where the experts' bytes go while the file is built; all are zero.
  class Places {
   public:
    virtual ~Places() = default;
    virtual char* At(int layer, int expert) = 0;
    // How far it is, for those who wait; from any thread.
    virtual void Report(int64_t bytes_done) = 0;
  };
  using Fill = absl::FunctionRef<absl::Status(Places* places)>;

  // Maps the file, which one process builds by `fill` if it is not there.  Blocks.
  // Errors: ResourceExhausted (room: what it takes, where, what there is), PermissionDenied (somebody else's file),
  // DeadlineExceeded (who builds it stands still), Cancelled, the directory's, fill's.
  static absl::StatusOr<std::unique_ptr<ExpertFile>> Open(const ExpertFileOptions& options, Fill fill,
                                                          Progress progress);
  ~ExpertFile();
  ExpertFile(const ExpertFile&) = delete;
  ExpertFile& operator=(const ExpertFile&) = delete;

  // REQUIRES: layer and expert are the model's.
  const char* At(int layer, int expert) const;
  uint64_t checksum(int layer, int expert) const;  // of its bytes, as they were when the file was made
  // Whoever opens it from now on builds it anew; this and all who have it open keep what they have.  For a file whose
  // bytes turned out to be damaged.  Nothing if another one has its name by now.
  void Discard() const;
  const std::string& path() const { return path_; }
  int64_t bytes() const { return bytes_; }
  bool built() const { return built_; }  // by this Open
  // The whole mapping, for a device's backend to pin.
  const char* data() const { return memory_; }

 private:
  friend class ExpertFileOpening;
  ExpertFile() = default;

  std::string path_;
  int fd_ = -1;  // holds the lock
  const char* memory_ = nullptr;
  int64_t bytes_ = 0, data_ = 0, stride_ = 0;
  int num_layers_ = 0, num_experts_ = 0;
  bool built_ = false;
};

// Removes expert files of this user in `dir` that no process has open, but for `except` (a path).
void RemoveUnusedExpertFiles(const std::string& dir, const std::string& except);

}  // namespace switchyard::moe
