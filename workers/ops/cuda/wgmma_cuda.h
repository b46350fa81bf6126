// Hopper's matrix products of a warpgroup, wgmma: with ptx_cuda.h the only place with inline assembly.
//
// Only machine code of sm_90a has these instructions; other code is compiled without them, and traps.  The CUDA
// emulation of the tests (tests/cuda_emulation/) has a file of the same name with the same functions.
//
// A warpgroup is four warps, the first of them a multiple of four; all 128 threads call each of these together.  The
// products run on their own after the call, in the order of the calls:
//   1. operands come to shared memory; each thread that wrote some calls FenceProxyAsync(), then all meet at a barrier
//   2. WgmmaFence(), then any number of products, then WgmmaCommit(), which makes them a group
//   3. until WgmmaWait<N>() says that the group is done, no thread writes its operands or touches its sums
//   4. after the wait, WgmmaKeep(sums) before they are read: it holds the compiler back
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "workers/ops/cuda/ptx_cuda.h"

namespace switchyard::ops::cuda {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
inline constexpr bool kWgmmaBuilt = true;
#else
inline constexpr bool kWgmmaBuilt = false;
#endif

// An operand: rows of 64 elements of 16 bits, 128 bytes each, without gaps; chunk c of 16 bytes of row r lies at
// c ^ (r % 8).  REQUIRES: row 0 of the whole tile at a multiple of 1024 bytes, `shared` a row r with r % 8 == 0.
__device__ __forceinline__ uint64_t MakeWgmmaDescriptor(const void* shared) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  constexpr uint64_t kEightRows = uint64_t{1024 >> 4} << 32;
  constexpr uint64_t kUnusedLeadingOffset = uint64_t{1} << 16;
  return (SharedAddress(shared) & 0x3FFFFu) >> 4 | kUnusedLeadingOffset | kEightRows | kSwizzle128;
}
// The same operand `bytes` further on: whole groups of 8 rows, or 32, 64, 96 within the row for the next 16 of k.
__device__ __forceinline__ uint64_t AdvanceWgmmaDescriptor(uint64_t descriptor, int bytes) {
  return descriptor + static_cast<uint64_t>(bytes >> 4);
}

// Makes this thread's writes to shared memory, by ordinary stores or by cp.async that it waited for, visible to the
// tensor cores of all threads that meet it at a later barrier.
__device__ __forceinline__ void FenceProxyAsync() {
  if constexpr (kWgmmaBuilt) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Before the first product and after each wait.
__device__ __forceinline__ void WgmmaFence() {
  if constexpr (kWgmmaBuilt) asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void WgmmaCommit() {
  if constexpr (kWgmmaBuilt) asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until at most the N newest groups are under way.
template <int N>
__device__ __forceinline__ void WgmmaWait() {
  if constexpr (kWgmmaBuilt) asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
__device__ __forceinline__ void WgmmaKeep(float (&d)[16][4]) {
#pragma unroll
  for (int j = 0; j < 16; ++j) {
#pragma unroll
    for (int v = 0; v < 4; ++v) asm volatile("" : "+f"(d[j][v])::"memory");
  }
}

// d = weights * tokens + (add ? d : 0), in fp32: weights [64, 16], tokens [128 or 64, 16], both along k from shared
// memory.  Of D [64, 128 or 64], a thread has with w = warp % 4, g = lane / 4, c = lane % 4 * 2:
//   d[j][0..1] = D[16 * w + g][8 * j + c..c + 1]   d[j][2..3] = D[16 * w + g + 8][8 * j + c..c + 1]
// that is, for each j what MmaM16N8K16 would leave.  64 tokens leave d[8..15] alone.
template <class Elem>
__device__ __forceinline__ void WgmmaM64N128K16(float (&d)[16][4], uint64_t weights, uint64_t tokens, bool add) {
  static_assert(std::is_same_v<Elem, __nv_bfloat16> || std::is_same_v<Elem, __half>);
  if constexpr (!kWgmmaBuilt) {
    __trap();
  } else if constexpr (std::is_same_v<Elem, __nv_bfloat16>) {
    asm volatile(
        "{.reg .pred add; setp.ne.b32 add, %66, 0; "
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "%64, %65, add, 1, 1, 0, 0;}"
        : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]),
          "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]), "+f"(d[3][0]), "+f"(d[3][1]),
          "+f"(d[3][2]), "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]), "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]),
          "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]), "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]),
          "+f"(d[7][0]), "+f"(d[7][1]), "+f"(d[7][2]), "+f"(d[7][3]), "+f"(d[8][0]), "+f"(d[8][1]), "+f"(d[8][2]),
          "+f"(d[8][3]), "+f"(d[9][0]), "+f"(d[9][1]), "+f"(d[9][2]), "+f"(d[9][3]), "+f"(d[10][0]), "+f"(d[10][1]),
          "+f"(d[10][2]), "+f"(d[10][3]), "+f"(d[11][0]), "+f"(d[11][1]), "+f"(d[11][2]), "+f"(d[11][3]),
          "+f"(d[12][0]), "+f"(d[12][1]), "+f"(d[12][2]), "+f"(d[12][3]), "+f"(d[13][0]), "+f"(d[13][1]),
          "+f"(d[13][2]), "+f"(d[13][3]), "+f"(d[14][0]), "+f"(d[14][1]), "+f"(d[14][2]), "+f"(d[14][3]),
          "+f"(d[15][0]), "+f"(d[15][1]), "+f"(d[15][2]), "+f"(d[15][3])
        : "l"(weights), "l"(tokens), "r"(static_cast<int>(add)));
  } else {
    asm volatile(
        "{.reg .pred add; setp.ne.b32 add, %66, 0; "
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "%64, %65, add, 1, 1, 0, 0;}"
        : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]),
          "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]), "+f"(d[3][0]), "+f"(d[3][1]),
          "+f"(d[3][2]), "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]), "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]),
          "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]), "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]),
          "+f"(d[7][0]), "+f"(d[7][1]), "+f"(d[7][2]), "+f"(d[7][3]), "+f"(d[8][0]), "+f"(d[8][1]), "+f"(d[8][2]),
          "+f"(d[8][3]), "+f"(d[9][0]), "+f"(d[9][1]), "+f"(d[9][2]), "+f"(d[9][3]), "+f"(d[10][0]), "+f"(d[10][1]),
          "+f"(d[10][2]), "+f"(d[10][3]), "+f"(d[11][0]), "+f"(d[11][1]), "+f"(d[11][2]), "+f"(d[11][3]),
          "+f"(d[12][0]), "+f"(d[12][1]), "+f"(d[12][2]), "+f"(d[12][3]), "+f"(d[13][0]), "+f"(d[13][1]),
          "+f"(d[13][2]), "+f"(d[13][3]), "+f"(d[14][0]), "+f"(d[14][1]), "+f"(d[14][2]), "+f"(d[14][3]),
          "+f"(d[15][0]), "+f"(d[15][1]), "+f"(d[15][2]), "+f"(d[15][3])
        : "l"(weights), "l"(tokens), "r"(static_cast<int>(add)));
  }
}
template <class Elem>
__device__ __forceinline__ void WgmmaM64N64K16(float (&d)[16][4], uint64_t weights, uint64_t tokens, bool add) {
  static_assert(std::is_same_v<Elem, __nv_bfloat16> || std::is_same_v<Elem, __half>);
  if constexpr (!kWgmmaBuilt) {
    __trap();
  } else if constexpr (std::is_same_v<Elem, __nv_bfloat16>) {
    asm volatile(
        "{.reg .pred add; setp.ne.b32 add, %34, 0; "
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "%32, %33, add, 1, 1, 0, 0;}"
        : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]),
          "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]), "+f"(d[3][0]), "+f"(d[3][1]),
          "+f"(d[3][2]), "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]), "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]),
          "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]), "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]),
          "+f"(d[7][0]), "+f"(d[7][1]), "+f"(d[7][2]), "+f"(d[7][3])
        : "l"(weights), "l"(tokens), "r"(static_cast<int>(add)));
  } else {
    asm volatile(
        "{.reg .pred add; setp.ne.b32 add, %34, 0; "
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "%32, %33, add, 1, 1, 0, 0;}"
        : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]),
          "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]), "+f"(d[3][0]), "+f"(d[3][1]),
          "+f"(d[3][2]), "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]), "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]),
          "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]), "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]),
          "+f"(d[7][0]), "+f"(d[7][1]), "+f"(d[7][2]), "+f"(d[7][3])
        : "l"(weights), "l"(tokens), "r"(static_cast<int>(add)));
  }
}

}  // namespace switchyard::ops::cuda
