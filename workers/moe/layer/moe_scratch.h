// MoeScratch: memory of the buffers that programs of MoE layers name (scheduler/pipeline/moe_schedule.h), by slot, but
// for what a layer keeps for its backward (moe_saved.h).  The layers of a model take turns, forward and backward.
// Memory grows and is kept.  Plain data; on the CPU or one device.
#pragma once

#include <cstdint>

#include "scheduler/pipeline/moe_schedule.h"
#include "workers/moe/layer/row_scratch.h"
#include "workers/tensor/tensor.h"

namespace switchyard::moe {

// Gradients inside experts.
struct HiddenGradientScratch {
  RowScratch weighted_memory, d_hidden_memory, d_sums_memory;
  TensorView weighted;          // [rows, F] hidden rows times the weights of their pairs
  TensorView d_hidden, d_sums;  // [rows, F], [rows, 2F]
  int64_t bytes() const { return weighted_memory.bytes() + d_hidden_memory.bytes() + d_sums_memory.bytes(); }
};

struct MoeScratch {
  ScratchSlots<RowScratch> inputs, outputs, output_gradients, input_gradients;
  ScratchSlots<HiddenScratch> hidden;
  ScratchSlots<HiddenGradientScratch> hidden_gradients;
  RowScratch sorted_gradients;  // outputs' gradients in the experts' order

  // That have been allocated for this kind.
  int64_t Bytes(pipeline::BufferKind kind) const {
    switch (kind) {
      case pipeline::BufferKind::kInput:
        return inputs.bytes();
      case pipeline::BufferKind::kHidden:
        return hidden.bytes();
      case pipeline::BufferKind::kOutput:
        return outputs.bytes();
      case pipeline::BufferKind::kOutputGradient:
        return output_gradients.bytes() + sorted_gradients.bytes();
      case pipeline::BufferKind::kHiddenGradient:
        return hidden_gradients.bytes();
      case pipeline::BufferKind::kInputGradient:
        return input_gradients.bytes();
    }
    return 0;
  }
};

}  // namespace switchyard::moe
