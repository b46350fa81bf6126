#include "workers/moe/dispatch/host_dispatcher.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"
#include "workers/comm/core/timed.h"
#include "workers/moe/dispatch/split_cursor.h"
#include "workers/moe/layer/moe_context.h"
#include "workers/ops/exchange/combine.h"

namespace switchyard::moe {
namespace {

// The place of the next row for an expert.
absl::StatusOr<ExpertLayout::Place> PlaceOfRow(const LayerContext& layer, int me, int expert, int64_t token) {
  if (layer.split == nullptr) return layer.layout->PlaceOf(expert, me, token);
  const int32_t rank = layer.split->Next(expert);
  const int32_t slot = rank < 0 ? -1 : layer.layout->SlotOn(rank, expert);
  if (slot >= 0) return ExpertLayout::Place{rank, slot};
  return absl::InternalError(
      absl::StrCat("exchange: the split sends a row of expert ", expert, " to rank ", rank, ", where it is not"));
}

}  // namespace

absl::Status HostDispatcher::Route(const MoeContext& context, const LayerContext& layer) {
  const int me = context.comm->rank();
  const pipeline::ChunkRange rows = layer.rows();
  const TensorView topk_idx = layer.topk_idx.Rows(rows.begin, rows.count);
  const int64_t num_tokens = topk_idx.dim(0), top_k = topk_idx.dim(1);
  const int world = context.comm->world();
  routes_.stays = world == 1 || layer.stays;
  routes_.outgoing.resize(world);
  routes_.incoming.resize(world);
  routes_.own.clear();
  for (Outgoing& to : routes_.outgoing) {
    to.token.clear();
    to.pair_row.clear();
    to.pair_slot.clear();
  }
  for (Incoming& from : routes_.incoming) {
    from.row.clear();
    from.slot.clear();
    from.first_row = from.num_rows = 0;
  }
  routes_.rank_of.resize(num_tokens * top_k);
  routes_.pair_of.resize(num_tokens * top_k);
  const int32_t* idx = num_tokens == 0 ? nullptr : topk_idx.data<int32_t>();
  for (int64_t i = 0; i < num_tokens * top_k; ++i) {
    const int32_t expert = idx[i];
    if (expert < -1 || expert >= layer.layout->num_experts()) {
      return absl::InvalidArgumentError(absl::StrCat("exchange: topk_idx[", i / top_k, ", ", i % top_k, "] = ", expert,
                                                     " is no expert of ", layer.layout->num_experts()));
    }
    routes_.rank_of[i] = -1;
    if (expert == -1) continue;
    const int32_t token = static_cast<int32_t>(i / top_k);
    ASSIGN_OR_RETURN(ExpertLayout::Place place, PlaceOfRow(layer, me, expert, rows.begin + token));
    const bool of_chunk = layer.cut == pipeline::Cut::kRows ||
                          pipeline::ChunkOfPeers(me, place.rank, world, layer.num_chunks) == layer.chunk;
    if (!of_chunk || (layer.stays && place.rank != me)) continue;
    routes_.rank_of[i] = place.rank;
    if (place.rank == me) {
      if (routes_.own.empty() || routes_.own.back() != token) routes_.own.push_back(token);
      routes_.pair_of[i] = static_cast<int32_t>(routes_.incoming[me].row.size());
      routes_.incoming[me].row.push_back(static_cast<int32_t>(routes_.own.size()) - 1);
      routes_.incoming[me].slot.push_back(place.slot);
      continue;
    }
    Outgoing& to = routes_.outgoing[place.rank];
    if (to.token.empty() || to.token.back() != token) to.token.push_back(token);
    routes_.pair_of[i] = static_cast<int32_t>(to.pair_row.size());
    to.pair_row.push_back(static_cast<int32_t>(to.token.size()) - 1);
    to.pair_slot.push_back(place.slot);
  }
  routes_.num_rows = routes_.incoming[me].num_rows = static_cast<int64_t>(routes_.own.size());
  return absl::OkStatus();
}

DispatchMessageSizes HostDispatcher::MessageSizes() const {
  return {.row_bytes = RowBytes(own_x_), .weight_bytes = adds_ ? DTypeBytes(weight_dtype_) : 0};
}

comm::Message HostDispatcher::Pack(const MoeContext& context, const Outgoing& outgoing, char** weights) const {
  if (outgoing.pair_row.empty()) return comm::Message();
  const DispatchMessageSizes sizes = MessageSizes();
  const int64_t num_rows = static_cast<int64_t>(outgoing.token.size());
  const int64_t num_pairs = static_cast<int64_t>(outgoing.pair_row.size());
  const DispatchMessageLayout layout(num_rows, num_pairs, sizes);
  comm::Message message = context.comm->NewMessage(layout.bytes);
  const DispatchMessageView view = BeginDispatchMessage(message, num_rows, num_pairs, sizes);
  std::copy(outgoing.pair_row.begin(), outgoing.pair_row.end(), view.pair_row.begin());
  std::copy(outgoing.pair_slot.begin(), outgoing.pair_slot.end(), view.pair_slot.begin());
  *weights = view.weights.data();
  GatherTo(*context.stream, own_x_, outgoing.token, view.rows);
  context.stats->rows_sent += num_pairs;
  context.stats->hidden_rows_sent += num_rows;
  context.stats->bytes_sent += layout.bytes;
  return message;
}

absl::Status HostDispatcher::StartDispatch(const MoeContext& context, const LayerContext& layer) {
  if (context.exchange != ExchangeMode::kExact) {
    return absl::UnimplementedError(
        "exchange: the bounded mode is DeviceDispatcher's, on the CPU, too; this one has kExact");
  }
  RETURN_IF_ERROR(CheckDispatch(context, layer));
  const comm::Timed timed(&context.stats->exchange_seconds);
  own_x_ = layer.x.Rows(layer.rows().begin, layer.rows().count);
  adds_ = context.add_outputs && context.comm->world() > 1;
  if (adds_) weight_dtype_ = layer.topk_weight.dtype();
  RETURN_IF_ERROR(Route(context, layer));
  if (routes_.stays) return context.comm->status();  // whether it is given up
  std::vector<comm::Message> out;
  std::vector<char*> weights(routes_.outgoing.size(), nullptr);  // of pairs that go to each rank
  for (size_t rank = 0; rank < weights.size(); ++rank) {
    out.push_back(Pack(context, routes_.outgoing[rank], &weights[rank]));
  }
  if (adds_) {
    const TensorView topk_weight = layer.topk_weight.Rows(layer.rows().begin, layer.rows().count);
    added_.Begin(routes_, context.comm->rank(), topk_weight);
    added_.PackWeights(weights);
  }
  ASSIGN_OR_RETURN(
      under_way_.emplace_back(),
      context.comm->AllToAllV(context.Call(comm::CallUse::kDispatch, layer.index, layer.chunk), std::move(out)));
  return absl::OkStatus();
}

// Puts the received rows behind this rank's own, in one matrix.
absl::Status HostDispatcher::Unpack(const MoeContext& context, int64_t num_slots,
                                    std::vector<comm::Message>* received) {
  const int me = context.comm->rank();
  const DispatchMessageSizes sizes = MessageSizes();
  std::vector<DispatchMessageView> views(received->size());
  const int64_t own_rows = routes_.num_rows;
  for (int source = 0; source < context.comm->world(); ++source) {
    if (source == me) continue;
    ASSIGN_OR_RETURN(views[source], ReadDispatchMessage((*received)[source], num_slots, sizes));
    routes_.num_rows += views[source].num_rows;
  }
  PlaceInputs(*context.stream);
  int64_t base = own_rows;
  for (int source = 0; source < context.comm->world(); ++source) {
    const DispatchMessageView& view = views[source];
    if (view.num_rows == 0) continue;
    std::memcpy(RowAt(x_, base), view.rows, view.num_rows * sizes.row_bytes);
    if (adds_) added_.TakeWeights(source, view.weights);
    Incoming& from = routes_.incoming[source];
    for (const int32_t row : view.pair_row) from.row.push_back(static_cast<int32_t>(base) + row);
    from.slot.assign(view.pair_slot.begin(), view.pair_slot.end());
    from.first_row = base;
    from.num_rows = view.num_rows;
    context.stats->rows_received += static_cast<int64_t>(from.row.size());
    base += view.num_rows;
  }
  return absl::OkStatus();
}

void HostDispatcher::PlaceInputs(const Stream& stream) {
  holds_rows_ = routes_.num_rows > static_cast<int64_t>(routes_.own.size());
  x_ = own_x_;
  if (!holds_rows_) return;
  SY_CHECK(x_memory_ != nullptr);
  x_ = x_memory_->Rows(routes_.num_rows, own_x_.dim(1), own_x_.dtype());
  GatherTo(stream, own_x_, routes_.own, static_cast<char*>(x_.raw()));
}

// Stable: within an expert by rank, then as the rank has them.  Only repeatability depends on it.
void HostDispatcher::SortByExpert(int rank, int64_t num_slots) {
  begin_of_.assign(num_slots + 1, 0);
  for (const Incoming& from : routes_.incoming) {
    for (const int32_t slot : from.slot) ++begin_of_[slot + 1];
  }
  for (int64_t s = 0; s < num_slots; ++s) begin_of_[s + 1] += begin_of_[s];
  row_of_.resize(begin_of_[num_slots]);
  cursor_ = begin_of_;
  for (Incoming& from : routes_.incoming) {
    from.y_row.resize(from.row.size());
    for (size_t i = 0; i < from.row.size(); ++i) {
      from.y_row[i] = cursor_[from.slot[i]]++;
      row_of_[from.y_row[i]] = from.row[i];
    }
  }
  if (!holds_rows_) {
    const Incoming& own = routes_.incoming[rank];
    for (size_t i = 0; i < own.row.size(); ++i) row_of_[own.y_row[i]] = routes_.own[own.row[i]];
  }
  x_rows_ = row_of_;
  offsets_ = begin_of_;
}

// Places the output of each (t, k): among this rank's own, or in its rank's answer.
void HostDispatcher::PlaceOutputs(int rank) {
  routes_.back_rows.assign(routes_.outgoing.size() + 1, x_rows_.size());
  for (size_t r = 0; r < routes_.outgoing.size(); ++r) {
    routes_.back_rows[r + 1] = routes_.back_rows[r] + static_cast<int64_t>(routes_.outgoing[r].pair_row.size());
  }
  routes_.slot_row.resize(routes_.rank_of.size());
  for (size_t i = 0; i < routes_.rank_of.size(); ++i) {
    if (routes_.rank_of[i] < 0) {
      routes_.slot_row[i] = -1;
    } else if (routes_.rank_of[i] == rank) {
      routes_.slot_row[i] = routes_.incoming[rank].y_row[routes_.pair_of[i]];
    } else {
      routes_.slot_row[i] = static_cast<int32_t>(routes_.back_rows[routes_.rank_of[i]]) + routes_.pair_of[i];
    }
  }
}

absl::Status HostDispatcher::StartDispatchAgain(const MoeContext& context, const LayerContext& layer) {
  const comm::Timed timed(&context.stats->exchange_seconds);
  own_x_ = layer.x.Rows(layer.rows().begin, layer.rows().count);
  if (routes_.stays) return context.comm->status();
  std::vector<comm::Message> out(routes_.outgoing.size());
  for (size_t rank = 0; rank < out.size(); ++rank) {
    const std::vector<int32_t>& rows = routes_.outgoing[rank].token;
    if (rows.empty()) continue;
    out[rank] = context.comm->NewMessage(static_cast<int64_t>(rows.size()) * RowBytes(own_x_));
    GatherTo(*context.stream, own_x_, rows, out[rank].payload());
    context.stats->bytes_sent += out[rank].bytes();
  }
  ASSIGN_OR_RETURN(
      under_way_.emplace_back(),
      context.comm->AllToAllV(context.Call(comm::CallUse::kDispatch, layer.index, layer.chunk), std::move(out)));
  return absl::OkStatus();
}

absl::Status HostDispatcher::FinishDispatchAgain(const MoeContext& context) {
  const comm::Timed timed(&context.stats->exchange_seconds);
  PlaceInputs(*context.stream);
  if (routes_.stays) return absl::OkStatus();
  RETURN_IF_ERROR(under_way_.front()->Wait());
  for (size_t rank = 0; rank < routes_.incoming.size(); ++rank) {
    if (static_cast<int>(rank) == context.comm->rank()) continue;
    const Incoming& from = routes_.incoming[rank];
    const comm::Message& message = under_way_.front()->received()[rank];
    const int64_t bytes = from.num_rows * RowBytes(own_x_);
    RETURN_IF_ERROR(
        comm::ExpectBytes(context.comm, "a repeated dispatch", static_cast<int>(rank), message.bytes(), bytes));
    if (bytes > 0) std::memcpy(RowAt(x_, from.first_row), message.payload(), static_cast<size_t>(bytes));
  }
  under_way_.pop_front();
  return absl::OkStatus();
}

void HostDispatcher::RestoreInputs(RowScratch* memory) {
  SY_CHECK(holds_rows());
  x_ = memory->Rows(x_.dim(0), x_.dim(1), x_.dtype());
}

void HostDispatcher::TakeOutputs(RowScratch* memory) {
  all_y_ = memory->Rows(routes_.back_rows.back(), own_x_.dim(1), own_x_.dtype());
  y_ = all_y_.Rows(0, x_rows_.size());
}

absl::Status HostDispatcher::FinishDispatch(const MoeContext& context, const LayerContext& layer) {
  const comm::Timed timed(&context.stats->exchange_seconds);
  const int me = context.comm->rank();
  const auto num_slots = static_cast<int64_t>(layer.layout->Residents(me).size());
  if (routes_.stays) {
    PlaceInputs(*context.stream);
  } else {
    RETURN_IF_ERROR(under_way_.front()->Wait());
    const absl::Status unpacked = Unpack(context, num_slots, &under_way_.front()->received());
    if (!unpacked.ok()) context.comm->Abort(unpacked.message());
    RETURN_IF_ERROR(unpacked);
    under_way_.pop_front();
  }
  SortByExpert(me, num_slots);
  if (adds_) {
    added_.PlacePartials(x_rows_.size(), &routes_);
  } else {
    PlaceOutputs(me);
  }
  context.stats->expert_rows += x_rows_.size();
  for (size_t slot = 0; slot + 1 < begin_of_.size(); ++slot) {
    context.stats->experts_read += begin_of_[slot + 1] > begin_of_[slot] ? 1 : 0;
  }
  return absl::OkStatus();
}

absl::Status HostDispatcher::StartCombine(const MoeContext& context, const LayerContext& layer) {
  if (routes_.stays) return absl::OkStatus();
  const comm::Timed timed(&context.stats->exchange_seconds);
  const int me = context.comm->rank(), world = context.comm->world();
  std::vector<comm::Message> out(world);
  for (int rank = 0; rank < world; ++rank) {
    const Incoming& from = routes_.incoming[rank];
    const bool own = rank == me;
    if ((own && !adds_) || from.y_row.empty()) continue;
    if (pipeline::PartOfPeers(me, rank, world, layer.num_parts) != layer.part) continue;
    const auto num_rows = adds_ ? added_.NumRows(rank) : static_cast<int64_t>(from.y_row.size());
    if (own) {
      RETURN_IF_ERROR(added_.Add(*context.stream, rank, y_, all_y_.Rows(routes_.back_rows[rank], num_rows)));
      continue;
    }
    out[rank] = context.comm->NewMessage(num_rows * RowBytes(y_));
    context.stats->bytes_sent += out[rank].bytes();
    if (!adds_) {
      GatherTo(*context.stream, y_, from.y_row, out[rank].payload());
      continue;
    }
    const TensorView answer(out[rank].payload(), y_.dtype(), {num_rows, y_.dim(1)});
    const absl::Status added = added_.Add(*context.stream, rank, y_, answer);
    if (!added.ok()) context.comm->Abort(added.message());
    RETURN_IF_ERROR(added);
  }
  ASSIGN_OR_RETURN(under_way_.emplace_back(),
                   context.comm->AllToAllV(context.Call(comm::CallUse::kCombine, layer.index, layer.chunk + layer.part),
                                           std::move(out)));
  return absl::OkStatus();
}

absl::Status HostDispatcher::CollectOutputs(const MoeContext& context, int part, int num_parts) {
  const comm::Timed timed(&context.stats->exchange_seconds);
  RETURN_IF_ERROR(under_way_.front()->Wait());
  const int me = context.comm->rank(), world = context.comm->world();
  for (int rank = 0; rank < world; ++rank) {
    if (rank == me) continue;
    const comm::Message& message = under_way_.front()->received()[rank];
    const bool of_part = pipeline::PartOfPeers(rank, me, world, num_parts) == part;
    const int64_t bytes = of_part ? (routes_.back_rows[rank + 1] - routes_.back_rows[rank]) * RowBytes(all_y_) : 0;
    RETURN_IF_ERROR(comm::ExpectBytes(context.comm, "a combine", rank, message.bytes(), bytes));
    if (bytes > 0) std::memcpy(RowAt(all_y_, routes_.back_rows[rank]), message.payload(), bytes);
  }
  under_way_.pop_front();
  return absl::OkStatus();
}

absl::Status HostDispatcher::FinishPart(const MoeContext& context, const LayerContext& layer) {
  return routes_.stays ? absl::OkStatus() : CollectOutputs(context, layer.part, layer.num_parts);
}

absl::Status HostDispatcher::FinishCombine(const MoeContext& context, ops::CombineInputs terms,
                                           const TensorView& residual) {
  if (!routes_.stays) RETURN_IF_ERROR(CollectOutputs(context, 0, 1));
  terms.y = all_y_;
  terms.slot_row = routes_.slot_row;
  if (adds_) terms.weight = {};  // the partial sums have theirs
  return ops::Combine(*context.stream, terms, residual);
}

}  // namespace switchyard::moe
