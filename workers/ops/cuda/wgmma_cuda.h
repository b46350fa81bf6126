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
  const uint32_t low = static_cast<uint32_t>(descriptor) + static_cast<uint32_t>(bytes >> 4);  // never carries
  return (descriptor & 0xFFFFFFFF00000000u) | low;
}

// An operand whose rows are k and lie as above, 64 columns of it; `columns_apart` bytes on follow the next 64.  Steps
// of 16 rows are 2048 bytes apart.
__device__ __forceinline__ uint64_t MakeWgmmaColumnDescriptor(const void* shared, int columns_apart) {
  constexpr uint64_t kLeadingOffset = uint64_t{0x3FFF} << 16;
  return (MakeWgmmaDescriptor(shared) & ~kLeadingOffset) | static_cast<uint64_t>(columns_apart >> 4) << 16;
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
template <int kBlocks>
__device__ __forceinline__ void WgmmaKeep(float (&d)[kBlocks][4]) {
#pragma unroll
  for (int j = 0; j < kBlocks; ++j) {
#pragma unroll
    for (int v = 0; v < 4; ++v) asm volatile("" : "+f"(d[j][v])::"memory");
  }
}

// The sums as operands %0, %1, ... of inline assembly, 32, 48, 64, 80 or 96 of them, and the instruction with all of
// these.
#define SY_WGMMA_NAMES_32                                             \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, " \
  "%15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define SY_WGMMA_NAMES_48 \
  SY_WGMMA_NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define SY_WGMMA_NAMES_64 \
  SY_WGMMA_NAMES_48 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define SY_WGMMA_NAMES_80 \
  SY_WGMMA_NAMES_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define SY_WGMMA_NAMES_96 \
  SY_WGMMA_NAMES_80 ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define SY_WGMMA_BLOCK(j) "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])
#define SY_WGMMA_BLOCKS_4(j) \
  SY_WGMMA_BLOCK(j), SY_WGMMA_BLOCK((j) + 1), SY_WGMMA_BLOCK((j) + 2), SY_WGMMA_BLOCK((j) + 3)
#define SY_WGMMA_SUMS_32 SY_WGMMA_BLOCKS_4(0), SY_WGMMA_BLOCKS_4(4)
#define SY_WGMMA_SUMS_48 SY_WGMMA_SUMS_32, SY_WGMMA_BLOCKS_4(8)
#define SY_WGMMA_SUMS_64 SY_WGMMA_SUMS_48, SY_WGMMA_BLOCKS_4(12)
#define SY_WGMMA_SUMS_80 SY_WGMMA_SUMS_64, SY_WGMMA_BLOCKS_4(16)
#define SY_WGMMA_SUMS_96 SY_WGMMA_SUMS_80, SY_WGMMA_BLOCKS_4(20)
#define SY_WGMMA(shape, type, names, w, t, a, sums)                                                                    \
  asm volatile("{.reg .pred add; setp.ne.b32 add, " a ", 0; wgmma.mma_async.sync.aligned." shape ".f32." type "." type \
               " {" names "}, " w ", " t ", add, 1, 1, 0, 0;}"                                                         \
               : sums                                                                                                  \
               : "l"(weights), "l"(tokens), "r"(static_cast<int>(add)))

// d = weights * tokens + (add ? d : 0), in fp32: weights [64, 16], tokens [kTokens, 16], both along k from shared
// memory.  Of D [64, kTokens], a thread has with w = warp % 4, g = lane / 4, c = lane % 4 * 2:
//   d[j][0..1] = D[16 * w + g][8 * j + c..c + 1]   d[j][2..3] = D[16 * w + g + 8][8 * j + c..c + 1]
// that is, for each j what MmaM16N8K16 would leave.  Blocks beyond kTokens / 8 are left alone.
template <class Elem, int kTokens, int kBlocks>
__device__ __forceinline__ void WgmmaM64K16(float (&d)[kBlocks][4], uint64_t weights, uint64_t tokens, bool add) {
  constexpr bool kBf16 = std::is_same_v<Elem, __nv_bfloat16>;
  static_assert(kBf16 || std::is_same_v<Elem, __half>);
  static_assert(kTokens >= 64 && kTokens <= 192 && kTokens % 32 == 0 && kTokens <= kBlocks * 8);
  if constexpr (!kWgmmaBuilt) {
    __trap();
  } else if constexpr (kTokens == 64 && kBf16) {
    SY_WGMMA("m64n64k16", "bf16", SY_WGMMA_NAMES_32, "%32", "%33", "%34", SY_WGMMA_SUMS_32);
  } else if constexpr (kTokens == 64) {
    SY_WGMMA("m64n64k16", "f16", SY_WGMMA_NAMES_32, "%32", "%33", "%34", SY_WGMMA_SUMS_32);
  } else if constexpr (kTokens == 96 && kBf16) {
    SY_WGMMA("m64n96k16", "bf16", SY_WGMMA_NAMES_48, "%48", "%49", "%50", SY_WGMMA_SUMS_48);
  } else if constexpr (kTokens == 96) {
    SY_WGMMA("m64n96k16", "f16", SY_WGMMA_NAMES_48, "%48", "%49", "%50", SY_WGMMA_SUMS_48);
  } else if constexpr (kTokens == 128 && kBf16) {
    SY_WGMMA("m64n128k16", "bf16", SY_WGMMA_NAMES_64, "%64", "%65", "%66", SY_WGMMA_SUMS_64);
  } else if constexpr (kTokens == 128) {
    SY_WGMMA("m64n128k16", "f16", SY_WGMMA_NAMES_64, "%64", "%65", "%66", SY_WGMMA_SUMS_64);
  } else if constexpr (kTokens == 160 && kBf16) {
    SY_WGMMA("m64n160k16", "bf16", SY_WGMMA_NAMES_80, "%80", "%81", "%82", SY_WGMMA_SUMS_80);
  } else if constexpr (kTokens == 160) {
    SY_WGMMA("m64n160k16", "f16", SY_WGMMA_NAMES_80, "%80", "%81", "%82", SY_WGMMA_SUMS_80);
  } else if constexpr (kBf16) {
    SY_WGMMA("m64n192k16", "bf16", SY_WGMMA_NAMES_96, "%96", "%97", "%98", SY_WGMMA_SUMS_96);
  } else {
    SY_WGMMA("m64n192k16", "f16", SY_WGMMA_NAMES_96, "%96", "%97", "%98", SY_WGMMA_SUMS_96);
  }
}

// d = a * columns + (add ? d : 0) of kBlocks * 8 = 64 or 128 columns: a, the warp's 16 rows by 16 of k, as MmaM16N8K16
// takes it; `columns` of MakeWgmmaColumnDescriptor.  d as above.  No thread touches a until the wait.
#define SY_WGMMA_ROWS(shape, type, names, a0, a1, a2, a3, b, add_, sums)                                         \
  asm volatile("{.reg .pred add; setp.ne.b32 add, " add_ ", 0; wgmma.mma_async.sync.aligned." shape ".f32." type \
               "." type " {" names "}, {" a0 ", " a1 ", " a2 ", " a3 "}, " b ", add, 1, 1, 1;}"                  \
               : sums                                                                                            \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(columns), "r"(static_cast<int>(add)))
template <class Elem, int kBlocks>
__device__ __forceinline__ void WgmmaRows(float (&d)[kBlocks][4], const uint32_t (&a)[4], uint64_t columns, bool add) {
  constexpr bool kBf16 = std::is_same_v<Elem, __nv_bfloat16>;
  static_assert((kBf16 || std::is_same_v<Elem, __half>)&&(kBlocks == 8 || kBlocks == 16));
  if constexpr (!kWgmmaBuilt) {
    __trap();
  } else if constexpr (kBlocks == 8 && kBf16) {
    SY_WGMMA_ROWS("m64n64k16", "bf16", SY_WGMMA_NAMES_32, "%32", "%33", "%34", "%35", "%36", "%37", SY_WGMMA_SUMS_32);
  } else if constexpr (kBlocks == 8) {
    SY_WGMMA_ROWS("m64n64k16", "f16", SY_WGMMA_NAMES_32, "%32", "%33", "%34", "%35", "%36", "%37", SY_WGMMA_SUMS_32);
  } else if constexpr (kBf16) {
    SY_WGMMA_ROWS("m64n128k16", "bf16", SY_WGMMA_NAMES_64, "%64", "%65", "%66", "%67", "%68", "%69", SY_WGMMA_SUMS_64);
  } else {
    SY_WGMMA_ROWS("m64n128k16", "f16", SY_WGMMA_NAMES_64, "%64", "%65", "%66", "%67", "%68", "%69", SY_WGMMA_SUMS_64);
  }
}

#undef SY_WGMMA_ROWS
#undef SY_WGMMA
#undef SY_WGMMA_SUMS_96
#undef SY_WGMMA_SUMS_80
#undef SY_WGMMA_SUMS_64
#undef SY_WGMMA_SUMS_48
#undef SY_WGMMA_SUMS_32
#undef SY_WGMMA_BLOCKS_4
#undef SY_WGMMA_BLOCK
#undef SY_WGMMA_NAMES_96
#undef SY_WGMMA_NAMES_80
#undef SY_WGMMA_NAMES_64
#undef SY_WGMMA_NAMES_48
#undef SY_WGMMA_NAMES_32

}  // namespace switchyard::ops::cuda
