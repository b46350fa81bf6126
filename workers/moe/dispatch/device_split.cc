#include "workers/moe/dispatch/device_split.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"
#include "workers/moe/dispatch/split_cursor.h"
#include "workers/moe/layer/moe_context.h"

namespace switchyard::moe {
namespace {

// A split has at most one piece for each of a layer's places.
int64_t NumPlaces(const ExpertLayout& layout) {
  int64_t places = 0;
  for (int rank = 0; rank < layout.num_ranks(); ++rank) places += static_cast<int64_t>(layout.Residents(rank).size());
  return places;
}

}  // namespace

absl::Status DeviceSplit::TakeTable(Device device, int64_t experts, int64_t places) {
  if (experts <= experts_ && places <= places_) return absl::OkStatus();
  experts_ = std::max(experts, experts_);
  places_ = std::max(places, places_);
  ASSIGN_OR_RETURN(table_, IntUpload::Create(device, {experts_ + 1, 2 * places_, places_}));
  return absl::OkStatus();
}

absl::Status DeviceSplit::TakeOrder(Device device, int64_t choices, int64_t experts) {
  ASSIGN_OR_RETURN(const std::vector<TensorView> arrays,
                   (order_memory_.TakeArrays({experts + 1, choices, choices}, device)));
  order_ = {.offsets = arrays[0], .token = arrays[1], .slot_row = arrays[2]};
  return absl::OkStatus();
}

absl::Status DeviceSplit::Reserve(const DispatchCapacity& room) {
  const Device device = room.stream->device();
  RETURN_IF_ERROR(TakeTable(device, room.layout->num_experts(), NumPlaces(*room.layout)));
  return TakeOrder(device, room.rows * room.top_k, room.layout->num_experts());
}

absl::StatusOr<int64_t> DeviceSplit::Write(const LayerContext& layer, int rank, const Arrays& table) const {
  int32_t count = 0;
  for (int expert = 0; expert < layer.layout->num_experts(); ++expert) {
    table.offsets.host[static_cast<size_t>(expert)] = count;
    for (const placement::SplitPiece& piece : layer.split->table().Pieces(rank, expert)) {
      const int32_t slot = layer.layout->SlotOn(piece.device, expert);
      if (slot < 0) {
        return absl::InternalError(absl::StrCat("exchange: the split sends ", piece.rows, " rows of expert ", expert,
                                                " to rank ", piece.device, ", where it is not"));
      }
      SY_CHECK_LT(count, places_);
      table.places.host[2 * static_cast<size_t>(count)] = piece.device;
      table.places.host[2 * static_cast<size_t>(count) + 1] = slot;
      table.rows.host[static_cast<size_t>(count++)] = piece.rows;
    }
  }
  table.offsets.host[static_cast<size_t>(layer.layout->num_experts())] = count;
  return count;
}

absl::StatusOr<ops::PlaceTable> DeviceSplit::Send(const MoeContext& context, const LayerContext& layer) {
  const Stream& stream = *context.stream;
  const pipeline::ChunkRange rows = layer.rows();
  const int64_t experts = layer.layout->num_experts(), top_k = layer.topk_idx.dim(1);
  RETURN_IF_ERROR(TakeTable(stream.device(), experts, NumPlaces(*layer.layout)));
  RETURN_IF_ERROR(TakeOrder(stream.device(), layer.topk_idx.NumElements(), experts));
  RETURN_IF_ERROR(ops::BuildExpertOrder(stream, layer.topk_idx, experts, order_));
  RETURN_IF_ERROR(table_.Begin(stream));
  const Arrays table = {
      .offsets = table_.Take(experts + 1), .places = table_.Take(2 * places_), .rows = table_.Take(places_)};
  ASSIGN_OR_RETURN(const int64_t places, Write(layer, context.comm->rank(), table));
  RETURN_IF_ERROR(table_.Send(stream));
  // Without rows there are no pieces, and nothing is looked up.
  const int64_t shown = std::max<int64_t>(places, 1);
  return ops::PlaceTable{.place_offsets = table.offsets.device,
                         .places = table.places.device.Part(0, 2 * shown),
                         .slot_here = {},
                         .rank = context.comm->rank(),
                         .dealt = {.place_rows = table.rows.device.Part(0, shown),
                                   .sorted_at = IntView(order_.slot_row).Part(rows.begin * top_k, rows.count * top_k),
                                   .expert_offsets = IntView(order_.offsets)}};
}

}  // namespace switchyard::moe
