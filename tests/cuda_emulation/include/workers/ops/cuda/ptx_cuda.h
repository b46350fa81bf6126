// The emulation's twin of workers/ops/cuda/ptx_cuda.h: the same functions, with the fragment layouts of the PTX ISA.
// The tensor cores' sums are made here in fp32 one k after the other; the hardware's order, and its rounding between,
// are its own.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace cuda_emulation {

struct MmaLane {
  float* d;           // [4]
  const uint32_t* a;  // [4]
  const uint32_t* b;  // [2]
};
void MmaBf16(void* const (&lanes)[32], uint32_t mask);
void MmaHalf(void* const (&lanes)[32], uint32_t mask);

// num_matrices is 2 or 4.  Checks that rows are aligned to 16.
void LoadMatrices(uint32_t* r, const void* row, int num_matrices, bool transposed);

// Aborts the kernel with cudaErrorMisalignedAddress if the address is not aligned to 16.
void RequireAligned16(const void* address, const char* what);

}  // namespace cuda_emulation

namespace switchyard::ops::cuda {

template <class Elem>
inline void MmaM16N8K16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  static_assert(std::is_same_v<Elem, __nv_bfloat16> || std::is_same_v<Elem, __half>);
  cuda_emulation::MmaLane lane{d, a, b};
  cuda_emulation::WarpTogether(
      "mma.sync", 0xFFFFFFFFu,
      std::is_same_v<Elem, __nv_bfloat16> ? &cuda_emulation::MmaBf16 : &cuda_emulation::MmaHalf, &lane);
}

inline void LdMatrixX4(uint32_t (&r)[4], const void* shared_row) {
  cuda_emulation::LoadMatrices(r, shared_row, 4, false);
}
inline void LdMatrixX2(uint32_t (&r)[2], const void* shared_row) {
  cuda_emulation::LoadMatrices(r, shared_row, 2, false);
}
inline void LdMatrixX4Trans(uint32_t (&r)[4], const void* shared_row) {
  cuda_emulation::LoadMatrices(r, shared_row, 4, true);
}

inline void CpAsync16(void* shared, const void* global, bool valid) {
  cuda_emulation::AsyncCopyIssue(shared, global, 16, valid);
}
inline void CpAsyncCommit() { cuda_emulation::AsyncCopyCommit(); }
template <int N>
inline void CpAsyncWait() {
  cuda_emulation::AsyncCopyWait(N);
}

inline void WaitForPrecedingKernel() { cuda_emulation::NoteWaitForPrecedingKernel(); }
inline void LaunchDependents() {}

template <class Word>
inline void StoreGlobal(void* global, Word word) {
  if constexpr (sizeof(Word) == 16) cuda_emulation::RequireAligned16(global, "st.global.v4");
  std::memcpy(global, &word, sizeof(word));
}

inline void PrefetchToL2(const void*) {}

inline float Exp2(float x) {
  const float y = std::exp2(x);
  return y < 0x1p-126f ? 0.f : y;
}

}  // namespace switchyard::ops::cuda
