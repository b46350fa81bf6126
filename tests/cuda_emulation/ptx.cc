// What the twin of ptx_cuda.h does by warps.
#include <cstring>
#include <string>

#include "cuda_emulation/narrow.h"
#include "workers/ops/cuda/ptx_cuda.h"

namespace cuda_emulation {
namespace {

template <float (*kToFloat)(uint16_t)>
float Element(uint32_t pair, int which) {
  return kToFloat(static_cast<uint16_t>(pair >> (16 * which)));
}

template <float (*kToFloat)(uint16_t)>
void Mma(void* const (&lanes)[32], uint32_t mask) {
  if (mask != 0xFFFFFFFFu) ThreadFault(cudaErrorIllegalInstruction, "mma.sync by less than 32 lanes");
  float a[16][16], b[16][8];
  for (int i = 0; i < 32; ++i) {
    const auto* lane = static_cast<const MmaLane*>(lanes[i]);
    const int group = i / 4, column = i % 4 * 2;
    for (int r = 0; r < 4; ++r) {
      for (int e = 0; e < 2; ++e) {
        a[group + r % 2 * 8][column + r / 2 * 8 + e] = Element<kToFloat>(lane->a[r], e);
      }
    }
    for (int r = 0; r < 2; ++r) {
      for (int e = 0; e < 2; ++e) b[column + r * 8 + e][group] = Element<kToFloat>(lane->b[r], e);
    }
  }
  float sums[16][8];
  const auto each = [&](auto function) {
    for (int i = 0; i < 32; ++i) {
      for (int r = 0; r < 4; ++r) {
        function(static_cast<const MmaLane*>(lanes[i])->d[r], sums[i / 4 + r / 2 * 8][i % 4 * 2 + r % 2]);
      }
    }
  };
  each([](float& d, float& sum) { sum = d; });
  for (int row = 0; row < 16; ++row) {
    for (int k = 0; k < 16; ++k) {
      for (int column = 0; column < 8; ++column) sums[row][column] += a[row][k] * b[k][column];
    }
  }
  each([](float& d, float& sum) { d = sum; });
}

struct MatrixLane {
  uint32_t* r;
  const void* row;
};

template <int kMatrices, bool kTransposed>
void LoadTogether(void* const (&lanes)[32], uint32_t mask) {
  if (mask != 0xFFFFFFFFu) ThreadFault(cudaErrorIllegalInstruction, "ldmatrix by less than 32 lanes");
  for (int m = 0; m < kMatrices; ++m) {
    uint16_t matrix[8][8];
    for (int row = 0; row < 8; ++row) {
      const void* address = static_cast<const MatrixLane*>(lanes[m * 8 + row])->row;
      RequireAligned16(address, "ldmatrix");
      std::memcpy(matrix[row], address, 16);
    }
    for (int i = 0; i < 32; ++i) {
      const int row = i / 4, column = i % 4 * 2;
      const uint32_t low = kTransposed ? matrix[column][row] : matrix[row][column];
      const uint32_t high = kTransposed ? matrix[column + 1][row] : matrix[row][column + 1];
      static_cast<const MatrixLane*>(lanes[i])->r[m] = high << 16 | low;
    }
  }
}

}  // namespace

void MmaBf16(void* const (&lanes)[32], uint32_t mask) { Mma<FloatFromBf16>(lanes, mask); }
void MmaHalf(void* const (&lanes)[32], uint32_t mask) { Mma<FloatFromHalf>(lanes, mask); }

void LoadMatrices(uint32_t* r, const void* row, int num_matrices, bool transposed) {
  MatrixLane lane{r, row};
  WarpTogether("ldmatrix", 0xFFFFFFFFu,
               num_matrices == 4 ? (transposed ? &LoadTogether<4, true> : &LoadTogether<4, false>)
                                 : (transposed ? &LoadTogether<2, true> : &LoadTogether<2, false>),
               &lane);
}

void RequireAligned16(const void* address, const char* what) {
  if (reinterpret_cast<uintptr_t>(address) % 16 == 0) return;
  ThreadFault(cudaErrorMisalignedAddress, (std::string(what) + ": address not aligned to 16 bytes").c_str());
}

}  // namespace cuda_emulation
