#include "workers/moe/layer/expert_capacity.h"

#include <cmath>
#include <cstring>
#include <memory>

#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::moe {

int64_t CapacityOf(double factor, int64_t top_k, int64_t rows, int64_t experts) {
  const double even = static_cast<double>(top_k * rows) / static_cast<double>(experts);
  return static_cast<int64_t>(std::ceil(even * factor));
}

int64_t DropBeyondCapacity(int64_t capacity, absl::Span<const int32_t> counts, int rank, int64_t experts,
                           const TensorView& topk_idx, const TensorView& topk_weight) {
  const int64_t rows = topk_idx.dim(0), top_k = topk_idx.dim(1);
  const size_t ranks = counts.size() / static_cast<size_t>(top_k * experts);
  std::vector<int64_t> taken(static_cast<size_t>(experts), 0);  // by all choices before this one's
  std::vector<int64_t> next(static_cast<size_t>(experts));      // the place of this rank's next row
  int64_t dropped = 0;
  for (int64_t k = 0; k < top_k; ++k) {
    next = taken;
    for (size_t r = 0; r < ranks; ++r) {
      for (int64_t e = 0; e < experts; ++e) {
        const int32_t count = counts[(r * static_cast<size_t>(top_k) + static_cast<size_t>(k)) * experts + e];
        taken[e] += count;
        if (static_cast<int>(r) < rank) next[e] += count;
      }
    }
    for (int64_t t = 0; t < rows; ++t) {
      int32_t& expert = topk_idx.row<int32_t>(t)[k];
      if (next[expert]++ < capacity) continue;
      expert = -1;
      VisitDType(topk_weight.dtype(), [&]<class Elem>() { topk_weight.row<Elem>(t)[k] = Elem(Acc<Elem>{0}); });
      ++dropped;
    }
  }
  return dropped;
}

absl::StatusOr<int64_t> CapacityGate::Drop(const ExpertCapacity& capacity, const comm::CommCall& call, int64_t experts,
                                           const TensorView& topk_idx, const TensorView& topk_weight) {
  SY_CHECK(capacity.ranks != nullptr && topk_idx.device().is_cpu());
  const int64_t rows = topk_idx.dim(0), top_k = topk_idx.dim(1);
  mine_.assign(static_cast<size_t>(top_k * experts), 0);
  for (int64_t t = 0; t < rows; ++t) {
    for (int64_t k = 0; k < top_k; ++k) ++mine_[k * experts + topk_idx.row<int32_t>(t)[k]];
  }
  const size_t bytes = mine_.size() * sizeof(int32_t);
  std::unique_ptr<comm::Work> work;
  ASSIGN_OR_RETURN(
      work, capacity.ranks->AllGather(call, absl::MakeConstSpan(reinterpret_cast<const char*>(mine_.data()), bytes)));
  RETURN_IF_ERROR(work->Wait());
  counts_.resize(mine_.size() * work->received().size());
  for (size_t r = 0; r < work->received().size(); ++r) {
    std::memcpy(counts_.data() + r * mine_.size(), work->received()[r].payload(), bytes);
  }
  return DropBeyondCapacity(capacity.rows, counts_, capacity.ranks->rank(), experts, topk_idx, topk_weight);
}

}  // namespace switchyard::moe
