#include "workers/moe/groups/group_rows.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"
#include "workers/comm/core/timed.h"
#include "workers/moe/dispatch/expert_layout.h"
#include "workers/tensor/copy.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard::moe {
namespace {

using pipeline::ChunkRange;
using pipeline::CopySplit;
using pipeline::Group;
using pipeline::MicroOp;
using pipeline::MicroOpKind;
using pipeline::RowKind;

void AppendRange(const ChunkRange& rows, std::vector<int32_t>* to) {
  for (int64_t i = 0; i < rows.count; ++i) to->push_back(static_cast<int32_t>(rows.begin + i));
}

// The choices of which something has come back.
std::vector<int32_t> ChoicesOf(const ReturnedRows& returned) {
  std::vector<int32_t> choices;
  const auto shards = static_cast<size_t>(returned.num_shards);
  for (size_t i = 0; i < returned.slot_row.size() / shards; ++i) {
    if (returned.slot_row[i * shards] >= 0)
      choices.push_back(static_cast<int32_t>(returned.first_choice + static_cast<int64_t>(i)));
  }
  return choices;
}

}  // namespace

void AbortGroups(const MoeContext& context, absl::string_view reason) {
  for (comm::Communicator* const group : {context.comm, context.groups.shards, context.groups.copies}) {
    if (group != nullptr && group->world() > 1) group->Abort(reason);
  }
}

GroupRows::Way GroupRows::WayOf(const pipeline::MoeSchedule& schedule, const std::vector<MicroOp>& ops) {
  if (schedule.cut == pipeline::Cut::kPeers) return Way::kPeers;
  for (const MicroOp& op : ops) {
    if (op.kind == MicroOpKind::kAllGather && op.group == Group::kShards) return Way::kOwn;
    if (op.kind == MicroOpKind::kAllReduce && op.group == Group::kCopies) return Way::kSum;
    if (op.kind == MicroOpKind::kAllGather && op.rows == RowKind::kChoices)
      return op.reads.empty() ? Way::kGatheredParts : Way::kGathered;
  }
  return Way::kAlone;
}

bool GroupRows::IsPlain(const MoeContext& context) {
  const pipeline::MoeSchedule& schedule = *context.schedule;
  if (schedule.cut != pipeline::Cut::kRows || context.groups.num_shards != 1) return false;
  const auto plain = [](const MicroOp& op) {
    return !pipeline::IsCommunicating(op.kind) || op.group == Group::kExperts;
  };
  return std::all_of(schedule.forward.begin(), schedule.forward.end(), plain) &&
         std::all_of(schedule.backward.begin(), schedule.backward.end(), plain);
}

void GroupRows::Begin(const MoeContext& context, int layer, pipeline::Pass pass, int64_t tokens) {
  context_ = &context;
  layer_ = layer;
  forward_ = pass == pipeline::Pass::kForward;
  tokens_ = tokens;
  const std::vector<MicroOp>& ops = forward_ ? context.schedule->forward : context.schedule->backward;
  way_ = WayOf(*context.schedule, ops);
  to_come_ = static_cast<int>(std::count_if(ops.begin(), ops.end(), [&](const MicroOp& op) {
    return way_ == Way::kGatheredParts ? op.kind == MicroOpKind::kAllGather : op.kind == MicroOpKind::kCombine;
  }));
  plain_ = IsPlain(context);
  num_sums_ = 0;
}

ChunkRange GroupRows::Gated(const MoeContext& context, int64_t tokens) {
  if (context.schedule->copies != CopySplit::kBeforeGate) return {0, tokens};
  return pipeline::RowsOfChunk(tokens, context.groups.copies->rank(), context.groups.copies->world());
}

ChunkRange GroupRows::sent() const {
  if (context_->schedule->copies != CopySplit::kBehindGate) return {0, -1};
  return pipeline::RowsOfChunk(tokens_, context_->groups.copies->rank(), context_->groups.copies->world());
}

void GroupRows::SetRows(const PassRows& rows, const TensorView& topk_idx) {
  rows_ = rows;
  topk_idx_ = topk_idx;
  sum_ = rows.to;
  if (adds_alone()) return;
  choices_.Begin(tokens_, rows.top_k, rows.to.dim(1), rows.dtype, rows.numbers);
}

absl::Status GroupRows::StartShards(std::vector<TensorView> matrices) {
  all_rows_.resize(static_cast<size_t>(matrices[0].dim(0)));
  std::iota(all_rows_.begin(), all_rows_.end(), 0);
  return gather_.Start(*context_->stream, context_->groups.shards, Call(comm::CallUse::kRowGather, 0),
                       std::move(matrices), all_rows_);
}

absl::StatusOr<std::vector<TensorView>> GroupRows::FinishShards(std::vector<RowScratch*> kept) {
  const comm::Timed timed(&context_->stats->exchange_seconds);
  RETURN_IF_ERROR(gather_.Finish());
  std::vector<ChunkRange> of_rank;
  int64_t total = 0;
  for (int rank = 0; rank < context_->groups.shards->world(); ++rank) {
    ASSIGN_OR_RETURN(const int64_t count, gather_.RowsOf(rank));
    of_rank.push_back({total, count});
    total += count;
  }
  shard_begin_ = of_rank[static_cast<size_t>(context_->groups.shards->rank())].begin;
  std::vector<TensorView> gathered;
  for (size_t i = 0; i < kept.size(); ++i) {
    const TensorView& own = gather_.matrices()[i];
    gathered.push_back(kept[i]->Rows(total, own.dim(1), own.dtype()));
  }
  for (size_t rank = 0; rank < of_rank.size(); ++rank) {
    std::vector<int32_t> at;
    AppendRange(of_rank[rank], &at);
    RETURN_IF_ERROR(gather_.Place(static_cast<int>(rank), at, gathered));
  }
  return gathered;
}

std::vector<std::vector<int32_t>> GroupRows::ListsOf(const MicroOp& op) const {
  const LayerGroups& groups = context_->groups;
  const int copies = groups.copies->world();
  std::vector<std::vector<int32_t>> lists(static_cast<size_t>(copies));
  if (op.rows == RowKind::kTokens) {
    for (int copy = 0; copy < copies; ++copy)
      AppendRange(pipeline::RowsOfChunk(tokens_, copy, copies), &lists[static_cast<size_t>(copy)]);
    return lists;
  }
  const int32_t* const chosen = topk_idx_.data<int32_t>();
  for (int copy = 0; copy < copies; ++copy) {
    const ChunkRange rows =
        way_ == Way::kGathered ? ChunkRange{0, tokens_} : pipeline::RowsOfChunk(tokens_, copy, copies);
    for (int64_t i = rows.begin * rows_.top_k; i < (rows.begin + rows.count) * rows_.top_k; ++i) {
      if (chosen[i] < 0) continue;
      bool has = way_ == Way::kGathered && context_->layout->Places(chosen[i])[0].rank == copy;
      // A choice is whole with the last of its shards.
      if (way_ == Way::kGatheredParts) {
        const int home = groups.copy_ranks[static_cast<size_t>(copy)];
        int last = 0;
        for (int s = 0; s < groups.num_shards; ++s) {
          const int expert = chosen[i] * groups.num_shards + s;
          const int from = context_->layout->PlaceOf(expert, home, i / rows_.top_k).rank;
          last = std::max(last, pipeline::PartOfPeers(from, home, context_->comm->world(), op.num_parts));
        }
        has = last == op.part;
      }
      if (has) lists[static_cast<size_t>(copy)].push_back(static_cast<int32_t>(i));
    }
  }
  return lists;
}

absl::Status GroupRows::StartGather(const MicroOp& op, const ReturnedRows& returned) {
  const comm::Timed timed(&context_->stats->exchange_seconds);
  comm::Communicator* const copies = context_->groups.copies;
  lists_.push_back(ListsOf(op));
  const std::vector<int32_t>& mine = lists_.back()[static_cast<size_t>(copies->rank())];
  const comm::CommCall call = Call(comm::CallUse::kRowGather, op.part);
  if (op.rows == RowKind::kTokens) return gather_.Start(*context_->stream, copies, call, {rows_.to}, mine);
  RETURN_IF_ERROR(choices_.Put(*context_->stream, mine, returned));
  return choices_.StartGather(*context_->stream, copies, call, &lists_.back());
}

absl::Status GroupRows::FinishGather(const MicroOp& op) {
  const comm::Timed timed(&context_->stats->exchange_seconds);
  if (op.rows == RowKind::kChoices) {
    RETURN_IF_ERROR(choices_.FinishGather());
    lists_.pop_front();
    return way_ == Way::kGatheredParts && --to_come_ == 0 ? AddChoices(rows_.to) : absl::OkStatus();
  }
  RETURN_IF_ERROR(gather_.Finish());
  for (size_t rank = 0; rank < lists_.front().size(); ++rank) {
    RETURN_IF_ERROR(gather_.Place(static_cast<int>(rank), lists_.front()[rank], {rows_.to}));
  }
  lists_.pop_front();
  return absl::OkStatus();
}

absl::Status GroupRows::StartSum(const MicroOp& op, const std::vector<TensorView>& buffers) {
  const comm::Timed timed(&context_->stats->exchange_seconds);
  const bool shards = op.group == Group::kShards;
  const std::vector<TensorView>& summed = shards ? buffers : std::vector<TensorView>{sum_};
  num_sums_ = summed.size();
  SY_CHECK_LE(num_sums_, std::size(sums_));
  for (size_t i = 0; i < num_sums_; ++i) {
    RETURN_IF_ERROR(sums_[i].Start(*context_->stream, shards ? context_->groups.shards : context_->groups.copies,
                                   Call(comm::CallUse::kRowSum, static_cast<int>(i)), summed[i]));
  }
  return absl::OkStatus();
}

absl::Status GroupRows::FinishSum(const MicroOp& op) {
  const comm::Timed timed(&context_->stats->exchange_seconds);
  for (size_t i = 0; i < num_sums_; ++i) RETURN_IF_ERROR(sums_[i].Finish(*context_->stream));
  if (op.group == Group::kShards || !forward_) return absl::OkStatus();
  VisitDType(sum_.dtype(), [&]<class Elem>() {
    context_->stream->pool().ParallelFor(tokens_, 16, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        Acc<Elem>* const to = rows_.to.row<Acc<Elem>>(t);
        const Acc<Elem>* const sum = sum_.row<Acc<Elem>>(t);
        for (int64_t h = 0; h < sum_.dim(1); ++h) to[h] += sum[h];
      }
    });
  });
  return absl::OkStatus();
}

absl::Status GroupRows::AddChoices(const TensorView& to) { return choices_.AddTo(*context_->stream, rows_.weight, to); }

absl::Status GroupRows::Returned(const ReturnedRows& returned) {
  if (way_ == Way::kGatheredParts) return absl::OkStatus();
  if (way_ != Way::kGathered) {
    ReturnedRows own = returned;
    if (way_ == Way::kOwn) {
      const auto choices = static_cast<size_t>(tokens_ * rows_.top_k);
      own.slot_row = returned.slot_row.subspan(static_cast<size_t>(shard_begin_ * rows_.top_k), choices);
    }
    RETURN_IF_ERROR(choices_.Put(*context_->stream, ChoicesOf(own), own));
  }
  if (--to_come_ > 0) return absl::OkStatus();
  // (Backward the rows of the pass begin as zeros, so they are the sum.)
  if (way_ == Way::kSum && forward_) {
    sum_ = sum_memory_.Rows(tokens_, rows_.to.dim(1), rows_.to.dtype());
    RETURN_IF_ERROR(FillZero(*context_->stream, sum_));
  }
  return AddChoices(sum_);
}

GroupRows::Choices GroupRows::OfShards(const TensorView& topk_idx, const TensorView& topk_weight) {
  const int shards = context_->groups.num_shards;
  if (shards == 1) return {topk_idx, topk_weight};
  const int64_t tokens = topk_idx.dim(0), width = topk_idx.dim(1) * shards;
  const Choices wide = {.topk_idx = idx_memory_.Rows(tokens, width, DType::kI32),
                        .topk_weight = weight_memory_.Rows(tokens, width, topk_weight.dtype())};
  VisitDType(topk_weight.dtype(), [&]<class Elem>() {
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t i = 0; i < width; ++i) {
        const int32_t expert = topk_idx.row<int32_t>(t)[i / shards];
        wide.topk_idx.row<int32_t>(t)[i] = expert < 0 ? -1 : expert * shards + static_cast<int32_t>(i % shards);
        wide.topk_weight.row<Elem>(t)[i] = topk_weight.row<Elem>(t)[i / shards];
      }
    }
  });
  return wide;
}

TensorView GroupRows::SumOfShards(const TensorView& numbers) {
  const int64_t shards = context_->groups.num_shards;
  if (shards == 1) return numbers;
  const TensorView sums = number_memory_.Rows(numbers.dim(0), numbers.dim(1) / shards, numbers.dtype());
  VisitDType(numbers.dtype(), [&]<class Elem>() {
    for (int64_t t = 0; t < sums.dim(0); ++t) {
      for (int64_t k = 0; k < sums.dim(1); ++k) {
        const Acc<Elem>* const of = numbers.row<Acc<Elem>>(t) + k * shards;
        sums.row<Acc<Elem>>(t)[k] = std::accumulate(of, of + shards, Acc<Elem>{});
      }
    }
  });
  return sums;
}

void GroupRows::Drop() {
  gather_.Drop();
  choices_.Drop();
  for (RowSum& sum : sums_) sum.Drop();
  lists_.clear();
}

}  // namespace switchyard::moe
