// All experts of a model, packed for matrix products and copies, in one file that the workers of a machine share and
// that is at hand when a worker restarts.  One in memory is mapped, and is there once for all workers.  One on a disk
// may be larger than memory: its experts are read where they are wanted (disk_expert_copier.h).
//
// The file, in the machine's byte order (it never leaves the machine):
//   0      "SYEXPT02" · u64 state (kComplete, written last) · i64 bytes done so far, process that builds it
//   32     u64 checksum of what follows up to `data` · i64 file bytes, data, stride, experts, identity's length
//   80     identity: a text that names the file's source and purpose
//   4096   u64 checksum of each expert's bytes [experts] · of each piece of them [experts][pieces]
//   data   expert (layer, id) at data + (layer * E + id) * stride, each a PackedExpert, and zeros behind it where
//          another layer's is larger; data and stride are multiples of 4 KiB, of 2 MiB for mapped experts of 32 MiB and
//          more
// Its name is made of the user and the identity.  It is 0600, and belongs to this user or is refused.  Processes that
// map it hold a shared flock, its builder an exclusive one; others wait as long as the builder makes progress.  A file
// that is incomplete, of another identity or length, or damaged is built again.
//
// Opening reads all of a mapped file once; of one on a disk only what is before `data`, so who reads experts compares
// their pieces' checksums.  Before a file is built, files of other identities that nobody has open are removed: in
// memory (tmpfs) all of them, on a disk those that were opened longest ago, where the room lacks and they make enough
// of it.  Immutable once open; thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "scheduler/base/check.h"
#include "scheduler/base/io/unique_fd.h"
#include "workers/moe/experts/packed_expert.h"
#include "workers/tensor/device.h"

namespace switchyard::moe {

class ExpertFileMapping;
struct ExpertFileFormat;

struct ExpertFileOptions {
  std::string dir = "/dev/shm";      // made (0700), and what it is in, if it is missing
  bool on_disk = false;              // not mapped
  int64_t staging_bytes = 64 << 20;  // of memory, through which one on a disk is built; at least a largest expert's
  int64_t piece_bytes = 2 << 20;     // a multiple of 4 KiB
  std::string weights;               // identifies these weights: hash and age of their files
  ExpertForms expert;
  DeviceKind device = DeviceKind::kCpu;         // whose packing
  int num_layers = 0;                           // that have experts
  int num_experts = 0;                          // E
  int64_t available_bytes = INT64_MAX;          // of memory, for a file that is built in memory
  absl::Duration patience = absl::Seconds(60);  // with a builder that makes no progress
};

// Where the experts are in the file.
struct ExpertFileLayout {
  int num_layers = 0, num_experts = 0;
  int64_t bytes = 0, data = 0, stride = 0;
  int64_t piece_bytes = 0, pieces = 0;  // of a largest expert

  // REQUIRES: layer and expert are the model's.
  int64_t IndexOf(int layer, int expert) const {
    SY_CHECK(0 <= layer && layer < num_layers && 0 <= expert && expert < num_experts);
    return int64_t{layer} * num_experts + expert;
  }
  int64_t OffsetOf(int layer, int expert) const { return data + IndexOf(layer, expert) * stride; }
};

class ExpertFile {
 public:
  // Called now and then while Open waits, builds or reads; false ends it (Cancelled).  What was done only grows, all
  // parts of building together; reading a file that is there counts by itself.
  using Progress = absl::FunctionRef<bool(int64_t bytes_done, int64_t bytes_total)>;
  // Where the experts' bytes go while the file is built; all are zero.
  class Places {
   public:
    virtual ~Places() = default;
    // Null: this expert is not wanted in this call of Fill.
    virtual char* At(int layer, int expert) = 0;
    // Publishes how much of this call is done, also to processes that wait; false: it should end (Cancelled).  From one
    // thread at a time.
    virtual bool Report(int64_t bytes_done) = 0;
  };
  // Fills the experts that have a place.  Called once, or several times if all of them are not in memory at once.
  using Fill = absl::FunctionRef<absl::Status(Places* places)>;

  // Maps the file, which one process builds by `fill` if it is missing.  Blocks.
  // Errors: ResourceExhausted (bytes needed and free, where), PermissionDenied (another user's file), DeadlineExceeded
  // (its builder makes no progress), Cancelled, the directory's, fill's.
  static absl::StatusOr<std::unique_ptr<ExpertFile>> Open(const ExpertFileOptions& options, Fill fill,
                                                          Progress progress);
  ~ExpertFile();

  // REQUIRES: it is mapped; layer and expert are the model's, as for the next ones.
  const char* At(int layer, int expert) const {
    SY_CHECK(mapped());
    return memory_ + layout_.OffsetOf(layer, expert);
  }
  int64_t OffsetOf(int layer, int expert) const { return layout_.OffsetOf(layer, expert); }
  uint64_t checksum(int layer, int expert) const;  // of its bytes when the file was made
  // The same of its piece that begins at `offset` of it.
  uint64_t checksum_of_piece(int layer, int expert, int64_t offset) const;
  int64_t piece_bytes() const { return layout_.piece_bytes; }
  int num_layers() const { return layout_.num_layers; }
  int num_experts() const { return layout_.num_experts; }
  // Removes a damaged file, so that the next process to open it builds it anew; those that have it open keep it.  Does
  // nothing if another file has its name by now.
  void Discard() const;
  const std::string& path() const { return path_; }
  int64_t bytes() const { return layout_.bytes; }
  bool built() const { return built_; }  // by this Open
  bool mapped() const { return mapped_; }
  int fd() const { return fd_.get(); }
  // The whole mapping, for a device's backend to pin.  REQUIRES: it is mapped.
  const char* data() const { return memory_; }

 private:
  friend class ExpertFileOpening;
  ExpertFile(const ExpertFileFormat& format, UniqueFd fd, std::unique_ptr<ExpertFileMapping> mapping, bool built);
  uint64_t SumAt(int64_t i) const;  // of the table

  const std::string path_;
  const UniqueFd fd_;  // holds the lock
  const std::unique_ptr<const ExpertFileMapping> mapping_;
  const char* const memory_;
  const ExpertFileLayout layout_;
  const bool mapped_, built_;
};

// Removes expert files of this user in `dir` that no process has open, except one path, until the file system has
// wanted_bytes free, the one that was opened longest ago first; none of them if all would not be enough.  INT64_MAX:
// all.
void RemoveUnusedExpertFiles(const std::string& dir, const std::string& except, int64_t wanted_bytes);

}  // namespace switchyard::moe
