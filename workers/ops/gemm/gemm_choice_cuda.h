// Which CUDA kernel computes a matrix product, with which tile, on how many CTAs: a pure function that can be printed.
//
// Plain C++, for nvcc and for tests without a GPU.  The numbers behind the table of tiles are in
// workers/ops/cuda/gemm_tile_cuda.h.  The choice changes speed; which choices may change a row's bits:
//   deterministic:      only kPlain, or only tiles with one k-chain, and which of the two depends on dtype and k alone,
//                       never on the rows.  All of these tiles add an output's products in the same order by the same
//                       instruction, so a row has the same bits with every m and beside any other rows.
//   not deterministic:  kCublasLt, tiles that split k over warps, and those of wgmma come in.  Then a row's bits depend
//                       on the shape.
#pragma once

#include <cstdint>
#include <iosfwd>

#include "workers/ops/core/kernels_cuda.h"

namespace switchyard::ops {

// One shape of the tensor-core kernel: `columns` weight rows by `rows` tokens, k taken `depth` elements a step through
// `stages` buffers of shared memory.  Warps: warps_n * warps_t * warps_k.
struct CudaGemmTile {
  const char* name;
  int columns, rows, depth;
  int warps_n, warps_t, warps_k;  // warps_k > 1: k is split, so not for deterministic products
  int stages;
  int ctas_per_sm;
  bool wgmma = false;    // Hopper's matrix instruction: other sums than the other tiles', so not for deterministic ones
  int store_blocks = 1;  // of 8 tokens that a warp stores together, where there is room for them; 1 without wgmma
};
inline constexpr CudaGemmTile kCudaGemmTiles[] = {
    {"stream16x8_split4", 16, 8, 256, 1, 1, 4, 5, 3},
    {"stream16x8", 16, 8, 128, 1, 1, 1, 8, 4},
    {"stream16x32", 16, 32, 128, 1, 2, 1, 5, 3},
    {"stream64x8", 64, 8, 128, 4, 1, 1, 5, 2},
    {"stream64x16", 64, 16, 128, 4, 1, 1, 5, 2},
    {"stream64x32", 64, 32, 128, 4, 1, 1, 4, 2},
    {"tiles128x64", 128, 64, 64, 4, 2, 1, 4, 2},
    {"tiles128x128", 128, 128, 64, 2, 4, 1, 3, 2},
    {"wgmma256x192", 256, 192, 64, 8, 1, 1, 3, 1, true, 8},
};
inline constexpr int kNumCudaGemmTiles = sizeof(kCudaGemmTiles) / sizeof(kCudaGemmTiles[0]);
// Scratch bytes in which a warp transposes 8 tokens' sums before it stores them (gemm_store_cuda.h).
inline constexpr int64_t kCudaGemmStoreBytes = 640;
// Bytes that each CTA keeps of the experts (GemmPlan): a pointer and two prefix sums.
constexpr int64_t CudaGemmPlanBytes(int64_t experts) { return (experts * 8 + (experts + 1) * 4 * 2 + 15) / 16 * 16; }
// Dynamic shared memory of a CTA: stages (for wgmma they begin at multiples of 1024; CUDA's memory begins at multiples
// of 128), the warps' scratch for stores, partial sums of a split k, and the experts.
constexpr int64_t CudaGemmSharedBytes(const CudaGemmTile& tile, int64_t experts) {
  const int64_t stages = int64_t{2} * tile.stages * (tile.columns + tile.rows) * tile.depth;
  const int64_t store = tile.warps_n * tile.warps_t * tile.warps_k * tile.store_blocks * kCudaGemmStoreBytes;
  const int64_t partial = int64_t{4} * (tile.warps_k - 1) * tile.columns * tile.rows;
  return (tile.wgmma ? 1024 - 128 : 0) + stages + store + partial + CudaGemmPlanBytes(experts);
}
// The plain kernel's: one output a thread.
inline constexpr int kCudaPlainTile = 16;

struct CudaGemmDesc {
  uint8_t dtype = kCudaBf16;
  int64_t m = 0;  // rows; of all experts together, as a bound, if grouped
  int64_t n = 0;  // weight rows (of gate and up together if gated)
  int64_t k = 0;
  int64_t experts = 0;  // 0 = a dense product
  bool gated = false;
  bool deterministic = false;
  bool aligned = true;          // rows of x, w and y begin at multiples of 16 bytes
  bool wgmma = false;           // the device and the program have it
  bool ends_otherwise = false;  // weights have biases of their own, or the activation has bounds
  int num_sms = 132;
  int64_t shared_bytes = 227 << 10;  // the limit of a block of the device; 163 KB on an A100, 99 KB on smaller ones
};

enum class CudaGemmKind : uint8_t { kCublasLt, kTiles, kPlain };

struct CudaGemmConfig {
  CudaGemmKind kind = CudaGemmKind::kPlain;
  int tile = -1;     // of kCudaGemmTiles, for kTiles
  int64_t grid = 0;  // CTAs; 0 for kCublasLt.  CTAs walk over the work, so any number is valid
  // Why not, per candidate; null for the one that was chosen.
  const char* not_cublas = nullptr;
  const char* not_plain = nullptr;
  const char* not_tile[kNumCudaGemmTiles] = {};
};

// REQUIRES: m, n, k >= 1; num_sms >= 1.  ChooseDense: experts == 0; ChooseGrouped: experts >= 1.
CudaGemmConfig ChooseDense(const CudaGemmDesc& desc);
CudaGemmConfig ChooseGrouped(const CudaGemmDesc& desc);
// ChooseDense without cuBLASLt, for products that the library refuses.
CudaGemmConfig ChooseOwnDense(const CudaGemmDesc& desc);

// The kernel for weights of few bits (workers/ops/cuda/few_bits_tile_cuda.h): tiles of 64 or 16 weight rows, k taken
// `groups` blocks of 32 a step; the rest as in CudaGemmTile.
struct CudaBitsTile {
  const char* name;
  int columns, rows, groups;
  int warps_n, warps_t, warps_k;
  int stages, ctas_per_sm;
};
inline constexpr CudaBitsTile kCudaBitsTiles[] = {
    {"bits16x8_split4", 16, 8, 8, 1, 1, 4, 8, 3}, {"bits16x8", 16, 8, 8, 1, 1, 1, 8, 3},
    {"bits16x32", 16, 32, 4, 1, 2, 1, 6, 3},      {"bits64x8", 64, 8, 8, 4, 1, 1, 5, 3},
    {"bits64x32", 64, 32, 4, 4, 1, 1, 4, 3},      {"bits64x128", 64, 128, 2, 4, 2, 1, 4, 2},
};
inline constexpr int kNumCudaBitsTiles = sizeof(kCudaBitsTiles) / sizeof(kCudaBitsTiles[0]);
// A panel's block of 32 k has `scale_sets` scales of each weight row, and `words` words of 4 bytes.
constexpr int CudaBitsBlockBytes(int words, int scale_sets) { return scale_sets * 64 + words * 128; }
// Of it, what 8 weight rows have, in shared memory.
constexpr int CudaBitsOctetBytes(int words, int scale_sets) { return (scale_sets * 16 + words * 32 + 31) / 32 * 32; }
// Of 8 bits half as many are taken, which are as many bytes.
constexpr int CudaBitsGroups(const CudaBitsTile& tile, int words) {
  return words == 8 && tile.groups == 8 ? 4 : tile.groups;
}
constexpr int64_t CudaBitsSharedBytes(const CudaBitsTile& tile, int words, int scale_sets, int64_t experts) {
  const int groups = CudaBitsGroups(tile, words);
  const int weights = (groups * (tile.columns / 8) * CudaBitsOctetBytes(words, scale_sets) + 127) / 128 * 128;
  const int64_t store = tile.warps_n * tile.warps_t * tile.warps_k * kCudaGemmStoreBytes;
  const int64_t partial = int64_t{4} * (tile.warps_k - 1) * tile.columns * tile.rows;
  return int64_t{tile.stages} * (weights + tile.rows * groups * 64) + store + partial + CudaGemmPlanBytes(experts);
}

struct CudaBitsConfig {
  int tile = -1;  // of kCudaBitsTiles; -1: so many experts that none has room beside them
  int64_t grid = 0;
  const char* not_tile[kNumCudaBitsTiles] = {};  // why not; null for the one that was chosen
};
// REQUIRES: bf16 or fp16; format: not kCudaPlainRows.  Bits: as of CudaGemmConfig's tiles.
CudaBitsConfig ChooseBits(const CudaGemmDesc& desc, uint8_t format);

std::ostream& operator<<(std::ostream& out, const CudaGemmDesc& desc);
std::ostream& operator<<(std::ostream& out, const CudaGemmConfig& config);
std::ostream& operator<<(std::ostream& out, const CudaBitsConfig& config);

}  // namespace switchyard::ops
