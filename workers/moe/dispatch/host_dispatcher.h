// TokenDispatcher on the host: rows travel in messages, counts are host numbers (kExact).  It also cuts rows by peers,
// leaves out experts that are elsewhere (LayerContext::stays), and combines in parts.
// Its routes stay as they are until the next dispatch, for a backward pass (dispatch_gradient.h).
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "workers/comm/core/communicator.h"
#include "workers/moe/dispatch/added_outputs.h"
#include "workers/moe/dispatch/dispatch_message.h"
#include "workers/moe/dispatch/host_routes.h"
#include "workers/moe/dispatch/token_dispatcher.h"
#include "workers/moe/layer/row_scratch.h"
#include "workers/tensor/tensor.h"

namespace switchyard::moe {

class HostDispatcher : public TokenDispatcher {
 public:
  absl::Status Reserve(const DispatchCapacity&) override { return absl::OkStatus(); }
  void UseInputs(RowScratch* memory) override { x_memory_ = memory; }
  void TakeOutputs(RowScratch* memory) override;
  absl::Status StartDispatch(const MoeContext& context, const LayerContext& layer) override;
  absl::Status FinishDispatch(const MoeContext& context, const LayerContext& layer) override;
  absl::Status StartCombine(const MoeContext& context, const LayerContext& layer) override;
  absl::Status FinishCombine(const MoeContext& context, ops::CombineInputs terms, const TensorView& residual) override;
  void Drop() override { under_way_.clear(); }
  HostDispatcher* AsHost() override { return this; }

  // In place of FinishCombine, where rows come in parts or are added elsewhere: outputs() has this part's from now on.
  absl::Status FinishPart(const MoeContext& context, const LayerContext& layer);
  // Outputs made here and returned, by routes().slot_row.
  const TensorView& outputs() const { return all_y_; }

  // A backward pass gets x() of the last dispatch, whose routes it has, in one of two ways.
  // Sends the rows of layer.x once more, into the memory of UseInputs.
  absl::Status StartDispatchAgain(const MoeContext& context, const LayerContext& layer);
  absl::Status FinishDispatchAgain(const MoeContext& context);
  // Places x() in this memory, for the caller to fill in.  REQUIRES: holds_rows().
  void RestoreInputs(RowScratch* memory);

  const HostRoutes& routes() const { return routes_; }
  // Whether x() has rows of others; false: it is StartDispatch's.
  bool holds_rows() const { return holds_rows_; }

 private:
  using Incoming = HostRoutes::Incoming;
  using Outgoing = HostRoutes::Outgoing;

  absl::Status Route(const MoeContext& context, const LayerContext& layer);
  comm::Message Pack(const MoeContext& context, const Outgoing& outgoing, char** weights) const;
  DispatchMessageSizes MessageSizes() const;
  absl::Status Unpack(const MoeContext& context, int64_t num_slots, std::vector<comm::Message>* received);
  // Makes x() of this rank's own rows, and room for those of others, if there are any.
  void PlaceInputs(const Stream& stream);
  void SortByExpert(int rank, int64_t num_slots);
  void PlaceOutputs(int rank);
  absl::Status CollectOutputs(const MoeContext& context, int part, int num_parts);

  TensorView own_x_;  // [T, H]
  HostRoutes routes_;
  std::deque<std::unique_ptr<comm::Work>> under_way_;  // parts of a combine may be, together
  TensorView all_y_;                                   // y_, then what comes back
  std::vector<int32_t> row_of_;                        // [rows] what x_rows_ shows
  std::vector<int32_t> begin_of_;                      // [El + 1] what offsets_ shows
  std::vector<int32_t> cursor_;                        // [El + 1] of the sort
  RowScratch* x_memory_ = nullptr;
  bool holds_rows_ = false;
  AddedOutputs added_;
  bool adds_ = false;  // this exchange's outputs
  DType weight_dtype_ = DType::kF32;
};

}  // namespace switchyard::moe
