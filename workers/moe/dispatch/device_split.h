// A SplitTable in a device's memory: the place of each of a layer's rows, in the stream's order.
//
// Sent for every exchange, so it cannot be recorded.  A split names rows by ordinals
// (scheduler/placement/route/split.h), which come from a stable sort of all rows of the layer by expert.
// Thread-compatible.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "workers/moe/dispatch/token_dispatcher.h"
#include "workers/moe/layer/row_scratch.h"
#include "workers/ops/exchange/expert_places.h"
#include "workers/ops/exchange/permute.h"
#include "workers/tensor/int_upload.h"

namespace switchyard::moe {

class DeviceSplit {
 public:
  // Allocates memory for exchanges of that size.  Errors: ResourceExhausted.
  absl::Status Reserve(const DispatchCapacity& room);
  // The places of layer.rows(), by layer.split; valid until the next call.
  // Errors: Internal (a piece goes where its expert is not), the device's.
  absl::StatusOr<ops::PlaceTable> Send(const MoeContext& context, const LayerContext& layer);

 private:
  // The table as the host writes it.
  struct Arrays {
    IntUpload::Array offsets;  // [E + 1]
    IntUpload::Array places;   // [places, 2]: rank, slot
    IntUpload::Array rows;     // [places]
  };

  absl::Status TakeTable(Device device, int64_t experts, int64_t places);
  absl::Status TakeOrder(Device device, int64_t choices, int64_t experts);
  // Returns how many places get rows.
  absl::StatusOr<int64_t> Write(const LayerContext& layer, int rank, const Arrays& table) const;

  IntUpload table_;
  int64_t experts_ = 0, places_ = 0;  // that it has room for
  ops::ExpertOrder order_;            // of the layer's choices
  RowScratch order_memory_;
};

}  // namespace switchyard::moe
