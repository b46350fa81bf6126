// Softmax over all experts, then the K largest, of logits or of probability + bias: one warp per token, lane l holds
// logits l, l + 32, l + 64, ...
#include "workers/ops/cuda/rows_cuda.h"

namespace switchyard::ops::cuda {
namespace {

constexpr int kWarpsPerBlock = 4;

template <class Acc>
struct Candidate {
  Acc score;
  int expert;  // 1 << 30: none
};

// NaN is below every number, -Inf included; equal ones: the smaller id first.
template <class Acc>
__device__ bool Before(Candidate<Acc> a, Candidate<Acc> b) {
  if (a.score > b.score || (b.score != b.score && a.score == a.score)) return true;
  if (b.score > a.score || (a.score != a.score && b.score == b.score)) return false;
  return a.expert < b.expert;
}

// The best candidate of the warp, in every lane.  `taken` has bit i for score i of this lane.
template <class Acc, int kPerLane>
__device__ Candidate<Acc> BestOfWarp(const Acc (&scores)[kPerLane], unsigned taken, int experts) {
  const int lane = threadIdx.x % 32;
  Candidate<Acc> best = {.score = Acc(__uint_as_float(0x7fffffffu)), .expert = 1 << 30};
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const Candidate<Acc> next = {.score = scores[i], .expert = lane + 32 * i};
    if (next.expert < experts && (taken >> i & 1u) == 0 && Before(next, best)) best = next;
  }
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    const Candidate<Acc> other = {.score = __shfl_xor_sync(kAllLanes, best.score, distance),
                                  .expert = __shfl_xor_sync(kAllLanes, best.expert, distance)};
    if (Before(other, best)) best = other;
  }
  return best;
}

// Σ e^(logit - max) in the CPU's order (router_cpu.cc): 64 bytes of interleaved sums, then these by halving.
template <class Acc, int kPerLane>
__device__ Acc SumOfExp(const Acc (&logits)[kPerLane], Acc max, int experts) {
  constexpr int kSums = 64 / static_cast<int>(sizeof(Acc));
  const int lane = threadIdx.x % 32;
  Acc sum{0};
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const Acc term = lane + 32 * i < experts ? Exp(Add(logits[i], -max)) : Acc{0};
#pragma unroll
    for (int first = 0; first < 32; first += kSums) {
      sum = Add(sum, __shfl_sync(kAllLanes, term, first + lane % kSums));
    }
  }
#pragma unroll
  for (int distance = kSums / 2; distance > 0; distance /= 2) {
    sum = Add(sum, __shfl_xor_sync(kAllLanes, sum, distance));
  }
  return sum;
}

// Logits -> probabilities, each with its expert's bias.
template <class Acc, int kPerLane>
__device__ void AddBias(const Acc* bias, Acc max, Acc total, int experts, Acc (&scores)[kPerLane]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int e = lane + 32 * i;
    if (e < experts) scores[i] = Add(Exp(Add(scores[i], -max)) / total, bias[e]);
  }
}

template <class Acc>
__device__ void ChooseNobody(int top_k, int32_t* idx, Acc* weights) {
  for (int k = threadIdx.x % 32; k < top_k; k += 32) idx[k] = -1, weights[k] = Acc{0};
}

// num_rows: null = all.  bias [E]: null = none.
template <class Acc, int kPerLane>
__global__ void __launch_bounds__(32 * kWarpsPerBlock)
    RouterKernel(const RouterArgs a, const int32_t* num_rows, const Acc* bias, const int64_t rows) {
  WaitForPrecedingKernel();
  LaunchDependents();
  const int lane = threadIdx.x % 32;
  const int64_t row = int64_t{blockIdx.x} * kWarpsPerBlock + threadIdx.x / 32;
  if (row >= rows) return;
  const int experts = static_cast<int>(a.experts), top_k = static_cast<int>(a.top_k);
  int32_t* idx = a.topk_idx + row * a.idx_stride;
  Acc* weights = static_cast<Acc*>(a.topk_weight) + row * a.weight_stride;
  if (num_rows != nullptr && row >= *num_rows) return ChooseNobody(top_k, idx, weights);

  const Acc* logits = static_cast<const Acc*>(a.logits) + row * a.logits_stride;
  Acc scores[kPerLane];  // the logits at first
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int e = lane + 32 * i;
    scores[i] = e < experts ? logits[e] : Acc{0};
  }
  Candidate<Acc> best = BestOfWarp(scores, 0, experts);
  const Acc max = best.score, total = SumOfExp(scores, max, experts);
  if (bias != nullptr) {
    AddBias(bias, max, total, experts, scores);
    best = BestOfWarp(scores, 0, experts);
  }
  unsigned taken = 0;
  Acc kept{0}, early{0}, late{0};  // lane l keeps the weights of k = l and k = l + 32
  for (int k = 0; k < top_k; ++k) {
    if (k > 0) best = BestOfWarp(scores, taken, experts);
    if (best.expert % 32 == lane) taken |= 1u << (best.expert / 32);
    const Acc w = Exp(Add(bias == nullptr ? best.score : logits[best.expert], -max)) / total;
    kept = Add(kept, w);
    if (lane == 0) idx[k] = best.expert;
    if (lane == k) early = w;
    if (lane + 32 == k) late = w;
  }
  if (lane < top_k) weights[lane] = a.renormalize ? early / kept : early;
  if (lane + 32 < top_k) weights[lane + 32] = a.renormalize ? late / kept : late;
}

// The smallest kPerLane, doubling, that holds all experts.
template <class Acc, int kPerLane = 1>
int Route(const CudaCall& call, const CudaRouterArgs& args, int64_t rows) {
  if constexpr (kPerLane > 32) {
    return cudaErrorInvalidValue;
  } else {
    if (args.router.experts > 32 * kPerLane) return Route<Acc, 2 * kPerLane>(call, args, rows);
    const dim3 grid = Grid((rows + kWarpsPerBlock - 1) / kWarpsPerBlock);
    return Launch(ConfigOf(call, grid, 32 * kWarpsPerBlock), &RouterKernel<Acc, kPerLane>, args.router, args.num_rows,
                  static_cast<const Acc*>(args.bias), rows);
  }
}

}  // namespace

int Router(const CudaCall& call, const CudaRouterArgs& args, int64_t rows) {
  if (rows <= 0) return 0;
  return args.router.dtype == 1 ? Route<double>(call, args, rows) : Route<float>(call, args, rows);
}

}  // namespace switchyard::ops::cuda
