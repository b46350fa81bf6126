#include "scheduler/jobs/reduce_plan.h"

#include <utility>

#include "scheduler/base/check.h"

namespace switchyard::jobs {
namespace {

void CutIntoPieces(int32_t tensor, int64_t elements, int64_t most, std::vector<ReduceOp>* ops) {
  const int64_t parts = (elements + most - 1) / most;
  for (int64_t i = 0; i < parts; ++i) {
    const int64_t begin = i * elements / parts;
    ops->push_back(
        {.pieces = {{.tensor = tensor, .begin = begin, .count = (i + 1) * elements / parts - begin}}, .after = tensor});
  }
}

}  // namespace

std::vector<ReduceOp> PlanReduces(absl::Span<const int64_t> elements, int64_t element_bytes, ReduceGrouping grouping,
                                  int64_t op_bytes) {
  SY_CHECK(element_bytes >= 1 && op_bytes >= element_bytes);
  const int64_t most = op_bytes / element_bytes;
  std::vector<ReduceOp> ops;
  ReduceOp bucket;
  int64_t in_bucket = 0;
  for (size_t i = 0; i < elements.size(); ++i) {
    const auto tensor = static_cast<int32_t>(i);
    if (elements[i] == 0) continue;
    const ReducePiece whole = {.tensor = tensor, .begin = 0, .count = elements[i]};
    if (grouping == ReduceGrouping::kTensors) ops.push_back({.pieces = {whole}, .after = tensor});
    if (grouping == ReduceGrouping::kPieces) CutIntoPieces(tensor, elements[i], most, &ops);
    if (grouping != ReduceGrouping::kBuckets) continue;
    bucket.pieces.push_back(whole);
    bucket.after = tensor;
    in_bucket += elements[i];
    if (in_bucket < most) continue;
    ops.push_back(std::exchange(bucket, {}));
    in_bucket = 0;
  }
  if (!bucket.pieces.empty()) ops.push_back(std::move(bucket));
  return ops;
}

bool MayReduce(ReduceRule rule, const AllToAllState& state) {
  switch (rule) {
    case ReduceRule::kAtOnce:
      return true;
    case ReduceRule::kBetweenPairs:
      return !state.in_pair;
    case ReduceRule::kAfterAllToAll:
      return state.under_way == 0 && !state.imminent;
    case ReduceRule::kAtTheEnd:
      return state.backward_done;
  }
  return true;
}

}  // namespace switchyard::jobs
