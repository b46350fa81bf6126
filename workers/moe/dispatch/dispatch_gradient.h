// The backward of a TokenDispatcher that has run: dispatch and combine are each other's.
//
// Resend: gradients of the layer's output go to the rows' experts, each row once to each rank with one number for each
// of its pairs.  Return: gradients of the experts' inputs come back, one row and one number a pair, and are added in
// top-k order.  A pair's gradient does not depend on the number of ranks.  Sizes follow from the routes; there is one
// message per peer and direction.
//
// An object is the handle of one exchange at a time and keeps its buffers:
//   StartResend → FinishResend → TakeInputGradients → [caller fills dx() and dweight()] → StartReturn → FinishReturn
// All ranks start and finish the same ones in the same order, with or without rows.  On hosts; thread-compatible.
// Does not do: adding up the gradients of an expert's replicas.
// Errors: InvalidArgument (shapes), the communicator's, Internal (a peer's message has another size than its routes
// say; the group is aborted).
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "workers/comm/core/communicator.h"
#include "workers/moe/dispatch/host_routes.h"
#include "workers/moe/dispatch/token_dispatcher.h"
#include "workers/moe/layer/row_scratch.h"
#include "workers/tensor/tensor.h"

namespace switchyard::moe {

class DispatchGradient {
 public:
  // Memory of dy() from the next StartResend on; borrowed.
  void UseOutputGradients(RowScratch* memory) { dy_memory_ = memory; }
  // Sends the gradient of the residual, and each pair's weight, along these routes.  Routes and dy must stay until
  // FinishReturn.
  absl::Status StartResend(const MoeContext& context, const LayerContext& layer, const HostRoutes& routes,
                           const TensorView& dy,            // [T, H] model dtype
                           const TensorView& topk_weight);  // [T, K] AccDType
  absl::Status FinishResend(const MoeContext& context);
  // After FinishResend: dx() is memory of this from now on, with what returns behind it.  Borrowed until FinishReturn.
  void TakeInputGradients(RowScratch* memory);

  // After FinishResend.  dy() has the rows of the exchange's x(); pairs are its rows in expert order.
  const TensorView& dy() const { return dy_; }            // [n, H]
  const TensorView& weight() const { return weight_; }    // [rows, 1] AccDType
  const TensorView& dx() const { return dx_; }            // [rows, H] model dtype, for the caller to fill in
  const TensorView& dweight() const { return dweight_; }  // [rows, 1] AccDType, likewise

  // REQUIRES: dx() and dweight() are filled in.
  absl::Status StartReturn(const MoeContext& context, const LayerContext& layer);
  // dx[t] += Σ_k of what came back for (t, k), in top-k order; dweight[t, k] = its number, 0 if it was dropped.
  absl::Status FinishReturn(const MoeContext& context,
                            const TensorView& dx,        // [T, H] AccDType
                            const TensorView& dweight);  // [T, K] AccDType, contiguous
  // In place of FinishReturn, where rows come in parts or are added elsewhere: gradients() and numbers() have this
  // part's from now on.
  absl::Status FinishPart(const MoeContext& context, const LayerContext& layer);
  // Those made here and returned, by the routes' slot_row.
  const TensorView& gradients() const { return all_dx_; }
  const TensorView& numbers() const { return all_dweight_; }
  // Gives up what is under way after an error (which ends the group).
  void Drop() { under_way_.clear(); }

 private:
  std::vector<comm::Message> PackResend(const MoeContext& context) const;
  absl::Status PlaceResent(const MoeContext& context);
  absl::Status PlaceReturned(const MoeContext& context, int part, int num_parts);

  const HostRoutes* routes_ = nullptr;
  TensorView own_dy_, topk_weight_;
  std::deque<std::unique_ptr<comm::Work>> under_way_;  // parts of a combine may be, together
  TensorView dy_, weight_, dx_, dweight_;
  TensorView all_dx_, all_dweight_;  // those, then what comes back
  RowScratch* dy_memory_ = nullptr;
  RowScratch weight_memory_, dweight_memory_;
};

}  // namespace switchyard::moe
