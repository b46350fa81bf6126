// One tile of a product with weights of few bits on the tensor cores.
//
// Weights are read as they are packed for the CPU (gemm/weight.h, gemm/quantized/quantize_panel.h): panels of 32 weight
// rows, of blocks of 32 k: scales, then `words` rows of 32 words of 4 bytes, a word with numbers of one weight row. Two
// panels after the other (gated: a gate's and its up's) are 64 weight rows, for 4 pieces of 16 rows that an mma takes:
// plain, a half of a panel; gated, 8 rows of each.  A tile has one or all of these pieces.
//
// In shared memory a block lies by octets of 8 weight rows: their scales, then 8 words of each row of words.  A lane
// whose rows are g and g + 8 of a piece reads the words that have k = 16 s + 4 t ... + 3 in step s of two, with
// g = lane / 4 and t = lane % 4; which k a fragment's columns are is free, as long as x has the same, so those four are
// the fragment's columns 2 t, 2 t + 1, 2 t + 8 and 2 t + 9.  Octets are an odd multiple of 32 bytes apart, so that
// neither these reads nor the copies collide in a bank.
//
// Numbers are exact in bf16 and fp16, also without their zero.  A block's products are added up in fp32 by two mma, one
// after the other; a sum begins at +0 and takes blocks in rising order of k: sum = fma(scale, block's sum, sum).  So
// with one chain (warps_k == 1) bits depend on no other row, and on no tile.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "workers/ops/cuda/gemm_tile_cuda.h"
#include "workers/ops/cuda/ptx_cuda.h"

namespace switchyard::ops::cuda {

// How numbers lie and what they mean; formats that differ in the type of scales alone share one.
enum class BitsLayout : uint8_t { kBytes, kNibbles, kNibblesLeast, kFp4, kSix };

template <BitsLayout kLayout>
struct BitsBlock {
  static constexpr bool kLeast = kLayout == BitsLayout::kNibblesLeast, kSix = kLayout == BitsLayout::kSix;
  static constexpr int kWords = kLayout == BitsLayout::kBytes ? 8 : kSix ? 6 : 4;
  static constexpr int kScaleSets = kLeast || kSix ? 2 : 1;  // a block's; the second: least values, or of k from 16 on
  static constexpr int kZero = kLayout == BitsLayout::kBytes     ? 128
                               : kSix                            ? 32
                               : kLayout == BitsLayout::kNibbles ? 8
                                                                 : 0;
  static constexpr int kBytes = kScaleSets * 64 + kWords * 128;
  static constexpr int kOctetBytes = (kScaleSets * 16 + kWords * 32 + 31) / 32 * 32;
  static_assert(kOctetBytes % 64 == 32 && kBytes == CudaBitsBlockBytes(kWords, kScaleSets) &&
                kOctetBytes == CudaBitsOctetBytes(kWords, kScaleSets));
};

// What follows from an entry of kCudaBitsTiles.
template <int kTile, BitsLayout kLayout>
struct BitsShape {
  static constexpr CudaBitsTile kT = kCudaBitsTiles[kTile];
  using Block = BitsBlock<kLayout>;
  static constexpr int kColumns = kT.columns, kRows = kT.rows, kStages = kT.stages;
  static constexpr int kGroups = CudaBitsGroups(kT, Block::kWords);  // blocks of a panel, a stage
  static constexpr int kDepth = kGroups * 32;
  static constexpr int kWarpsN = kT.warps_n, kWarpsT = kT.warps_t, kWarpsK = kT.warps_k;
  static constexpr int kWarps = kWarpsN * kWarpsT * kWarpsK, kThreads = kWarps * 32;
  static constexpr int kMmaColumns = kColumns / 16 / kWarpsN, kMmaRows = kRows / 8 / kWarpsT;
  static constexpr int kOctets = kColumns / 8;
  static constexpr int kWeightBytes = (kGroups * kOctets * Block::kOctetBytes + 127) / 128 * 128;
  static constexpr int kChunks = kDepth / 8;  // of 16 bytes, a row of x
  static constexpr int kStageBytes = kWeightBytes + kRows * kDepth * 2;
  static constexpr int kPartialBytes = (kWarpsK - 1) * kColumns * kRows * 4;
  static constexpr int kFixedBytes = kStages * kStageBytes + kWarps * kStoreScratchBytes + kPartialBytes;
  static_assert(kColumns == 64 || kColumns == 16);
  static_assert(kChunks % 8 == 0 && kGroups % kWarpsK == 0 && kMmaColumns >= 1 && kMmaRows >= 1);
  static_assert(kWarpsK == 1 || (kWarpsN == 1 && kWarpsT == 1));
  static_assert(CudaBitsSharedBytes(kT, Block::kWords, Block::kScaleSets, 256) == kFixedBytes + CudaGemmPlanBytes(256));

  __device__ static constexpr int OctetAt(int group, int octet) {
    return (group * kOctets + octet) * Block::kOctetBytes;
  }
  // Where chunk c of row r of x is: four rows' pairs of chunks lie in different banks.
  __device__ static constexpr int XAt(int row, int chunk) {
    return kWeightBytes + (row * kChunks + (chunk ^ (row & 3) * 2)) * 16;
  }
};

// Moves blocks of one item, and rows of x, from memory to a stage.
template <class Elem, class Shape>
class BitsLoader {
 public:
  using Block = typename Shape::Block;

  __device__ explicit BitsLoader(const GemmProblem& p) : p_(p), groups_((static_cast<int32_t>(p.k) + 31) / 32) {}

  // Prefetches to L2 the blocks that this CTA reads first, before the preceding kernel is done.  Dense products only,
  // as experts are not known yet.
  __device__ void PrefetchFirst() {
    if (p_.weight == nullptr) return;
    weight_ = static_cast<const char*>(p_.weight);
    const int32_t column_tile = static_cast<int32_t>(blockIdx.x / ((p_.rows + Shape::kRows - 1) / Shape::kRows));
    const int32_t panel = Shape::kColumns == 64 ? column_tile * 2 : column_tile / 4 * 2;
    const int64_t bytes = int64_t{min(groups_, (Shape::kStages - 1) * Shape::kGroups)} * Block::kBytes;
    constexpr int kLineBytes = 128;
    for (int i = 0; i < 2 && panel + i < NumPanels(); ++i) {
      for (int64_t at = threadIdx.x * kLineBytes; at < bytes; at += Shape::kThreads * kLineBytes) {
        PrefetchToL2(BlockAt(panel + i, 0) + at);
      }
    }
  }

  __device__ void Aim(const GemmItem& item) {
    item_ = item;
    weight_ = static_cast<const char*>(item.weight);
  }

  // Blocks and elements of [k, k + depth); zeros where there are none.
  __device__ void Load(char* stage, int32_t k) const {
    if constexpr (Shape::kColumns == 64) {
      LoadPanels(stage, k / 32);
    } else {
      LoadPiece(stage, k / 32);
    }
    LoadX(stage, k);
  }

 private:
  static constexpr int kScaleChunks = Block::kScaleSets * 4, kBlockChunks = kScaleChunks + Block::kWords * 8;

  __device__ int32_t NumPanels() const { return p_.gated ? 2 * ((p_.columns + 31) / 32) : (p_.columns + 31) / 32; }
  __device__ const char* BlockAt(int32_t panel, int32_t group) const {
    return weight_ + (int64_t{panel} * groups_ + group) * Block::kBytes;
  }
  __device__ void Copy(char* to, int32_t panel, int32_t group, int offset) const {
    const bool valid = panel < NumPanels() && group < groups_;
    CpAsync16(to, valid ? BlockAt(panel, group) + offset : weight_, valid);
  }

  // Both panels of 64 weight rows: neighbouring threads copy neighbouring bytes.
  __device__ void LoadPanels(char* stage, int32_t first_group) const {
    for (int i = threadIdx.x; i < 2 * Shape::kGroups * kBlockChunks; i += Shape::kThreads) {
      const int chunk = i % kBlockChunks, group = i / kBlockChunks % Shape::kGroups;
      const int panel = i / (kBlockChunks * Shape::kGroups);
      const bool scales = chunk < kScaleChunks;
      const int word_chunk = chunk - kScaleChunks;
      const int octet = scales ? chunk % 4 : word_chunk % 8 / 2;
      const int in_octet = scales ? chunk / 4 * 16 : Block::kScaleSets * 16 + word_chunk / 8 * 32 + word_chunk % 2 * 16;
      Copy(stage + Shape::OctetAt(group, panel * 4 + octet) + in_octet, item_.column_tile * 2 + panel,
           first_group + group, chunk * 16);
    }
  }

  // One piece of 16 weight rows: two octets of a panel, or one of each of two.
  __device__ void LoadPiece(char* stage, int32_t first_group) const {
    constexpr int kOctetChunks = Block::kScaleSets + Block::kWords * 2;
    const int32_t first_panel = item_.column_tile / 4 * 2;
    const int piece = item_.column_tile % 4;
    for (int i = threadIdx.x; i < Shape::kGroups * 2 * kOctetChunks; i += Shape::kThreads) {
      const int chunk = i % kOctetChunks, half = i / kOctetChunks % 2, group = i / (2 * kOctetChunks);
      const int32_t panel = first_panel + (p_.gated ? half : piece / 2);
      const int octet = p_.gated ? piece : piece % 2 * 2 + half;  // of the panel
      const int word_chunk = chunk - Block::kScaleSets;
      const int offset = chunk < Block::kScaleSets
                             ? chunk * 64 + octet * 16
                             : Block::kScaleSets * 64 + word_chunk / 2 * 128 + octet * 32 + word_chunk % 2 * 16;
      Copy(stage + Shape::OctetAt(group, half) + chunk * 16, panel, first_group + group, offset);
    }
  }

  __device__ void LoadX(char* stage, int32_t k) const {
    for (int i = threadIdx.x; i < Shape::kRows * Shape::kChunks; i += Shape::kThreads) {
      const int row = i / Shape::kChunks, chunk = i % Shape::kChunks;
      const int32_t y_row = item_.first_row + row, at = k + chunk * 8;
      const int32_t left = y_row < item_.end_row ? static_cast<int32_t>(p_.k) - at : 0;  // elements that there are
      char* const to = stage + Shape::XAt(row, chunk);
      const Elem* from = static_cast<const Elem*>(p_.x);
      if (left > 0) from += (p_.x_rows != nullptr ? p_.x_rows[y_row] : y_row) * p_.x_stride + at;
      if (p_.x_aligned && (left >= 8 || left <= 0)) {
        CpAsync16(to, from, left > 0);
      } else {
        CopySome(to, from, left);
      }
    }
  }

  // The first `count` of 8 elements from anywhere; zeros for the others.
  __device__ static void CopySome(char* to, const Elem* from, int count) {
    const uint16_t* const bits = reinterpret_cast<const uint16_t*>(from);
    uint32_t words[4] = {};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (i < count) words[i / 2] |= static_cast<uint32_t>(bits[i]) << i % 2 * 16;
    }
    *reinterpret_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
  }

  const GemmProblem& p_;
  const int32_t groups_;
  GemmItem item_ = {};
  const char* weight_ = nullptr;
};

// Two 16-bit numbers of one register.
template <class Elem>
using PairType = std::conditional_t<std::is_same_v<Elem, __half>, __half2, __nv_bfloat162>;
template <class To, class From>
__device__ __forceinline__ To BitsAs(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof(to));
  return to;
}
template <class Elem>
__device__ __forceinline__ uint32_t SubtractPairs(uint32_t a, uint32_t b) {
  return BitsAs<uint32_t>(__hsub2(BitsAs<PairType<Elem>>(a), BitsAs<PairType<Elem>>(b)));
}
template <class Elem>
__device__ __forceinline__ uint32_t MultiplyPairs(uint32_t a, uint32_t b) {
  return BitsAs<uint32_t>(__hmul2(BitsAs<PairType<Elem>>(a), BitsAs<PairType<Elem>>(b)));
}

// The values of bytes 2 h and 2 h + 1, each a stored number, without the format's zero.
template <class Elem, BitsLayout kLayout, int h>
__device__ __forceinline__ uint32_t PairOf(uint32_t bytes) {
  constexpr bool kHalf = std::is_same_v<Elem, __half>;
  constexpr uint32_t kSelect = h == 0 ? 0x4140 : 0x4342;  // these two, each below a byte of the other operand
  if constexpr (kLayout == BitsLayout::kFp4) {
    // Sign, two bits of exponent and one of mantissa to where they are in Elem: 2^127 (fp16: 2^15) times too small to
    // be twice the value.
    const uint32_t codes = __byte_perm(bytes, 0, kSelect);
    const uint32_t small = (codes & 0x00070007u) << (kHalf ? 9 : 6) | (codes & 0x00080008u) << 12;
    return MultiplyPairs<Elem>(small, kHalf ? 0x78007800u : 0x7F007F00u);
  } else if constexpr (kHalf) {  // 1024 + number, less 1024 + zero
    return SubtractPairs<Elem>(__byte_perm(bytes, 0x64646464u, kSelect),
                               0x64006400u + BitsBlock<kLayout>::kZero * 0x10001u);
  } else if constexpr (kLayout != BitsLayout::kBytes) {  // 128 + number, less 128 + zero
    return SubtractPairs<Elem>(__byte_perm(bytes, 0x43434343u, kSelect),
                               0x43004300u + BitsBlock<kLayout>::kZero * 0x10001u);
  } else {  // 128 + the lower 7 bits, less 128 or, where the eighth is not set, 256
    const uint32_t pair = __byte_perm(bytes, 0x43434343u, kSelect);
    return SubtractPairs<Elem>(pair & 0xFF7FFF7Fu, (pair & 0x00800080u) ^ 0x43804380u);
  }
}

// A warp's sums of one item.
template <class Elem, BitsLayout kLayout, class Shape>
class BitsSums : public TileSums<Elem, Shape> {
 public:
  using Base = TileSums<Elem, Shape>;
  using Block = BitsBlock<kLayout>;
  static constexpr int kI = Base::kI, kJ = Base::kJ;

  __device__ explicit BitsSums(const GemmProblem& p)
      : Base(p), g_(this->lane_ / 4), t_(this->lane_ % 4), half_scales_(HasHalfScales(p.format)) {}

  // Adds a stage.
  __device__ void Multiply(const char* stage) {
    if (this->idle_) return;
#pragma unroll 1
    for (int group = this->warp_k_; group < Shape::kGroups; group += Shape::kWarpsK) {
      uint32_t x[2][kJ][2];
#pragma unroll
      for (int s = 0; s < 2; ++s) {
#pragma unroll
        for (int j = 0; j < kJ; ++j) LoadX(stage, group * 4 + s * 2, j, x[s][j]);
      }
#pragma unroll
      for (int i = 0; i < kI; ++i) AddBlock(stage, group, i, x);
    }
  }

 private:
  __device__ static bool HasHalfScales(uint8_t format) {
    return format == kCudaQ8_0 || format == kCudaQ4_0 || format == kCudaQ4_1 || format == kCudaQ6_K;
  }

  __device__ void LoadX(const char* stage, int chunk, int j, uint32_t (&x)[2]) const {
    const int row = (this->warp_t_ * kJ + j) * 8 + g_;
    const uint2 four = *reinterpret_cast<const uint2*>(stage + Shape::XAt(row, chunk + t_ / 2) + t_ % 2 * 8);
    x[0] = four.x, x[1] = four.y;
  }

  // The octet of rows 0 to 7 of this warp's i-th piece (half 0), or of rows 8 to 15.
  __device__ int OctetOf(int i, int half) const {
    if constexpr (Shape::kColumns == 16) return half;
    const int piece = this->warp_n_ * kI + i;
    return this->p_.gated ? piece + 4 * half : 2 * piece + half;
  }

  __device__ float ScaleAt(const char* octet, int set) const {
    const uint16_t bits = *reinterpret_cast<const uint16_t*>(octet + set * 16 + g_ * 2);
    return half_scales_ ? __half2float(__ushort_as_half(bits)) : __uint_as_float(static_cast<uint32_t>(bits) << 16);
  }

  // The stored numbers of row g for this lane's four k of step s, a byte each.
  __device__ uint32_t NumbersAt(const char* octet, int s) const {
    const char* const words = octet + Block::kScaleSets * 16 + g_ * 4;
    const auto word = [&](int row) { return *reinterpret_cast<const uint32_t*>(words + row * 32); };
    if constexpr (kLayout == BitsLayout::kBytes) return word(4 * s + t_);
    const uint32_t lower = word(2 * s + t_ / 2) >> (t_ % 2 * 4) & 0x0F0F0F0Fu;
    if constexpr (!Block::kSix) return lower;
    return lower | (word(4 + s) >> (2 * t_) & 0x03030303u) << 4;
  }

  __device__ void AddBlock(const char* stage, int group, int i, const uint32_t (&x)[2][kJ][2]) {
    const char* const upper = stage + Shape::OctetAt(group, OctetOf(i, 0));
    const char* const lower = stage + Shape::OctetAt(group, OctetOf(i, 1));
    uint32_t w[2][4];
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      const uint32_t of_upper = NumbersAt(upper, s), of_lower = NumbersAt(lower, s);
      w[s][0] = PairOf<Elem, kLayout, 0>(of_upper), w[s][1] = PairOf<Elem, kLayout, 0>(of_lower);
      w[s][2] = PairOf<Elem, kLayout, 1>(of_upper), w[s][3] = PairOf<Elem, kLayout, 1>(of_lower);
    }
    const float scale[2] = {ScaleAt(upper, 0), ScaleAt(lower, 0)};
    float second[2] = {};
    if constexpr (Block::kScaleSets == 2) second[0] = ScaleAt(upper, 1), second[1] = ScaleAt(lower, 1);
#pragma unroll
    for (int j = 0; j < kJ; ++j) {
      float sum[4] = {};
      MmaM16N8K16<Elem>(sum, w[0], x[0][j]);
      if constexpr (Block::kSix) {
        AddScaled(scale, sum, i, j);
        sum[0] = sum[1] = sum[2] = sum[3] = 0;
      }
      MmaM16N8K16<Elem>(sum, w[1], x[1][j]);
      if constexpr (Block::kSix) {
        AddScaled(second, sum, i, j);
      } else {
        AddScaled(scale, sum, i, j);
      }
      if constexpr (Block::kLeast) {
        float of_x[4] = {};  // each row's: the tokens' sums
        constexpr uint32_t kOnes = std::is_same_v<Elem, __half> ? 0x3C003C00u : 0x3F803F80u;
        constexpr uint32_t kAllOnes[4] = {kOnes, kOnes, kOnes, kOnes};
        MmaM16N8K16<Elem>(of_x, kAllOnes, x[0][j]);
        MmaM16N8K16<Elem>(of_x, kAllOnes, x[1][j]);
        AddScaled(second, of_x, i, j);
      }
    }
  }

  __device__ void AddScaled(const float (&scale)[2], const float (&sum)[4], int i, int j) {
    float(&to)[4] = this->sum_[i][j];
    to[0] = fmaf(scale[0], sum[0], to[0]), to[1] = fmaf(scale[0], sum[1], to[1]);
    to[2] = fmaf(scale[1], sum[2], to[2]), to[3] = fmaf(scale[1], sum[3], to[3]);
  }

  const int g_, t_;
  const bool half_scales_;
};

}  // namespace switchyard::ops::cuda
