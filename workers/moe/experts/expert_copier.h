// Interface that moves an expert's bytes into a slot, one chunk at a time: memory to memory here, over a device's queue
// in device_expert_copier.h.  Called by an expert store's copy thread alone.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>

#include "absl/functional/function_ref.h"
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
  const char* from = nullptr;  // the host's
  char* to = nullptr;          // the slot's, on the store's device
  // The slot may be read until this has passed; may be null.  Set in an expert's first chunk.
  std::shared_ptr<const DeviceEvent> after = nullptr;
  int64_t attempt = 0;  // of the copy, or of the look at it
};

// How bytes come from the host's memory.
enum class CopyPath : uint8_t {
  kMemory,              // to slots in the same memory
  kRegisteredReadOnly,  // a device reads them where they are; it could not write
  kRegistered,          // the same; it could
  kPinnedPieces,        // the host copies them to two small pinned pieces, from which a device reads them
};
inline constexpr const char* kCopyPathNames[] = {"memory", "registered_read_only", "registered", "pinned_pieces"};
inline const char* CopyPathName(CopyPath path) { return kCopyPathNames[static_cast<int>(path)]; }

class ExpertCopier {
 public:
  virtual ~ExpertCopier() = default;
  virtual CopyPath path() const { return CopyPath::kMemory; }
  // Blocks until the chunk is in the slot.  An error fails the whole copy: its waiters get it.
  virtual absl::Status Copy(const ExpertChunk& chunk) = 0;
  // The same; runs `beside` once the slot has the bytes, or while a device's queue moves them, unless there is an
  // error.
  virtual absl::Status CopyBeside(const ExpertChunk& chunk, absl::FunctionRef<void()> beside) {
    absl::Status status = Copy(chunk);
    if (status.ok()) beside();
    return status;
  }
  // Looks at a slot's bytes after an earlier copy; chunks as Copy's, with null `from` and `after`.  The copier keeps
  // errors.
  virtual void Recheck(const ExpertChunk&) {}
  // Returns the slot's chunk.bytes where the chunk went, for the host to read until the next call.  Blocks.
  virtual absl::StatusOr<const char*> ReadBack(const ExpertChunk& chunk) { return chunk.to; }
};

// Slots in the host's memory.
class HostExpertCopier : public ExpertCopier {
 public:
  absl::Status Copy(const ExpertChunk& chunk) override {
    std::memcpy(chunk.to, chunk.from, static_cast<size_t>(chunk.bytes));
    return absl::OkStatus();
  }
};

}  // namespace switchyard::moe
