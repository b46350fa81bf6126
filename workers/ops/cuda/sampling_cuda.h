// One row's logits as the weights that sampling adds up, and the searches for a place in their running sum.
//
// Only for sampling_cuda.cu.  Weights are e^((x - max) / temperature) as integers, in units of 2^-45: their sums are
// exact (up to 2^18 of them fit 64 bits), so a token depends neither on the order of adding nor on the number of
// threads. A weight below one unit is 0.  "The order" is by falling logit, equal ones by rising id.  All threads of a
// block must call each function together; a block is 2 to 32 warps.
#pragma once

#include <cfloat>

#include "workers/ops/cuda/rows_cuda.h"

namespace switchyard::ops::cuda {

using Mass = unsigned long long;

constexpr int kSampleThreads = 512;  // of 1024 each has too few registers for what it sums
constexpr int kPivots = 7;
constexpr int kListed = 3072;                   // how many of the largest logits fit the list in shared memory
constexpr float kMassUnit = 35184372088832.0f;  // 2^45
constexpr float kWidest = 32.0f;                // e^-32 < 2^-45: nothing so far below the largest has a weight

// Ascending with the number; -0 is +0.  REQUIRES: x is no NaN.
__device__ inline unsigned KeyOf(float x) {
  const unsigned bits = __float_as_uint(__fadd_rn(x, 0.0f));
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ inline float ValueOf(unsigned key) { return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key); }

struct SampleRow {
  const float* __restrict__ logits;  // [V]
  int vocab;
  bool aligned;
  float max, scale;  // scale = 1 / temperature

  __device__ float Weight(float x) const { return Exp(Mul(Add(x, -max), scale)); }
  __device__ Mass MassOf(float x) const { return static_cast<Mass>(Mul(Weight(x), kMassUnit)); }

  // Calls fn(x, id) for the ids of [begin, end) that are this thread's, rising; begin is a multiple of 4.
  template <class Fn>
  __device__ void ForEach(int begin, int end, int thread, int threads, const Fn& fn) const {
    constexpr int kInFlight = 4;  // packs: one at a time, a row would take the latency of each
    const int step = 4 * threads;
    int id = begin + 4 * thread;
    for (; aligned && id + (kInFlight - 1) * step + 4 <= end; id += kInFlight * step) {
      Pack<float, 4> x[kInFlight];
#pragma unroll
      for (int p = 0; p < kInFlight; ++p) x[p] = LoadPack<4>(logits + id + p * step, 4, true);
#pragma unroll
      for (int p = 0; p < kInFlight; ++p) {
#pragma unroll
        for (int i = 0; i < 4; ++i) fn(x[p].at[i], id + p * step + i);
      }
    }
    for (; id < end; id += step) {
      const Pack<float, 4> x = LoadPack<4>(logits + id, end - id, aligned);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (id + i < end) fn(x.at[i], id + i);
      }
    }
  }
};

template <int kCount>
struct Sums {
  Mass mass[kCount] = {};
  int count[kCount] = {};
};
// Mass and count at or above each pivot.
using Sections = Sums<kPivots>;

// The block's sums of `own`, the same in every thread.
template <int kCount>
__device__ Sums<kCount> SumOverBlock(const Sums<kCount>& own) {
  __shared__ Mass mass[kCount][32];
  __shared__ int count[kCount][32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    const Mass m = WarpSum(own.mass[j]);
    const int c = __reduce_add_sync(kAllLanes, own.count[j]);
    if (lane == 0) mass[j][warp] = m, count[j][warp] = c;
  }
  __syncthreads();
  for (int j = warp; j < kCount; j += warps) {
    const Mass m = WarpSum(lane < warps ? mass[j][lane] : Mass{0});
    const int c = __reduce_add_sync(kAllLanes, lane < warps ? count[j][lane] : 0);
    if (lane == 0) mass[j][0] = m, count[j][0] = c;
  }
  __syncthreads();
  Sums<kCount> sum;
#pragma unroll
  for (int j = 0; j < kCount; ++j) sum.mass[j] = mass[j][0], sum.count[j] = count[j][0];
  __syncthreads();  // before the next call writes
  return sum;
}

// The id from `begin`, a multiple of 4, to `end` at which the running sum of measure(x), by rising id, first exceeds
// target.  REQUIRES: it does.
template <class Fn>
__device__ int FindById(const SampleRow& row, int begin, int end, Mass target, const Fn& measure) {
  __shared__ Mass of_warp[32];
  __shared__ int found;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  // Each round leaves the part of one warp.
  while (end - begin > 128) {
    const int part = ((end - begin + warps - 1) / warps + 127) / 128 * 128;
    Mass sum = 0;
    row.ForEach(begin + warp * part, min(begin + (warp + 1) * part, end), lane, 32,
                [&](float x, int) { sum += measure(x); });
    sum = WarpSum(sum);
    if (lane == 0) of_warp[warp] = sum;
    __syncthreads();
    int w = 0;
    for (; w + 1 < warps && of_warp[w] <= target; ++w) target -= of_warp[w];
    begin += w * part;
    end = min(begin + part, end);
    __syncthreads();
  }
  if (warp == 0) {
    const int first = begin + 4 * lane;
    const Pack<float, 4> x = LoadPack<4>(row.logits + first, end - first, row.aligned);
    Mass upto[4] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      upto[i] = (i > 0 ? upto[i - 1] : 0) + (first + i < end ? measure(x.at[i]) : 0);
    }
    Mass before = upto[3];
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const Mass other = __shfl_up_sync(kAllLanes, before, distance);
      if (lane >= distance) before += other;
    }
    before -= upto[3];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (before + (i > 0 ? upto[i - 1] : 0) <= target && target < before + upto[i]) found = first + i;
    }
  }
  __syncthreads();
  return found;
}

// The largest logits, in no order.
struct ListedLogit {
  float x;
  int id;
};
struct Listed {
  ListedLogit of[kListed];
  int count;
};

// A place in the order: `rank` logits with this key are before it.
struct Place {
  unsigned key;
  Mass mass_above;  // of all larger logits
  Mass rank;
};

// Finds places in the order of a row's logits with a weight above 0: each round makes an interval of keys eight times
// smaller, until it holds few logits or one key.
class RowOrder {
 public:
  // REQUIRES: first_sections are those of FirstPivot() over the row.  A list that is not empty has all logits with a
  // weight from FirstLow() of the first call of Find() on.
  __device__ RowOrder(const SampleRow& row, const Sections& first_sections, Listed* listed)
      : row_(row), first_(first_sections), listed_(listed), is_listed_(listed != nullptr && listed->count > 0) {}

  // Pivots for the first sections, rising with j: 16, 8, ... 1/4 temperatures below the largest logit.
  __device__ static float FirstPivot(const SampleRow& row, int j) {
    return Add(row.max, -(static_cast<float>(1 << (kPivots - 1 - j)) * 0.25f) / row.scale);
  }

  // The least key of the section in which Find() would go on after its first round; how many logits with a weight are
  // there and above.
  __device__ unsigned FirstLow(Mass target, bool by_mass, int* count) const {
    Bounds b = Whole();
    FirstRound(target, by_mass, &b);
    *count = b.count_from_low;
    return b.low;
  }

  // Where the running sum of masses (by_mass) or ones first exceeds `target`.
  // REQUIRES: it does; after the first call, no place behind those found before.
  __device__ Place Find(Mass target, bool by_mass) {
    Bounds b = Whole();
    FirstRound(target, by_mass, &b);
    for (int round = 0; b.high - b.low > 1; ++round) {
      if (round > 0) {
        unsigned pivots[kPivots];
#pragma unroll
        for (int j = 0; j < kPivots; ++j) pivots[j] = Pivot(b, j, round);
        Descend(Measure(b, pivots), pivots, target, by_mass, &b);
      }
      if (b.count_from_low <= kListed && !is_listed_) List(b.low);
      if (b.count_from_low - b.count <= kFew) FindAmongFew(target, by_mass, &b);
    }
    return {.key = b.low,
            .mass_above = b.mass,
            .rank = by_mass ? (target - b.mass) / row_.MassOf(ValueOf(b.low)) : target - static_cast<Mass>(b.count)};
  }

  // The place's id.  REQUIRES: Find() gave it.
  __device__ int IdOf(const Place& place) const {
    __shared__ int equal[kFew];
    __shared__ int num_equal;
    __shared__ int found;
    if (is_listed_) {
      __syncthreads();
      if (threadIdx.x == 0) num_equal = 0;
      __syncthreads();
      for (int i = threadIdx.x; i < listed_->count; i += blockDim.x) {
        if (KeyOf(listed_->of[i].x) != place.key) continue;
        const int at = atomicAdd(&num_equal, 1);
        if (at < kFew) equal[at] = listed_->of[i].id;
      }
      __syncthreads();
      if (num_equal <= kFew) {
        const int own = static_cast<int>(threadIdx.x);
        int rank = 0;
        for (int i = 0; own < num_equal && i < num_equal; ++i) rank += equal[i] < equal[own];
        if (own < num_equal && static_cast<Mass>(rank) == place.rank) found = equal[own];
        __syncthreads();
        return found;
      }
    }
    return FindById(row_, 0, row_.vocab, place.rank, [&](float x) { return Mass{KeyOf(x) == place.key}; });
  }

 private:
  static constexpr int kFew = kWarpSize;

  // The place's key is in [low, high); mass and count are those of keys from high on.
  struct Bounds {
    unsigned low, high;
    Mass mass;
    int count, count_from_low;
  };

  // Calls fn(x, key, mass) for this thread's share of the logits with keys in [low, high).
  template <class Fn>
  __device__ void ForEachIn(unsigned low, unsigned high, const Fn& fn) const {
    const auto visit = [&](float x) {
      const unsigned key = KeyOf(x);
      if (key < low || key >= high) return;
      const Mass mass = row_.MassOf(x);
      if (mass > 0) fn(x, key, mass);
    };
    if (is_listed_) {
      for (int i = threadIdx.x; i < listed_->count; i += blockDim.x) visit(listed_->of[i].x);
    } else {
      row_.ForEach(0, row_.vocab, threadIdx.x, blockDim.x, [&](float x, int) { visit(x); });
    }
  }

  __device__ Bounds Whole() const {
    const float lowest = fmaxf(Add(row_.max, -kWidest / row_.scale), -FLT_MAX);
    return {.low = KeyOf(lowest), .high = KeyOf(row_.max) + 1, .mass = 0, .count = 0, .count_from_low = row_.vocab};
  }

  __device__ void FirstRound(Mass target, bool by_mass, Bounds* b) const {
    unsigned pivots[kPivots];
#pragma unroll
    for (int j = 0; j < kPivots; ++j) pivots[j] = min(max(KeyOf(FirstPivot(row_, j)), b->low), b->high);
    Descend(first_, pivots, target, by_mass, b);
  }

  // After the first round: by value, where logits are spread evenly; then by key, which halves any interval.
  __device__ unsigned Pivot(const Bounds& b, int j, int round) const {
    if (round < 4) {
      const float part = static_cast<float>(j + 1) / (kPivots + 1);
      const float value = Add(Mul(ValueOf(b.low), 1.0f - part), Mul(ValueOf(b.high), part));
      return min(max(KeyOf(value), b.low), b.high);
    }
    return b.low + static_cast<unsigned>(static_cast<Mass>(b.high - b.low) * (j + 1) / (kPivots + 1));
  }

  // REQUIRES: pivots rise with j.
  __device__ Sections Measure(const Bounds& b, const unsigned (&pivots)[kPivots]) const {
    Sections own;
    ForEachIn(b.low, b.high, [&](float, unsigned key, Mass mass) {
#pragma unroll
      for (int j = 0; j < kPivots; ++j) {
        if (key >= pivots[j]) own.mass[j] += mass, ++own.count[j];
      }
    });
    Sections sum = SumOverBlock(own);
#pragma unroll
    for (int j = 0; j < kPivots; ++j) sum.mass[j] += b.mass, sum.count[j] += b.count;
    return sum;
  }

  // To the section in which the sum passes the target.
  __device__ void Descend(const Sections& sections, const unsigned (&pivots)[kPivots], Mass target, bool by_mass,
                          Bounds* b) const {
    bool passed = false;
#pragma unroll
    for (int j = kPivots - 1; j >= 0; --j) {
      const Mass sum = by_mass ? sections.mass[j] : static_cast<Mass>(sections.count[j]);
      if (passed || pivots[j] >= b->high) continue;
      if (sum > target) {
        b->low = pivots[j];
        b->count_from_low = sections.count[j];
        passed = true;
      } else {
        b->high = pivots[j];
        b->mass = sections.mass[j];
        b->count = sections.count[j];
      }
    }
  }

  // Lists the logits from `low` on; later rounds read the list alone.
  __device__ void List(unsigned low) {
    __syncthreads();
    if (threadIdx.x == 0) listed_->count = 0;
    __syncthreads();
    row_.ForEach(0, row_.vocab, threadIdx.x, blockDim.x, [&](float x, int id) {
      if (KeyOf(x) >= low && row_.MassOf(x) > 0) listed_->of[atomicAdd(&listed_->count, 1)] = {x, id};
    });
    __syncthreads();
    is_listed_ = true;
  }

  // To the one key of the place.  REQUIRES: at most kFew logits in [low, high).
  __device__ void FindAmongFew(Mass target, bool by_mass, Bounds* b) const {
    __shared__ float few[kFew];
    __shared__ int num_few;
    __syncthreads();
    if (threadIdx.x == 0) num_few = 0;
    __syncthreads();
    ForEachIn(b->low, b->high, [&](float x, unsigned, Mass) { few[atomicAdd(&num_few, 1)] = x; });
    __syncthreads();
    // Each warp does the same: lane l asks whether the place is where logit l is.
    const int lane = threadIdx.x % kWarpSize;
    const bool have = lane < num_few;
    const unsigned key = have ? KeyOf(few[lane]) : 0;
    const Mass mass = have ? row_.MassOf(few[lane]) : 0;
    Bounds mine = {.low = key, .high = key + 1, .mass = b->mass, .count = b->count, .count_from_low = b->count};
#pragma unroll 4
    for (int l = 0; l < kFew; ++l) {
      const unsigned other = __shfl_sync(kAllLanes, key, l);
      const Mass other_mass = __shfl_sync(kAllLanes, mass, l);
      if (other > key) mine.mass += other_mass, ++mine.count;
      if (other >= key) ++mine.count_from_low;
    }
    const int equal = mine.count_from_low - mine.count;
    const bool here =
        have && (by_mass ? mine.mass <= target && target < mine.mass + equal * mass
                         : static_cast<Mass>(mine.count) <= target && target < static_cast<Mass>(mine.count_from_low));
    const int at = __ffs(static_cast<int>(__ballot_sync(kAllLanes, here))) - 1;
    b->low = __shfl_sync(kAllLanes, mine.low, at);
    b->high = b->low + 1;
    b->mass = __shfl_sync(kAllLanes, mine.mass, at);
    b->count = __shfl_sync(kAllLanes, mine.count, at);
    b->count_from_low = __shfl_sync(kAllLanes, mine.count_from_low, at);
  }

  const SampleRow& row_;
  const Sections first_;
  Listed* listed_;
  bool is_listed_;
};

}  // namespace switchyard::ops::cuda
