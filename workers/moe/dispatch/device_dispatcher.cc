#include "workers/moe/dispatch/device_dispatcher.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"
#include "workers/comm/core/timed.h"
#include "workers/moe/layer/moe_context.h"
#include "workers/ops/exchange/combine.h"
#include "workers/tensor/copy.h"
#include "workers/tensor/device_queue.h"

namespace switchyard::moe {
namespace {

comm::SizedParts PartsOf(const TensorView& memory, const MessageParts& parts) {
  return {.memory = memory, .offsets = parts.offsets, .bytes = parts.bytes};
}

// The number of rows where the host sees it, else the bound.
int64_t NumSorted(const ops::ExpertOrder& order, int64_t bound) {
  if (!order.offsets.device().is_cpu()) return bound;
  return order.offsets.data<int32_t>()[order.offsets.NumElements() - 1];
}

}  // namespace

DispatchShape DeviceDispatcher::ShapeOf(const MoeContext& context, const LayerContext& layer) const {
  return {.layout = layer.layout,
          .rank = context.comm->rank(),
          .rows = own_x_.dim(0),
          .top_k = top_k_,
          .row_bytes = own_x_.dim(1) * DTypeBytes(own_x_.dtype())};
}

// A bounded plan has room for the rows and pairs of any exact one.
absl::Status DeviceDispatcher::Reserve(const DispatchCapacity& room) {
  own_x_ = TensorView(nullptr, room.dtype, {room.rows, room.hidden}, room.stream->device());
  top_k_ = room.top_k;
  if (room.split) RETURN_IF_ERROR(split_.Reserve(room));
  RETURN_IF_ERROR(FollowLayout(*room.stream, *room.layout, room.rank));
  const auto experts = static_cast<int64_t>(room.layout->Residents(room.rank).size());
  if (room.layout->num_ranks() == 1) return TakeAlone({room.rows, top_k_}, experts).status();
  const DispatchShape shape = {.layout = room.layout,
                               .rank = room.rank,
                               .rows = room.rows,
                               .top_k = room.top_k,
                               .row_bytes = room.hidden * DTypeBytes(room.dtype)};
  ASSIGN_OR_RETURN(plan_, BoundedPlan(shape, room.rows));
  RETURN_IF_ERROR(TakeRoutes(room.layout->num_ranks()));
  RETURN_IF_ERROR(TakeBlocks());
  RETURN_IF_ERROR(TakeSorted(experts));
  y_ = all_y_.Rows(0, plan_.num_outputs);
  return absl::OkStatus();
}

absl::StatusOr<ops::ExpertPlaces> DeviceDispatcher::TakeAlone(const Shape& choices, int64_t experts) {
  const int64_t n = choices.NumElements();
  ASSIGN_OR_RETURN(const std::vector<TensorView> arrays,
                   (order_memory_.TakeArrays({experts + 1, n, n, n, n, n}, own_x_.device())));
  order_ = {.offsets = arrays[0], .token = arrays[1], .slot_row = arrays[2]};
  output_row_ = order_.slot_row;
  ASSIGN_OR_RETURN(all_y_, y_memory_.Take(n, own_x_.dim(1), own_x_.dtype(), own_x_.device()));
  y_ = all_y_;
  return ops::ExpertPlaces{.rank_of = arrays[4].Reshape(choices),
                           .slot_of = arrays[3].Reshape(choices),
                           .first_of = arrays[5].Reshape(choices)};
}

absl::Status DeviceDispatcher::TakeRoutes(int64_t ranks) {
  const int64_t rows = own_x_.dim(0), choices = rows * top_k_;
  ASSIGN_OR_RETURN(const std::vector<TensorView> arrays,
                   (route_memory_.TakeArrays(
                       {choices, choices, choices, choices, choices, choices, choices, ranks + 1, ranks + 1, 4 * ranks},
                       own_x_.device())));
  const Shape shape = {rows, top_k_};
  routes_ = {.places = {.rank_of = arrays[0].Reshape(shape),
                        .slot_of = arrays[1].Reshape(shape),
                        .first_of = arrays[2].Reshape(shape)},
             .pairs = {.offsets = arrays[7], .token = arrays[3], .slot_row = arrays[4]},
             .rows = {.offsets = arrays[8], .token = arrays[3], .slot_row = arrays[5]}};
  output_row_ = arrays[6];
  counts_ = arrays[9].Reshape({2, ranks, 2});
  return absl::OkStatus();
}

absl::Status DeviceDispatcher::TakeBlocks() {
  const int64_t width = own_x_.dim(1);
  ASSIGN_OR_RETURN(send_, send_memory_.Take(plan_.send.num_rows, width, own_x_.dtype(), own_x_.device()));
  ASSIGN_OR_RETURN(recv_, recv_memory_.Take(plan_.recv.num_rows, width, own_x_.dtype(), own_x_.device()));
  return absl::OkStatus();
}

absl::Status DeviceDispatcher::TakeSorted(int64_t experts) {
  const int64_t num_lists = experts > 0 ? experts : 1;  // a rank without experts sorts nothing
  const int64_t pairs = plan_.recv.num_pairs;
  ASSIGN_OR_RETURN(
      const std::vector<TensorView> arrays,
      (order_memory_.TakeArrays({pairs, num_lists + 1, pairs, pairs, plan_.num_outputs}, own_x_.device())));
  slots_ = arrays[0];
  order_ = {.offsets = arrays[1], .token = arrays[2], .slot_row = arrays[3]};
  sorted_ = arrays[4];
  ASSIGN_OR_RETURN(
      all_y_, y_memory_.Take(plan_.num_outputs + plan_.num_returned, own_x_.dim(1), own_x_.dtype(), own_x_.device()));
  ASSIGN_OR_RETURN(answers_, answer_memory_.Take(plan_.num_answers, own_x_.dim(1), own_x_.dtype(), own_x_.device()));
  return absl::OkStatus();
}

absl::Status DeviceDispatcher::FollowLayout(const Stream& stream, const ExpertLayout& layout, int rank) {
  if (!device_layout_.Shows(layout, rank)) {
    ASSIGN_OR_RETURN(device_layout_, DeviceExpertLayout::Make(stream, layout, rank));
  }
  places_ = device_layout_.view();
  return absl::OkStatus();
}

absl::Status DeviceDispatcher::StartDispatch(const MoeContext& context, const LayerContext& layer) {
  RETURN_IF_ERROR(CheckDispatch(context, layer));
  if (context.exchange == ExchangeMode::kPadded && context.max_rows <= 0) {
    return absl::InvalidArgumentError(absl::StrCat("exchange: the bounded mode needs max_rows, is ", context.max_rows));
  }
  const comm::Timed timed(&context.stats->exchange_seconds);
  own_x_ = layer.x.Rows(layer.rows().begin, layer.rows().count);
  top_k_ = layer.topk_idx.dim(1);
  if (layer.split != nullptr) {
    ASSIGN_OR_RETURN(places_, split_.Send(context, layer));
  } else {
    RETURN_IF_ERROR(FollowLayout(*context.stream, *layer.layout, context.comm->rank()));
  }
  if (context.comm->world() == 1) return StartAlone(context, layer);
  RETURN_IF_ERROR(Route(context, layer));
  if (context.exchange == ExchangeMode::kExact) return SendCounts(context, layer);
  const int64_t max_rows = pipeline::RowsOfChunk(context.max_rows, 0, layer.num_chunks).count;
  ASSIGN_OR_RETURN(plan_, BoundedPlan(ShapeOf(context, layer), max_rows));
  return SendRows(context, layer);
}

// The only rank has all experts, whatever the order of its slots.
absl::Status DeviceDispatcher::StartAlone(const MoeContext& context, const LayerContext& layer) {
  const TensorView topk_idx = layer.topk_idx.Rows(layer.rows().begin, layer.rows().count);
  const auto experts = static_cast<int64_t>(layer.layout->Residents(0).size());
  ASSIGN_OR_RETURN(const ops::ExpertPlaces found, TakeAlone(topk_idx.shape(), experts));
  TensorView slots = topk_idx;
  if (layer.split != nullptr || !device_layout_.slots_are_experts()) {
    slots = found.slot_of;
    RETURN_IF_ERROR(ops::FindExpertPlaces(*context.stream, topk_idx, places_, 0, found));
  }
  RETURN_IF_ERROR(ops::BuildExpertOrder(*context.stream, slots, experts, order_));
  const int64_t rows = NumSorted(order_, topk_idx.NumElements());
  x_ = own_x_;
  x_rows_ = IntView(order_.token).Part(0, rows);
  offsets_ = IntView(order_.offsets);
  y_ = all_y_ = all_y_.Rows(0, rows);
  return absl::OkStatus();
}

absl::Status DeviceDispatcher::Route(const MoeContext& context, const LayerContext& layer) {
  RETURN_IF_ERROR(TakeRoutes(context.comm->world()));
  const pipeline::ChunkRange rows = layer.rows();
  return ops::RouteRows(*context.stream, layer.topk_idx.Rows(rows.begin, rows.count), places_, rows.begin, routes_);
}

absl::Status DeviceDispatcher::SendCounts(const MoeContext& context, const LayerContext& layer) {
  const int64_t ranks = context.comm->world(), pair_bytes = 2 * sizeof(int32_t);
  RETURN_IF_ERROR(ops::CountRoutes(*context.stream, routes_, counts_.Rows(0, 1).Reshape({ranks, 2})));
  MessageParts parts;
  for (int64_t r = 0; r < ranks; ++r) {
    parts.offsets.push_back(r * pair_bytes);
    parts.bytes.push_back(pair_bytes);
  }
  ASSIGN_OR_RETURN(work_,
                   context.comm->AllToAllSized(context.Call(comm::CallUse::kDispatchCounts, layer.index, layer.chunk),
                                               PartsOf(counts_.Rows(0, 1), parts), PartsOf(counts_.Rows(1, 1), parts)));
  return absl::OkStatus();
}

// The only wait of the host in a layer.
absl::Status DeviceDispatcher::ReceiveCounts(const MoeContext& context, const LayerContext& layer) {
  RETURN_IF_ERROR(work_->Wait());
  work_.reset();
  const auto* counts = static_cast<const int32_t*>(counts_.raw());
  if (DeviceQueue* const queue = context.stream->queue(); queue != nullptr) {
    const int64_t bytes = counts_.NumElements() * int64_t{sizeof(int32_t)};
    if (pinned_counts_.bytes() < bytes) {
      ASSIGN_OR_RETURN(pinned_counts_, PinnedBuffer::Allocate(bytes, context.stream->device().kind));
    }
    RETURN_IF_ERROR(queue->Copy(pinned_counts_.data(), counts_.raw(), bytes));
    const absl::Status waited = queue->Synchronize(context.deadline);
    RETURN_IF_ERROR(context.comm->status());  // explains why the stream was freed
    RETURN_IF_ERROR(waited);
    counts = reinterpret_cast<const int32_t*>(pinned_counts_.data());
  }
  const auto size = static_cast<size_t>(2 * context.comm->world());
  const auto sent = absl::MakeConstSpan(counts, size), received = absl::MakeConstSpan(counts + size, size);
  auto plan = ExactPlan(ShapeOf(context, layer), sent, received);
  if (!plan.ok()) context.comm->Abort(plan.status().message());
  RETURN_IF_ERROR(plan.status());
  plan_ = *std::move(plan);
  CountExact(context, sent, received);
  return absl::OkStatus();
}

void DeviceDispatcher::CountExact(const MoeContext& context, absl::Span<const int32_t> sent,
                                  absl::Span<const int32_t> received) {
  const int me = context.comm->rank();
  for (int r = 0; r < context.comm->world(); ++r) {
    if (r != me) context.stats->hidden_rows_sent += sent[2 * r];
    if (r != me) context.stats->rows_sent += sent[2 * r + 1];
    if (r != me) context.stats->rows_received += received[2 * r + 1];
    context.stats->expert_rows += received[2 * r + 1];
  }
}

absl::Status DeviceDispatcher::SendRows(const MoeContext& context, const LayerContext& layer) {
  RETURN_IF_ERROR(TakeBlocks());
  const int64_t own_begin = plan_.recv.of[plan_.recv.rank].first_row;
  RETURN_IF_ERROR(ops::PackRows(*context.stream, plan_.send, routes_, own_x_,
                                {.send = send_,
                                 .own = recv_.Rows(own_begin, own_x_.dim(0)),
                                 .first_output = plan_.num_outputs,
                                 .output_row = output_row_}));
  context.stats->bytes_sent += plan_.dispatch_send.total_bytes();
  ASSIGN_OR_RETURN(
      work_, context.comm->AllToAllSized(context.Call(comm::CallUse::kDispatch, layer.index, layer.chunk),
                                         PartsOf(send_, plan_.dispatch_send), PartsOf(recv_, plan_.dispatch_recv)));
  return absl::OkStatus();
}

// Sorts the received and this rank's own pairs by expert, and places the experts' outputs.
absl::Status DeviceDispatcher::SortReceived(const MoeContext& context, const LayerContext& layer) {
  const auto experts = static_cast<int64_t>(layer.layout->Residents(context.comm->rank()).size());
  RETURN_IF_ERROR(TakeSorted(experts));
  const absl::Status read = ops::ReadPairs(*context.stream, plan_.recv, routes_.places, recv_, experts, slots_);
  if (!read.ok()) context.comm->Abort(read.message());
  RETURN_IF_ERROR(read);
  RETURN_IF_ERROR(ops::BuildExpertOrder(*context.stream, slots_.Reshape({plan_.recv.num_pairs, 1}),
                                        order_.offsets.NumElements() - 1, order_));
  RETURN_IF_ERROR(ops::PlacePairs(*context.stream, plan_.recv, top_k_, recv_,
                                  {.y_row = order_.slot_row, .x_rows = sorted_, .output_row = output_row_}));
  const int64_t rows = NumSorted(order_, plan_.num_outputs);
  x_ = recv_;
  x_rows_ = IntView(sorted_).Part(0, rows);
  offsets_ = IntView(order_.offsets).Part(0, experts + 1);
  y_ = all_y_.Rows(0, rows);
  return absl::OkStatus();
}

absl::Status DeviceDispatcher::FinishDispatch(const MoeContext& context, const LayerContext& layer) {
  if (context.comm->world() == 1) return absl::OkStatus();
  const comm::Timed timed(&context.stats->exchange_seconds);
  if (context.exchange == ExchangeMode::kExact) {
    RETURN_IF_ERROR(ReceiveCounts(context, layer));
    RETURN_IF_ERROR(SendRows(context, layer));
  }
  RETURN_IF_ERROR(work_->Wait());
  work_.reset();
  return SortReceived(context, layer);
}

absl::Status DeviceDispatcher::StartCombine(const MoeContext& context, const LayerContext& layer) {
  if (context.comm->world() == 1) return absl::OkStatus();
  const comm::Timed timed(&context.stats->exchange_seconds);
  const int64_t own_pairs = plan_.recv.num_pairs - plan_.num_answers;
  RETURN_IF_ERROR(
      ops::GatherPresent(*context.stream, y_, IntView(order_.slot_row).Part(own_pairs, plan_.num_answers), answers_));
  context.stats->bytes_sent += plan_.combine_send.total_bytes();
  ASSIGN_OR_RETURN(
      work_, context.comm->AllToAllSized(context.Call(comm::CallUse::kCombine, layer.index, layer.chunk),
                                         PartsOf(answers_, plan_.combine_send), PartsOf(all_y_, plan_.combine_recv)));
  return absl::OkStatus();
}

absl::Status DeviceDispatcher::FinishCombine(const MoeContext& context, ops::CombineInputs terms,
                                             const TensorView& residual) {
  if (context.comm->world() > 1) {
    const comm::Timed timed(&context.stats->exchange_seconds);
    RETURN_IF_ERROR(work_->Wait());
    work_.reset();
  }
  terms.y = all_y_;
  terms.slot_row = IntView(output_row_);
  return ops::Combine(*context.stream, terms, residual);
}

}  // namespace switchyard::moe
