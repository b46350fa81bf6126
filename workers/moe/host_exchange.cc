#include "workers/moe/host_exchange.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"
#include "workers/comm/timed.h"
#include "workers/ops/combine.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard {
namespace {

constexpr int64_t kCopyGrainBytes = 64 << 10;

int64_t RowBytes(const TensorView& rows) { return rows.dim(1) * DTypeBytes(rows.dtype()); }
char* RowAt(const TensorView& rows, int64_t i) {
  return static_cast<char*>(rows.raw()) + i * rows.row_stride() * DTypeBytes(rows.dtype());
}

// to[i] = from[index[i]], rows of `from`'s width, one after the other.
void GatherTo(const Stream& stream, const TensorView& from, absl::Span<const int32_t> index, char* to) {
  const int64_t bytes = RowBytes(from);
  stream.pool().ParallelFor(static_cast<int64_t>(index.size()), std::max<int64_t>(1, kCopyGrainBytes / bytes),
                            [&](int64_t begin, int64_t end) {
                              for (int64_t i = begin; i < end; ++i)
                                std::memcpy(to + i * bytes, RowAt(from, index[i]), bytes);
                            });
}

absl::Status CheckDispatch(const ExchangeContext& context, const TensorView& topk_idx, const TensorView& x) {
  SY_CHECK_EQ(context.layout->num_ranks(), context.comm->world());
  if (context.mode != ExchangeMode::kExact) {
    return absl::UnimplementedError(
        "exchange: the bounded mode is DeviceExchange's, on the CPU, too; this one has kExact");
  }
  if (topk_idx.rank() != 2 || topk_idx.dtype() != DType::kI32 || x.rank() != 2 || topk_idx.dim(0) != x.dim(0) ||
      !topk_idx.contiguous() || !IsFloating(x.dtype())) {
    return absl::InvalidArgumentError(absl::StrCat("exchange: wants topk_idx [T, K] int32 and x [T, H], got ",
                                                   topk_idx.ToString(), " and ", x.ToString()));
  }
  return absl::OkStatus();
}

// Where the next row for an expert goes.
absl::StatusOr<ExpertLayout::Place> PlaceOfRow(const ExchangeContext& context, int expert, int64_t token) {
  if (context.split == nullptr) return context.layout->PlaceOf(expert, context.comm->rank(), token);
  const int32_t rank = context.split->Next(expert);
  const int32_t slot = rank < 0 ? -1 : context.layout->SlotOn(rank, expert);
  if (slot >= 0) return ExpertLayout::Place{rank, slot};
  return absl::InternalError(
      absl::StrCat("exchange: the split sends a row of expert ", expert, " to rank ", rank, ", where it is not"));
}

}  // namespace

absl::Status HostExchange::Route(const ExchangeContext& context, const TensorView& topk_idx, int64_t first_token) {
  const int me = context.comm->rank();
  const int64_t num_tokens = topk_idx.dim(0), top_k = topk_idx.dim(1);
  outgoing_.resize(context.comm->world());
  incoming_.resize(context.comm->world());
  for (Outgoing& to : outgoing_) {
    to.token.clear();
    to.pair_row.clear();
    to.pair_slot.clear();
  }
  for (Incoming& from : incoming_) {
    from.row.clear();
    from.slot.clear();
  }
  rank_of_.resize(num_tokens * top_k);
  pair_of_.resize(num_tokens * top_k);
  const int32_t* idx = num_tokens == 0 ? nullptr : topk_idx.data<int32_t>();
  for (int64_t i = 0; i < num_tokens * top_k; ++i) {
    const int32_t expert = idx[i];
    if (expert < -1 || expert >= context.layout->num_experts()) {
      return absl::InvalidArgumentError(absl::StrCat("exchange: topk_idx[", i / top_k, ", ", i % top_k, "] = ", expert,
                                                     " is no expert of ", context.layout->num_experts()));
    }
    rank_of_[i] = -1;
    if (expert == -1) continue;
    const int32_t token = static_cast<int32_t>(i / top_k);
    ExpertLayout::Place place;
    ASSIGN_OR_RETURN(place, PlaceOfRow(context, expert, first_token + token));
    rank_of_[i] = place.rank;
    if (place.rank == me) {
      pair_of_[i] = static_cast<int32_t>(incoming_[me].row.size());
      incoming_[me].row.push_back(token);
      incoming_[me].slot.push_back(place.slot);
      continue;
    }
    Outgoing& to = outgoing_[place.rank];
    if (to.token.empty() || to.token.back() != token) to.token.push_back(token);
    pair_of_[i] = static_cast<int32_t>(to.pair_row.size());
    to.pair_row.push_back(static_cast<int32_t>(to.token.size()) - 1);
    to.pair_slot.push_back(place.slot);
  }
  return absl::OkStatus();
}

Message HostExchange::Pack(const ExchangeContext& context, const Outgoing& outgoing) const {
  if (outgoing.pair_row.empty()) return Message();
  const int64_t row_bytes = RowBytes(own_x_);
  const int64_t num_rows = static_cast<int64_t>(outgoing.token.size());
  const int64_t num_pairs = static_cast<int64_t>(outgoing.pair_row.size());
  const DispatchMessageLayout layout(num_rows, num_pairs, row_bytes);
  Message message = context.comm->NewMessage(layout.bytes);
  const DispatchMessageView view = BeginDispatchMessage(message, num_rows, num_pairs, row_bytes);
  std::copy(outgoing.pair_row.begin(), outgoing.pair_row.end(), view.pair_row.begin());
  std::copy(outgoing.pair_slot.begin(), outgoing.pair_slot.end(), view.pair_slot.begin());
  GatherTo(*context.stream, own_x_, outgoing.token, view.rows);
  context.stats->rows_sent += num_pairs;
  context.stats->hidden_rows_sent += num_rows;
  context.stats->bytes_sent += layout.bytes;
  return message;
}

absl::Status HostExchange::StartDispatch(const ExchangeContext& context, const TensorView& topk_idx,
                                         const TensorView& x, int64_t first_token) {
  RETURN_IF_ERROR(CheckDispatch(context, topk_idx, x));
  const Timed timed(&context.stats->exchange_seconds);
  own_x_ = x;
  RETURN_IF_ERROR(Route(context, topk_idx, first_token));
  if (context.comm->world() == 1) return absl::OkStatus();
  std::vector<Message> out;
  for (const Outgoing& to : outgoing_) out.push_back(Pack(context, to));
  ASSIGN_OR_RETURN(work_,
                   context.comm->AllToAllV({.stream = context.stream, .deadline = context.deadline}, std::move(out)));
  return absl::OkStatus();
}

// Puts the rows that came behind this rank's own, so that experts find all of them in one matrix.
absl::Status HostExchange::Unpack(const ExchangeContext& context, std::vector<Message>* received) {
  const int me = context.comm->rank();
  const int64_t row_bytes = RowBytes(own_x_);
  const int64_t num_slots = static_cast<int64_t>(context.layout->Residents(me).size());
  std::vector<DispatchMessageView> views(received->size());
  const int64_t own_rows = incoming_[me].row.empty() ? 0 : own_x_.dim(0);
  int64_t num_rows = own_rows;
  for (int source = 0; source < context.comm->world(); ++source) {
    if (source == me) continue;
    ASSIGN_OR_RETURN(views[source], ReadDispatchMessage((*received)[source], num_slots, row_bytes));
    num_rows += views[source].num_rows;
  }
  x_ = own_x_;
  if (num_rows == own_rows) return absl::OkStatus();
  x_ = x_memory_.Rows(num_rows, own_x_.dim(1), own_x_.dtype());
  for (int64_t i = 0; i < own_rows; ++i) std::memcpy(RowAt(x_, i), RowAt(own_x_, i), row_bytes);
  int64_t base = own_rows;
  for (int source = 0; source < context.comm->world(); ++source) {
    const DispatchMessageView& view = views[source];
    if (view.num_rows == 0) continue;
    std::memcpy(RowAt(x_, base), view.rows, view.num_rows * row_bytes);
    Incoming& from = incoming_[source];
    for (const int32_t row : view.pair_row) from.row.push_back(static_cast<int32_t>(base) + row);
    from.slot.assign(view.pair_slot.begin(), view.pair_slot.end());
    context.stats->rows_received += static_cast<int64_t>(from.row.size());
    base += view.num_rows;
  }
  return absl::OkStatus();
}

// Stable: within an expert by rank, then as the rank has them.  (Nothing depends on it but repeatability.)
void HostExchange::SortByExpert(int64_t num_slots) {
  begin_of_.assign(num_slots + 1, 0);
  for (const Incoming& from : incoming_) {
    for (const int32_t slot : from.slot) ++begin_of_[slot + 1];
  }
  for (int64_t s = 0; s < num_slots; ++s) begin_of_[s + 1] += begin_of_[s];
  row_of_.resize(begin_of_[num_slots]);
  cursor_ = begin_of_;
  for (Incoming& from : incoming_) {
    from.y_row.resize(from.row.size());
    for (size_t i = 0; i < from.row.size(); ++i) {
      from.y_row[i] = cursor_[from.slot[i]]++;
      row_of_[from.y_row[i]] = from.row[i];
    }
  }
  x_rows_ = row_of_;
  offsets_ = begin_of_;
}

// Where each (t, k) finds its output: among this rank's own, or where its rank's answer will be put.
void HostExchange::PlaceOutputs(int rank) {
  back_rows_.assign(outgoing_.size() + 1, x_rows_.size());
  for (size_t r = 0; r < outgoing_.size(); ++r) {
    back_rows_[r + 1] = back_rows_[r] + static_cast<int64_t>(outgoing_[r].pair_row.size());
  }
  all_y_ = y_memory_.Rows(back_rows_.back(), own_x_.dim(1), own_x_.dtype());
  y_ = all_y_.Rows(0, x_rows_.size());
  slot_row_.resize(rank_of_.size());
  for (size_t i = 0; i < rank_of_.size(); ++i) {
    if (rank_of_[i] < 0) {
      slot_row_[i] = -1;
    } else if (rank_of_[i] == rank) {
      slot_row_[i] = incoming_[rank].y_row[pair_of_[i]];
    } else {
      slot_row_[i] = static_cast<int32_t>(back_rows_[rank_of_[i]]) + pair_of_[i];
    }
  }
}

absl::Status HostExchange::FinishDispatch(const ExchangeContext& context) {
  const Timed timed(&context.stats->exchange_seconds);
  const int me = context.comm->rank();
  if (context.comm->world() == 1) {
    x_ = own_x_;
  } else {
    RETURN_IF_ERROR(work_->Wait());
    const absl::Status unpacked = Unpack(context, &work_->received());
    if (!unpacked.ok()) context.comm->Abort(unpacked.message());
    RETURN_IF_ERROR(unpacked);
    work_.reset();
  }
  SortByExpert(static_cast<int64_t>(context.layout->Residents(me).size()));
  PlaceOutputs(me);
  context.stats->expert_rows += x_rows_.size();
  return absl::OkStatus();
}

absl::Status HostExchange::StartCombine(const ExchangeContext& context) {
  if (context.comm->world() == 1) return absl::OkStatus();
  const Timed timed(&context.stats->exchange_seconds);
  std::vector<Message> out(context.comm->world());
  for (int rank = 0; rank < context.comm->world(); ++rank) {
    const Incoming& from = incoming_[rank];
    if (rank == context.comm->rank() || from.y_row.empty()) continue;
    out[rank] = context.comm->NewMessage(static_cast<int64_t>(from.y_row.size()) * RowBytes(y_));
    GatherTo(*context.stream, y_, from.y_row, out[rank].payload());
    context.stats->bytes_sent += out[rank].bytes();
  }
  ASSIGN_OR_RETURN(work_,
                   context.comm->AllToAllV({.stream = context.stream, .deadline = context.deadline}, std::move(out)));
  return absl::OkStatus();
}

absl::Status HostExchange::CollectOutputs(const ExchangeContext& context) {
  RETURN_IF_ERROR(work_->Wait());
  for (int rank = 0; rank < context.comm->world(); ++rank) {
    if (rank == context.comm->rank()) continue;
    const Message& message = work_->received()[rank];
    const int64_t bytes = (back_rows_[rank + 1] - back_rows_[rank]) * RowBytes(all_y_);
    if (message.bytes() != bytes) {
      const absl::Status status = absl::InternalError(
          absl::StrCat("combine: rank ", rank, " answered with ", message.bytes(), " bytes of ", bytes));
      context.comm->Abort(status.message());
      return status;
    }
    if (bytes > 0) std::memcpy(RowAt(all_y_, back_rows_[rank]), message.payload(), bytes);
  }
  work_.reset();
  return absl::OkStatus();
}

absl::Status HostExchange::FinishCombine(const ExchangeContext& context, const CombineTerms& terms,
                                         const TensorView& residual) {
  if (context.comm->world() > 1) {
    const Timed timed(&context.stats->exchange_seconds);
    RETURN_IF_ERROR(CollectOutputs(context));
  }
  return Combine(*context.stream,
                 {.y = all_y_,
                  .slot_row = slot_row_,
                  .weight = terms.topk_weight,
                  .shared = terms.shared,
                  .shared_gate = terms.shared_gate},
                 residual);
}

}  // namespace switchyard
