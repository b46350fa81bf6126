// Tokens: resolves those of the step before from its slots, and draws from logits, one block a row.
#include "workers/ops/cuda/sampling_cuda.h"

namespace switchyard::ops::cuda {
namespace {

constexpr double kGreedyBelow = 1e-5;
constexpr int64_t kMaxVocab = int64_t{1} << 18;

struct ResolveOp {
  const int32_t* __restrict__ planned;  // [count]
  const int32_t* __restrict__ last;     // [slots]
  int32_t* __restrict__ tokens;         // [count]

  __device__ void operator()(int64_t, int64_t i) const {
    const int32_t token = planned[i];
    tokens[i] = token >= 0 ? token : last[-1 - token];
  }
};

// SampleUniform of random.h: Philox4x32-10, key = seed, counter = {index, choice, 0, 0}.
__device__ double Uniform(const uint32_t* random) {
  uint32_t k0 = random[0], k1 = random[1];
  uint32_t c[4] = {random[3], random[2], 0, 0};
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * c[0], b = uint64_t{0xCD9E8D57} * c[2];
    const uint32_t c1 = c[1], c3 = c[3];
    c[0] = static_cast<uint32_t>(b >> 32) ^ c1 ^ k0, c[1] = static_cast<uint32_t>(b);
    c[2] = static_cast<uint32_t>(a >> 32) ^ c3 ^ k1, c[3] = static_cast<uint32_t>(a);
    k0 += 0x9E3779B9, k1 += 0xBB67AE85;
  }
  return static_cast<double>((uint64_t{c[0]} << 32 | c[1]) >> 11) * 0x1p-53;
}

// The largest logit's id, the smallest of equal ones; -1 if there is a NaN or +Inf, or nothing finite.
__device__ int Largest(const SampleRow& row) {
  __shared__ Mass of_warp[32];
  Mass best = 0;
  bool nan = false;
  row.ForEach(0, row.vocab, threadIdx.x, blockDim.x, [&](float x, int id) {
    nan = nan || x != x;
    best = max(best, static_cast<Mass>(KeyOf(x)) << 32 | (0xffffffffu - static_cast<unsigned>(id)));
  });
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) best = max(best, __shfl_xor_sync(kAllLanes, best, distance));
  if (lane == 0) of_warp[threadIdx.x / 32] = best;
  const bool broken = __syncthreads_or(nan) != 0;
  best = lane < static_cast<int>(blockDim.x / 32) ? of_warp[lane] : 0;
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) best = max(best, __shfl_xor_sync(kAllLanes, best, distance));
  const unsigned key = static_cast<unsigned>(best >> 32);
  if (broken || key == 0xff800000u || key == 0x007fffffu) return -1;  // KeyOf(+Inf), KeyOf(-Inf)
  return static_cast<int>(0xffffffffu - static_cast<unsigned>(best));
}

struct Filters {
  int top_k;  // 0 = all
  float top_p, min_p;
};

__device__ Mass TargetOf(double uniform, Mass total) {
  return total == 0 ? 0 : min(static_cast<Mass>(uniform * static_cast<double>(total)), total - 1);
}

// A draw among the tokens of weight >= min_p, by rising id.
__device__ int DrawById(const SampleRow& row, float min_p, double uniform) {
  const auto mass = [&](float x) { return row.Weight(x) >= min_p ? row.MassOf(x) : Mass{0}; };
  Sums<1> own;
  row.ForEach(0, row.vocab, threadIdx.x, blockDim.x, [&](float x, int) { own.mass[0] += mass(x); });
  return FindById(row, TargetOf(uniform, SumOverBlock(own).mass[0]), mass);
}

// A draw in the order of falling logits: each filter keeps a prefix, which its mass describes.
__device__ int DrawInOrder(const SampleRow& row, const Filters& filters, double uniform) {
  __shared__ Listed listed;
  // Besides the sections: all logits with a weight, and those that min_p keeps.
  Sums<kPivots + 2> own;
  row.ForEach(0, row.vocab, threadIdx.x, blockDim.x, [&](float x, int) {
    const Mass mass = row.MassOf(x);
    if (mass == 0) return;
    own.mass[kPivots] += mass, ++own.count[kPivots];
    if (row.Weight(x) >= filters.min_p) own.mass[kPivots + 1] += mass;
#pragma unroll
    for (int j = 0; j < kPivots; ++j) {
      if (KeyOf(x) >= KeyOf(RowOrder::FirstPivot(row, j))) own.mass[j] += mass, ++own.count[j];
    }
  });
  const Sums<kPivots + 2> sums = SumOverBlock(own);
  Sections first;
#pragma unroll
  for (int j = 0; j < kPivots; ++j) first.mass[j] = sums.mass[j], first.count[j] = sums.count[j];

  RowOrder order(row, first, &listed);
  const auto mass_upto = [&](const Place& place) {
    return place.mass_above + (place.rank + 1) * row.MassOf(ValueOf(place.key));
  };
  Mass kept = sums.mass[kPivots];
  if (filters.top_k > 0 && filters.top_k < sums.count[kPivots]) {
    kept = mass_upto(order.Find(static_cast<Mass>(filters.top_k - 1), /*by_mass=*/false));
  }
  if (filters.top_p < 1.0f) {
    const double reached = ceil(static_cast<double>(filters.top_p) * static_cast<double>(kept));
    const Mass target = min(max(static_cast<Mass>(reached), Mass{1}), kept);
    kept = mass_upto(order.Find(target - 1, /*by_mass=*/true));
  }
  kept = min(kept, sums.mass[kPivots + 1]);
  const Place place = order.Find(TargetOf(uniform, kept), /*by_mass=*/true);
  return FindById(row, place.rank, [&](float x) { return Mass{KeyOf(x) == place.key}; });
}

__global__ void __launch_bounds__(kSampleThreads) SampleKernel(const CudaSampleArgs a) {
  WaitForPrecedingKernel();
  LaunchDependents();
  const int64_t i = blockIdx.x;
  SampleRow row = {.logits = a.logits + i * a.logits_stride,
                   .vocab = static_cast<int>(a.vocab),
                   .aligned = reinterpret_cast<uintptr_t>(a.logits) % 16 == 0 && a.logits_stride % 4 == 0,
                   .max = 0,
                   .scale = 0};
  int token = Largest(row);
  const float temperature = a.temperature[i];
  if (token >= 0 && temperature >= kGreedyBelow) {
    row.max = row.logits[token];
    row.scale = 1.0f / temperature;
    const Filters filters = {.top_k = a.top_k[i] < a.vocab ? a.top_k[i] : 0, .top_p = a.top_p[i], .min_p = a.min_p[i]};
    const double uniform = Uniform(a.random + 4 * i);
    const bool in_order = filters.top_k > 0 || filters.top_p < 1.0f;
    token = in_order ? DrawInOrder(row, filters, uniform) : DrawById(row, filters.min_p, uniform);
  }
  if (threadIdx.x != 0) return;
  a.token[i] = token;
  if (a.slot[i] >= 0) a.last[a.slot[i]] = token;
}

}  // namespace

int ResolveTokens(const CudaCall& call, const ResolveTokensArgs& a) {
  return LaunchRows(call, ResolveOp{.planned = a.planned, .last = a.last, .tokens = a.tokens}, 1, a.count);
}

int Sample(const CudaCall& call, const CudaSampleArgs& a) {
  if (a.n <= 0) return 0;
  if (a.vocab < 1 || a.vocab > kMaxVocab) return cudaErrorInvalidValue;
  const int64_t threads = std::clamp<int64_t>(a.vocab / 512 * 32, 64, kSampleThreads);
  return Launch(ConfigOf(call, Grid(a.n), Grid(threads)), &SampleKernel, a);
}

}  // namespace switchyard::ops::cuda
