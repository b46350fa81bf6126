// For each (t, k) the rank and slot of its expert:
//   here, if the expert is here; else place (rank + first_token + t) % n of its n places;
//   with dealt rows: the place that gets the expert's row sorted_at - expert_offsets.
//
// A block has whole rows, a thread a choice; the block's ranks are in shared memory, where a choice sees whether an
// earlier one of its row has the same.
#include "workers/ops/core/kernels_cuda.h"
#include "workers/ops/cuda/launch_cuda.h"
#include "workers/ops/cuda/ptx_cuda.h"

namespace switchyard::ops::cuda {
namespace {

constexpr int kThreads = kMaxExchangeTopK;

// -1: none.
__device__ int PlaceOf(const ExpertPlacesArgs& a, int64_t token, int64_t entry, int expert) {
  const int begin = a.place_offsets[expert], end = a.place_offsets[expert + 1];
  if (a.place_rows == nullptr) {
    return begin + (end - begin == 1 ? 0 : static_cast<int>((a.rank + a.first_token + token) % (end - begin)));
  }
  int before = a.sorted_at[entry] - a.expert_offsets[expert];
  for (int place = begin; place < end; ++place) {
    if (before < a.place_rows[place]) return place;
    before -= a.place_rows[place];
  }
  return -1;
}

__global__ void __launch_bounds__(kThreads) ExpertPlacesKernel(const ExpertPlacesArgs a, int rows_per_block) {
  WaitForPrecedingKernel();
  LaunchDependents();
  __shared__ int rank_of[kThreads];
  const int top_k = static_cast<int>(a.top_k);
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t token = int64_t{blockIdx.x} * rows_per_block + thread / top_k;
  const bool valid = thread < rows_per_block * top_k && token < a.rows;
  const int64_t entry = token * top_k + thread % top_k;
  const int expert = valid ? a.topk_idx[entry] : -1;
  int rank = -1, slot = -1;
  if (expert >= 0 && expert < a.experts) {
    slot = a.place_rows == nullptr ? a.slot_here[expert] : -1;
    if (slot >= 0) {
      rank = a.rank;
    } else if (const int place = PlaceOf(a, token, entry, expert); place >= 0) {
      rank = a.places[2 * place];
      slot = a.places[2 * place + 1];
    }
  }
  rank_of[thread] = rank;
  __syncthreads();
  if (!valid) return;
  bool first = true;
  for (int before = thread - thread % top_k; before < thread; ++before) first &= rank_of[before] != rank;
  a.rank_of[entry] = rank;
  a.slot_of[entry] = slot;
  a.first_of[entry] = first ? rank : -1;
}

}  // namespace

int ExpertPlaces(const CudaCall& call, const ExpertPlacesArgs& a) {
  if (a.rows <= 0 || a.top_k <= 0) return 0;
  const int rows_per_block = kThreads / static_cast<int>(a.top_k);
  const int64_t blocks = (a.rows + rows_per_block - 1) / rows_per_block;
  return Launch(ConfigOf(call, Grid(blocks), kThreads), &ExpertPlacesKernel, a, rows_per_block);
}

}  // namespace switchyard::ops::cuda
