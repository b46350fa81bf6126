// TokenDispatcher on the host: rows travel in messages, counts are host numbers (kExact).
// Its routes stay as they are until the next dispatch, for a backward pass (dispatch_gradient.h).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "workers/comm/core/communicator.h"
#include "workers/moe/dispatch/dispatch_message.h"
#include "workers/moe/dispatch/host_routes.h"
#include "workers/moe/dispatch/token_dispatcher.h"
#include "workers/moe/layer/row_scratch.h"
#include "workers/tensor/tensor.h"

namespace switchyard::moe {

class HostDispatcher : public TokenDispatcher {
 public:
  absl::Status Reserve(const DispatchCapacity&) override { return absl::OkStatus(); }
  absl::Status StartDispatch(const MoeContext& context, const LayerContext& layer) override;
  absl::Status FinishDispatch(const MoeContext& context, const LayerContext& layer) override;
  absl::Status StartCombine(const MoeContext& context, const LayerContext& layer) override;
  absl::Status FinishCombine(const MoeContext& context, ops::CombineInputs terms, const TensorView& residual) override;
  void Drop() override { work_.reset(); }

  // Puts outputs and answers into this memory from now on, so that they are not kept with the routes.  Borrowed.
  void GiveOutputs(RowScratch* memory) { y_memory_ = memory; }

  const HostRoutes& routes() const { return routes_; }
  // Whether x() is memory of this object, with the rows of others; false: it is StartDispatch's.
  bool holds_rows() const { return x_.raw() != own_x_.raw(); }

 private:
  using Incoming = HostRoutes::Incoming;
  using Outgoing = HostRoutes::Outgoing;

  absl::Status Route(const MoeContext& context, const LayerContext& layer);
  comm::Message Pack(const MoeContext& context, const Outgoing& outgoing) const;
  absl::Status Unpack(const MoeContext& context, int64_t num_slots, std::vector<comm::Message>* received);
  void SortByExpert(int64_t num_slots);
  void PlaceOutputs(int rank);
  absl::Status CollectOutputs(const MoeContext& context);

  TensorView own_x_;  // [T, H]
  HostRoutes routes_;
  std::unique_ptr<comm::Work> work_;  // what is under way
  TensorView all_y_;                  // y_, then what comes back
  std::vector<int32_t> row_of_;       // [rows] what x_rows_ shows
  std::vector<int32_t> begin_of_;     // [El + 1] what offsets_ shows
  std::vector<int32_t> cursor_;       // [El + 1] of the sort
  RowScratch x_memory_, own_y_memory_;
  RowScratch* y_memory_ = &own_y_memory_;
};

}  // namespace switchyard::moe
