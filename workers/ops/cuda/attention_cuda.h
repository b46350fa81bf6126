// The three kernels behind cuda::Attention.  Internal to workers/ops: attention_cuda.cu chooses among them.
//
// All enqueue on call.stream and return a cudaError_t; args.sequences names the rows.  "Tensor cores": bf16 or fp16, D
// a multiple of 8 up to 256, 16-byte aligned rows, scale > 0.
#pragma once

#include <cstdint>

#include "workers/ops/core/kernels_cuda.h"

namespace switchyard::ops::cuda {

// The tiles of sequences.tiles and, if decodes, those of sequences.decodes as tiles of one query.  A row walks its keys
// in tiles of 64 that begin at multiples of 64 in absolute position, whatever tile of queries it is in.
// REQUIRES: arguments that fit tensor cores.
int AttentionPrefill(const CudaCall& call, const CudaAttentionArgs& args, bool decodes);

// The rows of sequences.decodes.  Each row's keys are cut into splits by their own number alone; partial results go
// through call.workspace.  REQUIRES: arguments that fit tensor cores.
int AttentionDecode(const CudaCall& call, const CudaAttentionArgs& args);

// All rows that row_sequence names, of any dtype, D up to 256, alignment and scale, with exact functions; slow.  A row
// walks its keys in tiles of 64 as above.
int AttentionPlain(const CudaCall& call, const CudaAttentionArgs& args);

}  // namespace switchyard::ops::cuda
