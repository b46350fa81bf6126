// TokenDispatcher in the stream's order: routing, packing, sorting and gathering are ops, messages are collectives on
// views.
//
// kPadded: messages have fixed sizes from max_rows (dispatch_plan.h), counts stay on the device and nothing waits for
// the host, so a graph can hold it.  A row's choices must differ from each other, as the router's do. kExact: ranks
// exchange the numbers of rows and pairs; FinishDispatch waits for these once, on the host.  Not in a graph.
//
// Runs on the CPU, too.  Memory grows with the largest exchange and is kept.  A graph holds addresses: before
// recording, Reserve for the largest exchange of this object, and record again for another epoch of the layout. Errors
// besides TokenDispatcher's: InvalidArgument (kPadded: more rows than max_rows, or max_rows is not positive; more than
// kMaxExchangeRanks ranks).
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "workers/comm/core/communicator.h"
#include "workers/moe/dispatch/device_expert_layout.h"
#include "workers/moe/dispatch/device_split.h"
#include "workers/moe/dispatch/dispatch_plan.h"
#include "workers/moe/dispatch/token_dispatcher.h"
#include "workers/moe/layer/row_scratch.h"
#include "workers/ops/exchange/permute.h"
#include "workers/ops/exchange/row_exchange.h"
#include "workers/tensor/tensor.h"

namespace switchyard::moe {

class DeviceDispatcher : public TokenDispatcher {
 public:
  absl::Status Reserve(const DispatchCapacity& room) override;
  absl::Status StartDispatch(const MoeContext& context, const LayerContext& layer) override;
  absl::Status FinishDispatch(const MoeContext& context, const LayerContext& layer) override;
  absl::Status StartCombine(const MoeContext& context, const LayerContext& layer) override;
  absl::Status FinishCombine(const MoeContext& context, ops::CombineInputs terms, const TensorView& residual) override;
  void Drop() override { work_.reset(); }

 private:
  absl::Status FollowLayout(const Stream& stream, const ExpertLayout& layout, int rank);
  absl::Status StartAlone(const MoeContext& context, const LayerContext& layer);
  absl::Status Route(const MoeContext& context, const LayerContext& layer);
  absl::Status SendCounts(const MoeContext& context, const LayerContext& layer);
  absl::Status ReceiveCounts(const MoeContext& context, const LayerContext& layer);
  absl::Status SendRows(const MoeContext& context, const LayerContext& layer);
  absl::Status SortReceived(const MoeContext& context, const LayerContext& layer);
  // Takes the memory of an exchange of one rank; returns that for places.
  absl::StatusOr<ops::ExpertPlaces> TakeAlone(const Shape& choices, int64_t experts);
  // Take the memory of each part of an exchange of several ranks, from own_x_, top_k_ and, but the first, plan_.
  absl::Status TakeRoutes(int64_t ranks);
  absl::Status TakeBlocks();
  absl::Status TakeSorted(int64_t experts);
  DispatchShape ShapeOf(const MoeContext& context, const LayerContext& layer) const;
  void CountExact(const MoeContext& context, absl::Span<const int32_t> sent, absl::Span<const int32_t> received);

  DeviceExpertLayout device_layout_;
  DeviceSplit split_;
  ops::PlaceTable places_;  // of one of the two
  TensorView own_x_;        // [T, H]
  int64_t top_k_ = 0;       // K
  ops::RowRoutes routes_;   // of this exchange, as all that follows
  TensorView counts_;       // [2, R, 2] int32: to others, from others; kExact
  TensorView output_row_;   // [T * K] row of all_y_; -1 = dropped
  DispatchPlan plan_;
  TensorView send_, recv_;            // [plan_.send.num_rows, H], [plan_.recv.num_rows, H]
  TensorView slots_, sorted_;         // int32: [pairs] slot of each; [plan_.num_outputs] row of recv_ of each output
  ops::ExpertOrder order_;            // of the pairs computed here by slot
  TensorView all_y_;                  // y_, then what comes back
  TensorView answers_;                // [plan_.num_answers, H]
  std::unique_ptr<comm::Work> work_;  // what is under way
  RowScratch route_memory_, order_memory_, send_memory_, recv_memory_, y_memory_, answer_memory_;
  PinnedBuffer pinned_counts_;
};

}  // namespace switchyard::moe
