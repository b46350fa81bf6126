#include "workers/moe/row_count_gather.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "workers/comm/timed.h"

namespace switchyard {

absl::StatusOr<RowCounts> RowCountGather::Gather(const GatedRows& rows, int num_experts) {
  const Timed timed(&rows.stats->exchange_seconds);
  const int world = rows.comm->world(), me = rows.comm->rank();
  const auto width = static_cast<size_t>(num_experts);
  counts_.assign(static_cast<size_t>(world) * width, 0);
  int32_t* const mine = counts_.data() + static_cast<size_t>(me) * width;
  const int64_t top_k = rows.topk_idx.dim(1);
  const int32_t* const idx = rows.topk_idx.empty() ? nullptr : rows.topk_idx.data<int32_t>();
  for (int64_t i = 0; i < rows.topk_idx.NumElements(); ++i) {
    if (idx[i] < -1 || idx[i] >= num_experts) {
      return absl::InvalidArgumentError(absl::StrCat("row_count_gather: topk_idx[", i / top_k, ", ", i % top_k,
                                                     "] = ", idx[i], " is no expert of ", num_experts));
    }
    if (idx[i] >= 0) ++mine[idx[i]];
  }
  const RowCounts counts{.num_ranks = world, .num_experts = num_experts, .rows = counts_};
  if (world == 1) return counts;
  std::unique_ptr<Work> work;
  ASSIGN_OR_RETURN(work, rows.comm->AllGather({.stream = rows.stream, .deadline = rows.deadline},
                                              {reinterpret_cast<const char*>(mine), width * sizeof(int32_t)}));
  RETURN_IF_ERROR(work->Wait());
  for (int rank = 0; rank < world; ++rank) {
    // (The communicator has checked that all sent the same size.)
    if (rank == me) continue;
    std::memcpy(counts_.data() + static_cast<size_t>(rank) * width, work->received()[rank].payload(),
                width * sizeof(int32_t));
    const int32_t* const theirs = counts_.data() + static_cast<size_t>(rank) * width;
    if (std::any_of(theirs, theirs + width, [](int32_t count) { return count < 0; })) {
      rows.comm->Abort(absl::StrCat("rank ", rank, " told a negative number of rows"));
      return absl::InternalError(absl::StrCat("row_count_gather: rank ", rank, " told a negative number of rows"));
    }
  }
  return counts;
}

}  // namespace switchyard
