#include "scheduler/jobs/reduce_policy.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"

namespace switchyard::jobs {
namespace {

constexpr int64_t kLargestElement = 8;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// A bucket of DDP's over a piece of Lina's: 25 MB over 30 MB.
int64_t ScaledBucket(int64_t piece_bytes) { return std::max(piece_bytes / 6 * 5, kLargestElement); }

int64_t PieceBytesOf(const CommunicationSpec& spec) {
  return spec.piece_bytes == kPiecesByLink ? kMostPiece : spec.piece_bytes;
}

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

absl::StatusOr<ReducePolicy> ReducePolicyOf(const CommunicationSpec& spec) {
  const int64_t piece_bytes = PieceBytesOf(spec);
  if (piece_bytes < kLargestElement) {
    return absl::InvalidArgumentError(absl::StrCat("communication: pieces of ", piece_bytes,
                                                   " bytes have no room for an element of ", kLargestElement));
  }
  switch (spec.mode) {
    case CommMode::kFair:
      return ReducePolicy{.op_bytes = ScaledBucket(piece_bytes), .rule = ReduceRule::kAtOnce};
    case CommMode::kFixed:
      return ReducePolicy{.op_bytes = ScaledBucket(piece_bytes), .rule = ReduceRule::kBetweenPairs};
    case CommMode::kArLast:
      return ReducePolicy{};
    case CommMode::kPriority:
    case CommMode::kPriorityTicketed:
      return ReducePolicy{.grouping = ReduceGrouping::kTensors,
                          .rule = ReduceRule::kAfterAllToAll,
                          .ticketed = spec.mode == CommMode::kPriorityTicketed};
    case CommMode::kPreempt:
    case CommMode::kPartition:
    case CommMode::kPipelining:
    case CommMode::kFull:
      return ReducePolicy{.grouping = ReduceGrouping::kPieces,
                          .op_bytes = piece_bytes,
                          .rule = ReduceRule::kAfterAllToAll,
                          .cuts_all_to_alls = spec.mode == CommMode::kPipelining || spec.mode == CommMode::kFull};
  }
  return absl::InternalError(absl::StrCat("communication: mode ", static_cast<int>(spec.mode), " is none"));
}

bool OvertakesOnTheSocket(CommMode mode) { return mode == CommMode::kPreempt; }

int32_t ChunksOfLayer(const CommunicationSpec& spec, const LayerRows& rows, int32_t max_chunks) {
  SY_CHECK(rows.world >= 1 && rows.holders >= 1 && max_chunks >= 1);
  if (spec.granularity.rule == ChunkRule::kFixed) return std::min(spec.granularity.chunks, max_chunks);
  const absl::StatusOr<ReducePolicy> policy = ReducePolicyOf(spec);
  if (!policy.ok() || !policy->cuts_all_to_alls) return 1;
  // A row goes to each other rank at most once, however many of its experts are there.
  const int64_t copies = std::min<int64_t>(rows.top_k, rows.holders - 1);
  const int64_t bytes = CeilDiv(rows.rows, rows.world) * copies * rows.row_bytes;
  return static_cast<int32_t>(std::clamp<int64_t>(CeilDiv(bytes, PieceBytesOf(spec)), 1, max_chunks));
}

}  // namespace switchyard::jobs
