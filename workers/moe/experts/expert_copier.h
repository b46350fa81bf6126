// Interface that moves an expert's bytes into a slot in chunks: memory to memory here, over a device's queue in
// device_expert_copier.h, from a disk in disk_expert_copier.h.  Called by an expert store's copy thread alone.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "workers/moe/experts/packed_expert.h"
#include "workers/tensor/device_queue.h"

namespace switchyard::moe {

struct ExpertChunk {
  ExpertId id;
  int slot = 0;
  int64_t offset = 0;  // in the expert
  int64_t bytes = 0;
  const char* from = nullptr;  // the host's; null where the copier itself knows the source
  char* to = nullptr;          // the slot's, on the store's device
  // The slot may be read until this has passed; may be null.  Set in an expert's first chunk.
  std::shared_ptr<const DeviceEvent> after = nullptr;
};

// How bytes come from the host's memory.
enum class CopyPath : uint8_t {
  kMemory,              // to slots in the same memory
  kRegisteredReadOnly,  // a device reads them where they are; it could not write
  kRegistered,          // the same; it could
  kPinnedPieces,        // the host copies them to two small pinned pieces, from which a device reads them
  kDisk,                // a disk writes them to slots in the host's memory, past the page cache
  kDiskCached,          // the same through the page cache, where the file system cannot do without it
};
inline constexpr const char* kCopyPathNames[] = {"memory", "registered_read_only", "registered", "pinned_pieces",
                                                 "disk",   "disk_cached"};
inline const char* CopyPathName(CopyPath path) { return kCopyPathNames[static_cast<int>(path)]; }

class ExpertCopier {
 public:
  // A chunk that is over.  An error fails the whole copy: its waiters get it.
  struct Finished {
    ExpertChunk chunk;
    absl::Status status;
  };

  virtual ~ExpertCopier() = default;
  virtual CopyPath path() const { return CopyPath::kMemory; }
  // How many chunks may be under way at once.  They end in any order.
  virtual int depth() const { return 1; }
  // Begins to copy a chunk.  REQUIRES: fewer than depth() are under way.
  virtual void Start(const ExpertChunk& chunk) = 0;
  // Blocks until one of the chunks that were started is over.  REQUIRES: there is one.
  virtual Finished Await() = 0;

  // Both, where nothing else is under way.
  absl::Status Copy(const ExpertChunk& chunk) {
    Start(chunk);
    return Await().status;
  }
};

// Slots in the host's memory.
class HostExpertCopier : public ExpertCopier {
 public:
  void Start(const ExpertChunk& chunk) override {
    std::memcpy(chunk.to, chunk.from, static_cast<size_t>(chunk.bytes));
    copied_ = chunk;
  }
  Finished Await() override { return {copied_, absl::OkStatus()}; }

 private:
  ExpertChunk copied_;
};

}  // namespace switchyard::moe
