// What moves an expert's bytes into a slot, one chunk at a time: memory to memory here, a device's queue in
// device_expert_copier.h, delays and faults in tests.
//
// Called by an expert store's copy thread alone.
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
  // The slot may still be read until this has passed; null: it is not.  Of an expert's first chunk; the others come
  // behind it.
  std::shared_ptr<const DeviceEvent> after = nullptr;
  int64_t attempt = 0;  // of whoever asked for the copy, or for the look at it
};

class ExpertCopier {
 public:
  virtual ~ExpertCopier() = default;
  // Blocks until the chunk is in the slot.  An error fails the whole copy: its waiters get it.
  virtual absl::Status Copy(const ExpertChunk& chunk) = 0;
  // The same, and runs `beside` once the slot has the bytes, or while a device's queue moves them.  Not after an error.
  virtual absl::Status CopyBeside(const ExpertChunk& chunk, absl::FunctionRef<void()> beside) {
    absl::Status status = Copy(chunk);
    if (status.ok()) beside();
    return status;
  }
  // Looks at what is in the slot since an earlier copy; chunks as Copy's, `from` and `after` are null.  An error is the
  // copier's to keep.
  virtual void Recheck(const ExpertChunk&) {}
  // What is in the slot now where the chunk went, for the host to read until the next call; chunk.bytes of it.  Blocks.
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
