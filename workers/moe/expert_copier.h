// What moves an expert's bytes into a slot, one chunk at a time: memory to memory here, a device's queue there, delays
// and faults in tests.
//
// Called by an expert store's copy thread alone.
#pragma once

#include <cstdint>
#include <cstring>

#include "absl/status/status.h"
#include "workers/moe/packed_expert.h"

namespace switchyard {

struct ExpertChunk {
  ExpertId id;
  int slot = 0;
  int64_t offset = 0;  // in the expert
  int64_t bytes = 0;
  const char* from = nullptr;  // the host's
  char* to = nullptr;          // the slot's, on the store's device
};

class ExpertCopier {
 public:
  virtual ~ExpertCopier() = default;
  // Blocks until the chunk is in the slot.  An error fails the whole copy: its waiters get it.
  virtual absl::Status Copy(const ExpertChunk& chunk) = 0;
};

// Slots in the host's memory.
class HostExpertCopier : public ExpertCopier {
 public:
  absl::Status Copy(const ExpertChunk& chunk) override {
    std::memcpy(chunk.to, chunk.from, static_cast<size_t>(chunk.bytes));
    return absl::OkStatus();
  }
};

}  // namespace switchyard
