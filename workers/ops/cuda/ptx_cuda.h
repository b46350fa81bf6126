// The PTX instructions that kernels use; with wgmma_cuda.h, which has Hopper's alone, the only place with inline
// assembly.
//
// All from sm_80 on but what says otherwise.  The CUDA emulation of the tests (tests/cuda_emulation/) has a file of the
// same name with the same functions.  A function of a warp must be called by all 32 lanes together.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

namespace switchyard::ops::cuda {

// d += a * b for the warp: a [16, 16] row-major, b [16, 8] column-major, d [16, 8], d in fp32.
// With g = lane / 4 and c = lane % 4 * 2, a lane holds (two 16-bit elements to a register, the lower column first):
//   a[0] = A[g][c..c+1]   a[1] = A[g + 8][c..]   a[2] = A[g][c + 8..]   a[3] = A[g + 8][c + 8..]
//   b[0] = B[c..c+1][g]   b[1] = B[c + 8..c + 9][g]
//   d[0..1] = D[g][c..c+1]   d[2..3] = D[g + 8][c..c+1]
template <class Elem>
__device__ __forceinline__ void MmaM16N8K16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  static_assert(std::is_same_v<Elem, __nv_bfloat16> || std::is_same_v<Elem, __half>);
  if constexpr (std::is_same_v<Elem, __nv_bfloat16>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, "
        "%2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
        "%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
}

__device__ __forceinline__ uint32_t SharedAddress(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

// Loads 8x8 matrices of 16-bit elements for the warp.  Lane i gives the address (aligned to 16) of row i % 8 of matrix
// i / 8; of LdMatrixX2, lanes 0 to 15 do.  Lane i gets in r[m] the elements [i / 4][i % 4 * 2 ..] of matrix m; with
// Trans, of its transpose.
__device__ __forceinline__ void LdMatrixX4(uint32_t (&r)[4], const void* shared_row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(SharedAddress(shared_row))
               : "memory");
}
__device__ __forceinline__ void LdMatrixX2(uint32_t (&r)[2], const void* shared_row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(SharedAddress(shared_row))
               : "memory");
}
__device__ __forceinline__ void LdMatrixX4Trans(uint32_t (&r)[4], const void* shared_row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(SharedAddress(shared_row))
               : "memory");
}

// Copies 16 bytes to shared memory without registers, past L1; zeros if not valid (then `global` is not read, but must
// be aligned). Both aligned to 16.  The bytes are there for this thread after CpAsyncWait, for others after a barrier
// behind it.
__device__ __forceinline__ void CpAsync16(void* shared, const void* global, bool valid) {
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(SharedAddress(shared)), "l"(global), "r"(bytes)
               : "memory");
}
// Closes a group: the copies since the last one.
__device__ __forceinline__ void CpAsyncCommit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most the N newest groups of this thread are under way.
template <int N>
__device__ __forceinline__ void CpAsyncWait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// Programmatic dependent launch (sm_90; nothing below): waits until the kernels before this one on the stream are done
// and their writes visible.  Kernels that call it have no __restrict__ parameters: nvcc reads a const one by a path
// that may see memory as it was before the wait (deploy/ci/check_ptx.sh).
__device__ __forceinline__ void WaitForPrecedingKernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// Permits the launch of the next kernel on the stream, which still waits for this one's end.
__device__ __forceinline__ void LaunchDependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// One store, which the compiler cannot split.  `global` is aligned to the word's size.
__device__ __forceinline__ void StoreGlobal(void* global, uint4 word) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(global), "r"(word.x), "r"(word.y), "r"(word.z),
               "r"(word.w)
               : "memory");
}
__device__ __forceinline__ void StoreGlobal(void* global, uint2 word) {
  asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(global), "r"(word.x), "r"(word.y) : "memory");
}
__device__ __forceinline__ void StoreGlobal(void* global, unsigned word) {
  asm volatile("st.global.u32 [%0], %1;" ::"l"(global), "r"(word) : "memory");
}

// Prefetches the line of 128 bytes around `global` to L2; a hint, which changes no contents.
__device__ __forceinline__ void PrefetchToL2(const void* global) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(global));
}

// 2^x to about 2 ulp; subnormal results are 0.
__device__ __forceinline__ float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace switchyard::ops::cuda
