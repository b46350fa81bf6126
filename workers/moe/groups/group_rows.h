// GroupRows: rows of one pass of a layer, forward or backward, whose program names shards or copies (LayerGroups). Says
// which rows this rank gates and sends, gathers and adds rows among ranks, and adds what experts made to the pass's
// rows.
//
// A pass makes rows `to` [T, H]: the residual stream forward, the inputs' gradients backward.  For plain expert
// parallelism there is nothing to do here.  On hosts; thread-compatible.  Errors: the communicators', RowGather's.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "scheduler/pipeline/moe_schedule.h"
#include "workers/moe/groups/choice_rows.h"
#include "workers/moe/groups/row_gather.h"
#include "workers/moe/groups/row_sum.h"
#include "workers/moe/layer/moe_context.h"
#include "workers/moe/layer/row_scratch.h"
#include "workers/tensor/tensor.h"

namespace switchyard::moe {

struct PassRows {
  TensorView to;         // [T, H] AccDType, added to; contiguous
  TensorView weight;     // [T, K] AccDType of the rows' choices; rank 0: all 1
  int64_t top_k = 0;     // K
  DType dtype = {};      // of rows that come back
  bool numbers = false;  // a number comes with each row
};

// Ends the groups of a layer that failed on this rank, so that nobody waits for its rows.
void AbortGroups(const MoeContext& context, absl::string_view reason);

class GroupRows {
 public:
  // A pass begins, of these ops.
  void Begin(const MoeContext& context, int layer, pipeline::Pass pass, int64_t tokens);

  // Which of a rank's rows it gates.  Of its program, in any pass.
  static pipeline::ChunkRange Gated(const MoeContext& context, int64_t tokens);

  // Which of the T rows this rank gates, and which of the gated ones it sends.
  pipeline::ChunkRange gated() const { return Gated(*context_, tokens_); }
  pipeline::ChunkRange sent() const;
  // Whether a program is of experts and chunks of rows alone, so that there is nothing to do here.
  static bool IsPlain(const MoeContext& context);
  bool plain() const { return plain_; }
  // Whether an exchange's own end adds to the rows; else Returned does.
  bool adds_alone() const { return way_ == Way::kAlone; }

  // What a pass makes; once its rows are gated.  topk_idx: [T, K] int32, of these.
  void SetRows(const PassRows& rows, const TensorView& topk_idx);

  // A gather among shards of all their rows (the program's first op behind the gate).  Finish: to memory of `kept`.
  absl::Status StartShards(std::vector<TensorView> matrices);
  absl::StatusOr<std::vector<TensorView>> FinishShards(std::vector<RowScratch*> kept);
  // Other gathers.  returned: what combines have returned so far, or in its place the experts' own.
  absl::Status StartGather(const pipeline::MicroOp& op, const ReturnedRows& returned);
  absl::Status FinishGather(const pipeline::MicroOp& op);
  // A sum of buffers among shards, or of the pass's rows among copies.
  absl::Status StartSum(const pipeline::MicroOp& op, const std::vector<TensorView>& buffers);
  absl::Status FinishSum(const pipeline::MicroOp& op);
  // A combine, or its part, is done.
  absl::Status Returned(const ReturnedRows& returned);

  // Whether experts read the rows of all shards.
  bool gathers_inputs() const { return way_ == Way::kOwn; }
  // Whether the router's own losses are of this rank: where copies add their gradients, of one.
  bool adds_router_loss() const { return way_ != Way::kSum || context_->groups.copies->rank() == 0; }
  // Of choices; REQUIRES: !adds_alone().
  TensorView numbers() const { return choices_.numbers().Reshape({tokens_, rows_.top_k}); }
  // The choices of rows for shards: expert e's are e * S … e * S + S - 1, with its weight each.
  struct Choices {
    TensorView topk_idx, topk_weight;  // [T, K * S]
  };
  Choices OfShards(const TensorView& topk_idx, const TensorView& topk_weight);
  // [T, K] of [T, K * S]: adds the numbers of an expert's shards.
  TensorView SumOfShards(const TensorView& numbers);
  // Gives up what is under way after an error (which ends the group).
  void Drop();

 private:
  // How rows that come back are added to those of the pass.
  enum class Way : uint8_t {
    kAlone,          // by each exchange's end
    kOwn,            // of shards' rows those that are this rank's
    kPeers,          // when the chunks of all peers are here
    kSum,            // this rank's experts' part, which copies then add
    kGathered,       // when copies have gathered what their experts made
    kGatheredParts,  // when copies have gathered what came back to them
  };
  static Way WayOf(const pipeline::MoeSchedule& schedule, const std::vector<pipeline::MicroOp>& ops);
  comm::CommCall Call(comm::CallUse use, int part) const {
    comm::CommCall call = context_->Call(use, layer_, part);
    call.comm_class = comm::CommClass::kLayerSum;
    return call;
  }
  // The choices that each of the copies has rows of, in this part.
  std::vector<std::vector<int32_t>> ListsOf(const pipeline::MicroOp& op) const;
  absl::Status AddChoices(const TensorView& to);

  const MoeContext* context_ = nullptr;
  int layer_ = 0;
  bool forward_ = true, plain_ = true;
  int64_t tokens_ = 0;  // T
  Way way_ = Way::kAlone;
  PassRows rows_;
  TensorView topk_idx_;
  int64_t shard_begin_ = 0;  // of this rank's rows among those of its shards
  int to_come_ = 0;          // combines or gathers, until all choices are here
  std::vector<int32_t> all_rows_;
  std::deque<std::vector<std::vector<int32_t>>> lists_;  // of gathers that are under way
  RowGather gather_;
  ChoiceRows choices_;
  RowSum sums_[2];
  size_t num_sums_ = 0;
  TensorView sum_;
  RowScratch sum_memory_, idx_memory_, weight_memory_, number_memory_;
};

}  // namespace switchyard::moe
