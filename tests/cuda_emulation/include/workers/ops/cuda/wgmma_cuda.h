// The emulation's twin of workers/ops/cuda/wgmma_cuda.h: the same functions, with the descriptors, the swizzle and the
// fragment layout of the PTX ISA.
//
// As late as the hardware may be: sums are NaN from the product's call until WgmmaWait() says that its group is done.
// And as early: operands are read at the call, and a byte of them that changes before the wait ends the kernel, as does
// a product without WgmmaFence() since the last wait, one of less than a warp, sums touched on the way, and cp.async's
// bytes without FenceProxyAsync() (ordinary stores without it go unnoticed).
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "workers/ops/cuda/ptx_cuda.h"

namespace cuda_emulation {

uint64_t WgmmaDescriptor(const void* shared);
uint64_t WgmmaColumnDescriptor(const void* shared, int columns_apart);
// tokens is 64, 96, 128, 160 or 192; d [tokens / 8][4] at least.
void WgmmaIssue(float* d, int tokens, bool bf16, uint64_t a, uint64_t b, bool add);
// The same with a in registers and rows of b that are k; columns is 64 or 128.
void WgmmaIssueRows(float* d, int columns, bool bf16, const uint32_t (&a)[4], uint64_t b, bool add);
void WgmmaFenceIssue();
void WgmmaCommitGroup();
void WgmmaWaitGroups(int groups_left);
void FenceAsyncProxy();
uint32_t SharedOffset(const void* shared);

}  // namespace cuda_emulation

namespace switchyard::ops::cuda {

inline constexpr bool kWgmmaBuilt = true;

inline uint64_t MakeWgmmaDescriptor(const void* shared) { return cuda_emulation::WgmmaDescriptor(shared); }
inline uint64_t MakeWgmmaColumnDescriptor(const void* shared, int columns_apart) {
  return cuda_emulation::WgmmaColumnDescriptor(shared, columns_apart);
}
inline uint64_t AdvanceWgmmaDescriptor(uint64_t descriptor, int bytes) {
  return descriptor + static_cast<uint64_t>(bytes >> 4);
}
inline uint32_t SharedAddress(const void* shared) { return cuda_emulation::SharedOffset(shared); }

inline void FenceProxyAsync() { cuda_emulation::FenceAsyncProxy(); }
inline void WgmmaFence() { cuda_emulation::WgmmaFenceIssue(); }
inline void WgmmaCommit() { cuda_emulation::WgmmaCommitGroup(); }
template <int N>
inline void WgmmaWait() {
  cuda_emulation::WgmmaWaitGroups(N);
}
template <int kBlocks>
inline void WgmmaKeep(float (&)[kBlocks][4]) {}

template <class Elem, int kTokens, int kBlocks>
inline void WgmmaM64K16(float (&d)[kBlocks][4], uint64_t weights, uint64_t tokens, bool add) {
  static_assert(std::is_same_v<Elem, __nv_bfloat16> || std::is_same_v<Elem, __half>);
  static_assert(kTokens >= 64 && kTokens <= 192 && kTokens % 32 == 0 && kTokens <= kBlocks * 8);
  cuda_emulation::WgmmaIssue(d[0], kTokens, std::is_same_v<Elem, __nv_bfloat16>, weights, tokens, add);
}

template <class Elem, int kBlocks>
inline void WgmmaRows(float (&d)[kBlocks][4], const uint32_t (&a)[4], uint64_t columns, bool add) {
  static_assert(std::is_same_v<Elem, __nv_bfloat16> || std::is_same_v<Elem, __half>);
  static_assert(kBlocks == 8 || kBlocks == 16);
  cuda_emulation::WgmmaIssueRows(d[0], kBlocks * 8, std::is_same_v<Elem, __nv_bfloat16>, a, columns, add);
}

}  // namespace switchyard::ops::cuda
