// Tokens: resolves those of the step before from its slots, and draws from logits.
//
// A row is long (a vocabulary) and rows are few, so a draw is four launches, of which the first three give a row many
// blocks, each a part of it: the largest logit; sums, by how far a logit is below that; a list of the logits that are
// large enough to be kept by a filter; the draw, one block a row.  What one leaves for the next is RowParts.
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

// What is summed of a row: sections, all logits with a weight, those that min_p keeps.
constexpr int kAll = kPivots, kMinP = kPivots + 1, kSummed = kPivots + 2;
using RowSums = Sums<kSummed>;

constexpr int kMaxParts = 32, kPartThreads = 256, kLeastPart = 2048;

// Of one row, in the workspace.
struct RowParts {
  Mass largest[kMaxParts];        // key and complement of the id; kBroken: there is a NaN
  Mass mass[kSummed][kMaxParts];  // a row that is drawn by id has only [0]
  int count[kSummed][kMaxParts];
  int num_listed;  // 0: more than the list takes
  ListedLogit listed[kListed];
};
constexpr Mass kBroken = ~Mass{0};
constexpr int64_t kRowsAtOnce = kCudaWorkspaceBytes / static_cast<int64_t>(sizeof(RowParts));

struct Filters {
  int top_k;  // 0 = all
  float top_p, min_p;
};

__device__ Mass TargetOf(double uniform, Mass total) {
  return total == 0 ? 0 : min(static_cast<Mass>(uniform * static_cast<double>(total)), total - 1);
}

// The mass that top_p keeps of the mass that is left.
__device__ Mass MassOfTopP(float top_p, Mass left) {
  const double reached = ceil(static_cast<double>(top_p) * static_cast<double>(left));
  return min(max(static_cast<Mass>(reached), Mass{1}), left);
}

// How a batch's rows are cut.
struct PartsOfRows {
  CudaSampleArgs a;
  RowParts* rows;  // [n]
  int parts;       // of a row
  int length;      // of a part, but of the last; a multiple of 4
};

// A row behind the first launch.  All threads of a block make it together.
class DrawnRow {
 public:
  __device__ DrawnRow(const PartsOfRows& p, int64_t i) : row_(RowOf(p.a, i)), i_(i) {
    const int lane = threadIdx.x % kWarpSize;
    Mass best = lane < p.parts ? p.rows[i].largest[lane] : 0;
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) best = max(best, __shfl_xor_sync(kAllLanes, best, distance));
    const unsigned key = static_cast<unsigned>(best >> 32);
    const bool broken = best == kBroken || key == 0xff800000u || key == 0x007fffffu;  // KeyOf(+Inf), KeyOf(-Inf)
    largest_ = broken ? -1 : static_cast<int>(0xffffffffu - static_cast<unsigned>(best));
    const float temperature = p.a.temperature[i];
    is_drawn_ = !broken && temperature >= kGreedyBelow;
    row_.max = ValueOf(key);
    row_.scale = 1.0f / temperature;
    filters_ = {.top_k = p.a.top_k[i] < p.a.vocab ? p.a.top_k[i] : 0, .top_p = p.a.top_p[i], .min_p = p.a.min_p[i]};
    uniform_ = Uniform(p.a.random + 4 * i);
  }

  __device__ static SampleRow RowOf(const CudaSampleArgs& a, int64_t i) {
    return {.logits = a.logits + i * a.logits_stride,
            .vocab = static_cast<int>(a.vocab),
            .aligned = reinterpret_cast<uintptr_t>(a.logits) % 16 == 0 && a.logits_stride % 4 == 0,
            .max = 0,
            .scale = 0};
  }

  __device__ int largest() const { return largest_; }  // its id; -1 if there is a NaN or +Inf, or nothing finite
  __device__ bool is_drawn() const { return is_drawn_; }
  __device__ bool in_order() const { return filters_.top_k > 0 || filters_.top_p < 1.0f; }  // else by rising id
  __device__ const SampleRow& row() const { return row_; }

  // The sums of the part from `begin` to `end`.
  __device__ RowSums SumPart(int begin, int end) const {
    RowSums own;
    row_.ForEach(begin, end, threadIdx.x, blockDim.x, [&](float x, int) {
      const Mass mass = row_.MassOf(x);
      if (mass == 0) return;
      const bool kept = row_.Weight(x) >= filters_.min_p;
      if (!in_order()) {
        own.mass[0] += kept ? mass : 0;
        return;
      }
      own.mass[kAll] += mass, ++own.count[kAll];
      if (kept) own.mass[kMinP] += mass;
#pragma unroll
      for (int j = 0; j < kPivots; ++j) {
        if (KeyOf(x) >= KeyOf(RowOrder::FirstPivot(row_, j))) own.mass[j] += mass, ++own.count[j];
      }
    });
    return SumOverBlock(own);
  }

  // REQUIRES: in_order().  The least key that a list must have, and how many logits it then has.
  __device__ unsigned FirstListed(const RowSums& sums, int* count) const {
    const RowOrder order(row_, SectionsOf(sums), nullptr);
    if (CutsTopK(sums)) return order.FirstLow(static_cast<Mass>(filters_.top_k - 1), /*by_mass=*/false, count);
    if (filters_.top_p < 1.0f) {
      return order.FirstLow(MassOfTopP(filters_.top_p, sums.mass[kAll]) - 1, /*by_mass=*/true, count);
    }
    return order.FirstLow(TargetOf(uniform_, min(sums.mass[kAll], sums.mass[kMinP])), /*by_mass=*/true, count);
  }

  // REQUIRES: in_order().  A draw in the order of falling logits: each filter keeps a prefix, which its mass describes.
  __device__ int DrawInOrder(const RowSums& sums, Listed* listed) const {
    RowOrder order(row_, SectionsOf(sums), listed);
    const auto mass_upto = [&](const Place& place) {
      return place.mass_above + (place.rank + 1) * row_.MassOf(ValueOf(place.key));
    };
    Mass kept = sums.mass[kAll];
    if (CutsTopK(sums)) kept = mass_upto(order.Find(static_cast<Mass>(filters_.top_k - 1), /*by_mass=*/false));
    if (filters_.top_p < 1.0f) {
      kept = mass_upto(order.Find(MassOfTopP(filters_.top_p, kept) - 1, /*by_mass=*/true));
    }
    kept = min(kept, sums.mass[kMinP]);
    return order.IdOf(order.Find(TargetOf(uniform_, kept), /*by_mass=*/true));
  }

  // REQUIRES: not in_order().  A draw among the tokens of weight >= min_p, by rising id.
  __device__ int DrawById(const PartsOfRows& p) const {
    const Mass* const mass = p.rows[i_].mass[0];
    Mass total = 0;
    for (int part = 0; part < p.parts; ++part) total += mass[part];
    Mass target = TargetOf(uniform_, total);
    int part = 0;
    for (; part + 1 < p.parts && mass[part] <= target; ++part) target -= mass[part];
    return FindById(row_, part * p.length, min((part + 1) * p.length, row_.vocab), target,
                    [&](float x) { return row_.Weight(x) >= filters_.min_p ? row_.MassOf(x) : Mass{0}; });
  }

 private:
  __device__ bool CutsTopK(const RowSums& sums) const {
    return filters_.top_k > 0 && filters_.top_k < sums.count[kAll];
  }
  __device__ static Sections SectionsOf(const RowSums& sums) {
    Sections sections;
#pragma unroll
    for (int j = 0; j < kPivots; ++j) sections.mass[j] = sums.mass[j], sections.count[j] = sums.count[j];
    return sections;
  }

  SampleRow row_;
  Filters filters_;
  int64_t i_;
  int largest_;
  bool is_drawn_;
  double uniform_;
};

__device__ RowSums SumOfParts(const RowParts& row, int parts) {
  const int lane = threadIdx.x % kWarpSize;
  RowSums sums;
#pragma unroll
  for (int j = 0; j < kSummed; ++j) {
    sums.mass[j] = WarpSum(lane < parts ? row.mass[j][lane] : Mass{0});
    sums.count[j] = __reduce_add_sync(kAllLanes, lane < parts ? row.count[j][lane] : 0);
  }
  return sums;
}

// The part that a block has.
struct Part {
  int64_t row;
  int part, begin, end;

  __device__ explicit Part(const PartsOfRows& p)
      : row(blockIdx.x / p.parts),
        part(static_cast<int>(blockIdx.x) % p.parts),
        begin(min(part * p.length, static_cast<int>(p.a.vocab))),
        end(min(begin + p.length, static_cast<int>(p.a.vocab))) {}
};

__global__ void __launch_bounds__(kPartThreads) LargestKernel(const PartsOfRows p) {
  WaitForPrecedingKernel();
  LaunchDependents();
  __shared__ Mass of_warp[32];
  const Part part(p);
  Mass best = 0;
  DrawnRow::RowOf(p.a, part.row).ForEach(part.begin, part.end, threadIdx.x, blockDim.x, [&](float x, int id) {
    best = x != x ? kBroken : max(best, static_cast<Mass>(KeyOf(x)) << 32 | (0xffffffffu - static_cast<unsigned>(id)));
  });
  const int lane = threadIdx.x % kWarpSize;
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) best = max(best, __shfl_xor_sync(kAllLanes, best, distance));
  if (lane == 0) of_warp[threadIdx.x / kWarpSize] = best;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int w = 0; w < static_cast<int>(blockDim.x) / kWarpSize; ++w) best = max(best, of_warp[w]);
  p.rows[part.row].largest[part.part] = best;
  if (part.part == 0) p.rows[part.row].num_listed = 0;
}

__global__ void __launch_bounds__(kPartThreads) SumKernel(const PartsOfRows p) {
  WaitForPrecedingKernel();
  LaunchDependents();
  const Part part(p);
  const DrawnRow drawn(p, part.row);
  if (!drawn.is_drawn()) return;
  const RowSums sums = drawn.SumPart(part.begin, part.end);
  RowParts& out = p.rows[part.row];
  if (threadIdx.x != 0) return;
#pragma unroll
  for (int j = 0; j < kSummed; ++j) out.mass[j][part.part] = sums.mass[j], out.count[j][part.part] = sums.count[j];
}

__global__ void __launch_bounds__(kPartThreads) ListKernel(const PartsOfRows p) {
  WaitForPrecedingKernel();
  LaunchDependents();
  __shared__ int next;
  const Part part(p);
  const DrawnRow drawn(p, part.row);
  if (!drawn.is_drawn() || !drawn.in_order()) return;
  RowParts& out = p.rows[part.row];
  int count = 0;
  const unsigned low = drawn.FirstListed(SumOfParts(out, p.parts), &count);
  if (count > kListed) return;
  const SampleRow& row = drawn.row();
  const auto for_each = [&](const auto& fn) {
    row.ForEach(part.begin, part.end, threadIdx.x, blockDim.x, [&](float x, int id) {
      if (KeyOf(x) >= low && row.MassOf(x) > 0) fn(x, id);
    });
  };
  Sums<1> own;
  for_each([&](float, int) { ++own.count[0]; });
  const int here = SumOverBlock(own).count[0];
  if (here == 0) return;
  if (threadIdx.x == 0) next = atomicAdd(&out.num_listed, here);
  __syncthreads();
  for_each([&](float x, int id) { out.listed[atomicAdd(&next, 1)] = {x, id}; });
}

__global__ void __launch_bounds__(kSampleThreads) DrawKernel(const PartsOfRows p) {
  WaitForPrecedingKernel();
  LaunchDependents();
  __shared__ Listed listed;
  const int64_t i = blockIdx.x;
  const DrawnRow drawn(p, i);
  int token = drawn.largest();
  if (drawn.is_drawn() && drawn.in_order()) {
    const RowParts& row = p.rows[i];
    for (int k = threadIdx.x; k < row.num_listed; k += blockDim.x) listed.of[k] = row.listed[k];
    if (threadIdx.x == 0) listed.count = row.num_listed;
    __syncthreads();
    token = drawn.DrawInOrder(SumOfParts(row, p.parts), &listed);
  } else if (drawn.is_drawn()) {
    token = drawn.DrawById(p);
  }
  if (threadIdx.x != 0) return;
  p.a.token[i] = token;
  if (p.a.slot[i] >= 0) p.a.last[p.a.slot[i]] = token;
}

// The rows from `begin` on, as many as the workspace takes.
int SampleRows(const CudaCall& call, CudaSampleArgs a, int64_t begin) {
  a.logits += begin * a.logits_stride;
  a.temperature += begin, a.top_k += begin, a.top_p += begin, a.min_p += begin;
  a.random += 4 * begin, a.slot += begin, a.token += begin;
  a.n = std::min(a.n - begin, kRowsAtOnce);
  // Four blocks for each multiprocessor, but no part so short that launching it takes longer than reading it.
  const int64_t wanted = std::min((4 * call.num_sms + a.n - 1) / a.n, a.vocab / kLeastPart);
  const int64_t parts = std::clamp<int64_t>(wanted, 1, kMaxParts);
  const PartsOfRows p = {.a = a,
                         .rows = static_cast<RowParts*>(call.workspace),
                         .parts = static_cast<int>(parts),
                         .length = static_cast<int>(((a.vocab + parts - 1) / parts + 127) / 128 * 128)};
  const auto config = ConfigOf(call, Grid(a.n * parts), Grid(kPartThreads));
  for (const auto kernel : {&LargestKernel, &SumKernel, &ListKernel}) {
    if (const int error = Launch(config, kernel, p); error != 0) return error;
  }
  const int64_t threads = std::clamp<int64_t>(a.vocab / 512 * 32, 64, kSampleThreads);
  return Launch(ConfigOf(call, Grid(a.n), Grid(threads)), &DrawKernel, p);
}

}  // namespace

int ResolveTokens(const CudaCall& call, const ResolveTokensArgs& a) {
  return LaunchRows(call, ResolveOp{.planned = a.planned, .last = a.last, .tokens = a.tokens}, 1, a.count);
}

int Sample(const CudaCall& call, const CudaSampleArgs& a) {
  if (a.vocab < 1 || a.vocab > kMaxVocab) return a.n <= 0 ? 0 : static_cast<int>(cudaErrorInvalidValue);
  for (int64_t begin = 0; begin < a.n; begin += kRowsAtOnce) {
    if (const int error = SampleRows(call, a, begin); error != 0) return error;
  }
  return 0;
}

}  // namespace switchyard::ops::cuda
