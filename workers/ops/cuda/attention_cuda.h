// The kernels behind cuda::Attention.  Internal to workers/ops: attention_cuda.cu chooses among them.
//
// All enqueue on call.stream and return a cudaError_t; args.sequences names the rows.  "Tensor cores": bf16 or fp16, D
// a multiple of 8 up to 256, 16-byte aligned rows, scale > 0.  All have sinks; rows that go through partial results add
// theirs when the last of these are joined (WithSink in attention_tile_cuda.h).
#pragma once

#include <cstdint>

#include "workers/ops/core/kernels_cuda.h"
#include "workers/ops/cuda/attention_decode_cuda.h"

namespace switchyard::ops::cuda {

// The tiles of sequences.tiles.  A row walks its keys in tiles of 64 that begin at multiples of 64 in absolute
// position, whatever tile of queries it is in.  REQUIRES: what tensor cores take.
int AttentionPrefill(const CudaCall& call, const CudaAttentionArgs& args);

// The same by wgmma.  REQUIRES: TakesWgmma(call.device), D up to 128, not deterministic.
int AttentionPrefillWgmma(const CudaCall& call, const CudaAttentionArgs& args);

// The rows of sequences.decodes.  Each row's keys are cut into splits; partial results go through call.workspace.
// REQUIRES: what tensor cores take.
int AttentionDecode(const CudaCall& call, const CudaAttentionArgs& args);

// Deterministic mode: a position has the same bits as a decode, inside a chunk, and after a preemption.  The rule: its
// keys are cut at multiples of kFixedSplitKeys in absolute position; each split is summed from nothing, in tiles as
// above, by the prefill kernel's arithmetic; sums of splits are joined in rising order (Join).  AttentionPrefill does
// so in one block; AttentionDecode takes a block for each split, by this function, and joins in its merging kernel.
// Sums of splits into launch.partials; outputs at once of rows with one split.
int AttentionDecodeSplits(const CudaCall& call, const CudaAttentionArgs& args, const DecodeLaunch& launch);

// All rows that row_sequence names, of any dtype, D up to 256, alignment and scale, with exact functions; slow.  A row
// walks its keys in tiles of 64 as above.
int AttentionPlain(const CudaCall& call, const CudaAttentionArgs& args);

}  // namespace switchyard::ops::cuda
