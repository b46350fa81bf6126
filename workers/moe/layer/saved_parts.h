// The rows of a chunk's buffer that a program's kSave and kRestore copy.  Internal to workers/moe/layer.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/pipeline/moe_schedule.h"
#include "workers/moe/layer/activation_offload.h"
#include "workers/moe/layer/moe_saved.h"
#include "workers/tensor/tensor.h"

namespace switchyard::moe {

struct SavedPart {
  OffloadKey key;
  TensorView rows;  // contiguous
};

// None of dispatched rows where all are the rank's own: these are the caller's.
inline std::vector<SavedPart> PartsOf(const pipeline::MicroOp& op, int layer, const MoeSaved::Chunk& chunk) {
  const bool input = op.SlotOf(pipeline::BufferKind::kInput) >= 0;
  const OffloadKey key = {.layer = layer,
                          .buffer = input ? pipeline::BufferKind::kInput : pipeline::BufferKind::kHidden,
                          .chunk = op.chunk};
  if (input)
    return chunk.exchange.holds_rows() ? std::vector<SavedPart>{{key, chunk.exchange.x()}} : std::vector<SavedPart>();
  OffloadKey second = key;
  second.part = 1;
  return {{key, chunk.sums}, {second, chunk.hidden}};
}

inline absl::Span<char> BytesOf(const TensorView& rows) {
  return absl::MakeSpan(static_cast<char*>(rows.raw()),
                        static_cast<size_t>(rows.NumElements() * DTypeBytes(rows.dtype())));
}

// Waits for the op's copies.
inline absl::Status FinishParts(const pipeline::MicroOp& op, int layer, const MoeSaved::Chunk& chunk,
                                ActivationOffload* offload) {
  for (const SavedPart& part : PartsOf(op, layer, chunk)) RETURN_IF_ERROR(offload->Finish(part.key));
  return absl::OkStatus();
}

}  // namespace switchyard::moe
