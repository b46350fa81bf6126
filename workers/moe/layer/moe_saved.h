// The activations that one MoE layer keeps of a forward pass for its backward (LayerContext::saved): the router's
// numbers, routes and, where its program keeps them, received rows and the experts' products before and after the
// activation.
//
// MoeExecutor::Run fills it, MoeBackward::Run reads it, and points it to rows that it restores; each layer (and
// micro-step) has its own.  Keeps neither this rank's own rows, which the caller recomputes cheaply, nor experts'
// outputs.  Memory grows and is kept for the next step.  On the CPU.  Thread-compatible.
#pragma once

#include <memory>
#include <vector>

#include "workers/moe/dispatch/host_dispatcher.h"
#include "workers/moe/layer/row_scratch.h"
#include "workers/tensor/tensor.h"

namespace switchyard::moe {

// Memory of a router's numbers for T rows.
struct GateMemory {
  RowScratch topk_idx, topk_weight, logits;
  RowScratch kept_idx;  // where there is a capacity
};

struct MoeSaved {
  // The part of one micro-batch of the schedule.
  struct Chunk {
    HostDispatcher exchange;
    TensorView sums, hidden;  // [rows, 2F] (GELU: F), [rows, F] model dtype, in expert order; perhaps not kept
  };

  // REQUIRES: chunk was asked for before, or is the next.
  Chunk& chunk(int i) {
    if (static_cast<size_t>(i) == chunks.size()) chunks.push_back(std::make_unique<Chunk>());
    return *chunks[static_cast<size_t>(i)];
  }

  int num_chunks = 0;                               // of the schedule that ran; 0 = none did, or it failed
  bool keeps_inputs = false, keeps_hidden = false;  // of that schedule
  bool gathers_inputs = false;                      // among shards: experts read `gathered`
  TensorView sent_idx;                              // [T, K] int32, -1 if dropped
  TensorView topk_idx, topk_weight, logits;    // [T, K] int32 as chosen, [T, K] AccDType 0 if dropped, [T, E] AccDType
  TensorView shared_sums, shared_hidden;       // [T, 2Fs], [T, Fs] model dtype; rank 0 = no shared expert
  TensorView shared_gate;                      // [T, 1] AccDType: its logit; rank 0 = weight 1
  std::vector<std::unique_ptr<Chunk>> chunks;  // num_chunks of them, or more
  // The slots of the program's buffers that its backward reads as forward left them (MoeSchedule::Keeps).
  ScratchSlots<RowScratch> inputs;
  ScratchSlots<HiddenScratch> hidden;
  GateMemory gate_memory;
  RowScratch gathered;  // inputs of all shards, where the program gathers them
  RowScratch shared_sums_memory, shared_hidden_memory, shared_gate_memory;
};

}  // namespace switchyard::moe
