// The paged cache's writes: rows of k and v scattered to their places.  Bound by memory: 16 bytes a thread where sizes
// and addresses allow.
#include <cuda_runtime.h>

#include <cstdint>

#include "workers/ops/core/kernels_cuda.h"
#include "workers/ops/cuda/launch_cuda.h"
#include "workers/ops/cuda/paged_rows_cuda.h"
#include "workers/ops/cuda/ptx_cuda.h"

namespace switchyard::ops::cuda {
namespace {

constexpr int kThreads = 128;

// All of these pointers and byte counts are multiples of `bytes`.
template <class... Number>
bool Divides(int64_t bytes, Number... numbers) {
  return (... && (static_cast<int64_t>(numbers) % bytes == 0));
}

// Block (row): its heads of k and v in pieces of Piece.  Strides in pieces.
template <class Piece>
__global__ void __launch_bounds__(kThreads)
    WriteKvKernel(const CudaKvArgs a, const int64_t k_stride, const int64_t v_stride, const int head_pieces) {
  WaitForPrecedingKernel();
  LaunchDependents();
  const int64_t row = blockIdx.x;
  const RowPlace place = FindRow(a.sequences, row);
  if (place.sequence < 0) return;
  const int64_t to = CacheRow(a, place.sequence, /*kv_head=*/0, place.pos) * head_pieces;
  const int64_t head_step = a.block_size * head_pieces;
  const Piece* __restrict__ k = static_cast<const Piece*>(a.k_rows) + row * k_stride;
  const Piece* __restrict__ v = static_cast<const Piece*>(a.v_rows) + row * v_stride;
  for (int i = threadIdx.x; i < a.kv_heads * head_pieces; i += kThreads) {
    const int64_t at = to + i / head_pieces * head_step + i % head_pieces;
    const Piece key = k[i], value = v[i];
    static_cast<Piece*>(a.k_cache)[at] = key;
    static_cast<Piece*>(a.v_cache)[at] = value;
  }
}

template <class Piece>
int EnqueueWrite(const CudaCall& call, const CudaKvArgs& args) {
  const int64_t elem_bytes = CudaElemBytes(args.dtype), piece = sizeof(Piece);
  return Launch(ConfigOf(call, Grid(args.sequences.rows), kThreads), WriteKvKernel<Piece>, args,
                args.k_stride * elem_bytes / piece, args.v_stride * elem_bytes / piece,
                static_cast<int>(args.head_dim * elem_bytes / piece));
}

}  // namespace

int WriteKv(const CudaCall& call, const CudaKvArgs& args) {
  if (args.sequences.rows == 0) return 0;
  const int64_t bytes = CudaElemBytes(args.dtype);
  const auto fits = [&](int64_t piece) {
    return Divides(piece, reinterpret_cast<intptr_t>(args.k_rows), reinterpret_cast<intptr_t>(args.v_rows),
                   reinterpret_cast<intptr_t>(args.k_cache), reinterpret_cast<intptr_t>(args.v_cache),
                   args.k_stride * bytes, args.v_stride * bytes, args.head_dim * bytes);
  };
  if (fits(16)) return EnqueueWrite<uint4>(call, args);
  if (fits(4)) return EnqueueWrite<uint32_t>(call, args);
  return EnqueueWrite<uint16_t>(call, args);
}

}  // namespace switchyard::ops::cuda
