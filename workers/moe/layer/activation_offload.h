// Interface of memory for rows that forward saves and backward restores, where a layer's program does so
// (MicroOpKind::kSave, kRestore): a file where activations do not fit into memory.
//
// Copies are started and finished apart, and run beside the caller; those of one key one after the other.  What was
// saved stays until its key is saved again.  Thread-compatible.
#pragma once

#include <compare>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "scheduler/pipeline/moe_schedule.h"

namespace switchyard::moe {

struct OffloadKey {
  int layer = 0;  // among the model's MoE layers
  pipeline::BufferKind buffer = pipeline::BufferKind::kInput;
  int chunk = 0;
  int part = 0;  // of the buffer
  auto operator<=>(const OffloadKey&) const = default;
};

class ActivationOffload {
 public:
  virtual ~ActivationOffload() = default;
  // The memory must stay, and in a restore is undefined, until Finish.
  virtual void StartSave(const OffloadKey& key, absl::Span<const char> from) = 0;
  // REQUIRES: as many bytes were saved.
  virtual void StartRestore(const OffloadKey& key, absl::Span<char> to) = 0;
  // Blocks until the key's copy is done.  Errors: the file's; InvalidArgument: no copy was started.
  virtual absl::Status Finish(const OffloadKey& key) = 0;
  // After an error elsewhere: blocks until no copy is under way; their results are lost.
  virtual void Drain() = 0;
};

}  // namespace switchyard::moe
