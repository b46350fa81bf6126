#include "workers/moe/dispatch/dispatch_gradient.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"
#include "workers/comm/core/timed.h"
#include "workers/moe/layer/moe_context.h"
#include "workers/ops/exchange/combine.h"

namespace switchyard::moe {
namespace {

constexpr int64_t kNumbersAlignment = 64;

// The layout of a message: rows, then a number for each pair.  No bytes without pairs.
struct Parts {
  Parts(const TensorView& rows, int64_t num_rows, const TensorView& numbers, int64_t num_pairs) {
    numbers_offset = (num_rows * RowBytes(rows) + kNumbersAlignment - 1) / kNumbersAlignment * kNumbersAlignment;
    bytes = num_pairs == 0 ? 0 : numbers_offset + num_pairs * DTypeBytes(numbers.dtype());
  }
  int64_t numbers_offset;
  int64_t bytes;
};

absl::Status CheckResend(const HostRoutes& routes, const TensorView& dy, const TensorView& topk_weight) {
  if (dy.rank() == 2 && IsFloating(dy.dtype()) && topk_weight.rank() == 2 && topk_weight.contiguous() &&
      topk_weight.dtype() == AccDType(dy.dtype()) && topk_weight.dim(0) == dy.dim(0) &&
      topk_weight.NumElements() == static_cast<int64_t>(routes.rank_of.size())) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("exchange_gradient: wants dy [T, H] and topk_weight [T, K] for ",
                                                 routes.rank_of.size(), " choices, got ", dy.ToString(), " and ",
                                                 topk_weight.ToString()));
}

absl::Status CheckReturn(const TensorView& own_dy, const TensorView& weight, const TensorView& dx,
                         const TensorView& dweight) {
  if (dx.shape() == own_dy.shape() && dx.dtype() == weight.dtype() && dweight.shape() == weight.shape() &&
      dweight.dtype() == weight.dtype() && dweight.contiguous()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("exchange_gradient: wants dx ", DTypeName(weight.dtype()), " ",
                                                 own_dy.shape().ToString(), " and dweight ", weight.ToString(),
                                                 ", got ", dx.ToString(), " and ", dweight.ToString()));
}

}  // namespace

std::vector<comm::Message> DispatchGradient::PackResend(const MoeContext& context) const {
  const int world = context.comm->world();
  const int64_t number_bytes = DTypeBytes(topk_weight_.dtype());
  std::vector<comm::Message> out(world);
  std::vector<char*> numbers(world, nullptr);  // null: this rank's own
  for (int rank = 0; rank < world; ++rank) {
    const HostRoutes::Outgoing& to = routes_->outgoing[rank];
    if (to.pair_row.empty()) continue;
    const Parts parts(own_dy_, to.token.size(), topk_weight_, to.pair_row.size());
    out[rank] = context.comm->NewMessage(parts.bytes);
    GatherTo(*context.stream, own_dy_, to.token, out[rank].payload());
    numbers[rank] = out[rank].payload() + parts.numbers_offset;
    context.stats->bytes_sent += parts.bytes;
  }
  const char* const weight = static_cast<const char*>(topk_weight_.raw());
  for (size_t i = 0; i < routes_->rank_of.size(); ++i) {
    const int32_t rank = routes_->rank_of[i];
    if (rank < 0 || numbers[rank] == nullptr) continue;
    std::memcpy(numbers[rank] + routes_->pair_of[i] * number_bytes, weight + i * number_bytes, number_bytes);
  }
  return out;
}

absl::Status DispatchGradient::StartResend(const MoeContext& context, const LayerContext& layer,
                                           const HostRoutes& routes, const TensorView& dy,
                                           const TensorView& topk_weight) {
  RETURN_IF_ERROR(CheckResend(routes, dy, topk_weight));
  SY_CHECK_EQ(static_cast<int>(routes.outgoing.size()), context.comm->world());
  const comm::Timed timed(&context.stats->exchange_seconds);
  routes_ = &routes;
  own_dy_ = dy;
  topk_weight_ = topk_weight;
  if (routes.stays) return context.comm->status();
  ASSIGN_OR_RETURN(under_way_.emplace_back(),
                   context.comm->AllToAllV(context.Call(comm::CallUse::kOutputGradients, layer.index, layer.chunk),
                                           PackResend(context)));
  return absl::OkStatus();
}

// Rows are placed as in the exchange's x(), numbers in expert order.
absl::Status DispatchGradient::PlaceResent(const MoeContext& context) {
  const int64_t number_bytes = DTypeBytes(weight_.dtype());
  for (int rank = 0; rank < context.comm->world(); ++rank) {
    if (rank == context.comm->rank()) continue;
    const HostRoutes::Incoming& from = routes_->incoming[rank];
    const Parts parts(dy_, from.num_rows, weight_, from.y_row.size());
    const comm::Message& message = under_way_.front()->received()[rank];
    RETURN_IF_ERROR(
        comm::ExpectBytes(context.comm, "an exchange of outputs' gradients", rank, message.bytes(), parts.bytes));
    if (parts.bytes == 0) continue;
    const char* const payload = message.payload();
    std::memcpy(RowAt(dy_, from.first_row), payload, from.num_rows * RowBytes(dy_));
    for (size_t i = 0; i < from.y_row.size(); ++i) {
      std::memcpy(RowAt(weight_, from.y_row[i]), payload + parts.numbers_offset + i * number_bytes, number_bytes);
    }
  }
  under_way_.pop_front();
  return absl::OkStatus();
}

absl::Status DispatchGradient::FinishResend(const MoeContext& context) {
  const comm::Timed timed(&context.stats->exchange_seconds);
  const int me = context.comm->rank();
  const int64_t rows = routes_->back_rows.front();
  const DType dtype = own_dy_.dtype(), acc = topk_weight_.dtype();
  dy_ = own_dy_;
  if (routes_->num_rows > static_cast<int64_t>(routes_->own.size())) {
    SY_CHECK(dy_memory_ != nullptr);
    dy_ = dy_memory_->Rows(routes_->num_rows, own_dy_.dim(1), dtype);
    GatherTo(*context.stream, own_dy_, routes_->own, static_cast<char*>(dy_.raw()));
  }
  weight_ = weight_memory_.Rows(rows, 1, acc);
  const TensorView own_weight = topk_weight_.Reshape({topk_weight_.NumElements(), 1});
  for (size_t i = 0; i < routes_->rank_of.size(); ++i) {
    if (routes_->rank_of[i] != me) continue;
    std::memcpy(RowAt(weight_, routes_->slot_row[i]), RowAt(own_weight, i), DTypeBytes(acc));
  }
  if (!routes_->stays) {
    RETURN_IF_ERROR(under_way_.front()->Wait());
    RETURN_IF_ERROR(PlaceResent(context));
  }
  return absl::OkStatus();
}

void DispatchGradient::TakeInputGradients(RowScratch* memory) {
  const int64_t rows = routes_->back_rows.front(), all_rows = routes_->back_rows.back();
  all_dx_ = memory->Rows(all_rows, own_dy_.dim(1), own_dy_.dtype());
  all_dweight_ = dweight_memory_.Rows(all_rows, 1, topk_weight_.dtype());
  dx_ = all_dx_.Rows(0, rows);
  dweight_ = all_dweight_.Rows(0, rows);
}

absl::Status DispatchGradient::StartReturn(const MoeContext& context, const LayerContext& layer) {
  if (routes_->stays) return absl::OkStatus();
  const comm::Timed timed(&context.stats->exchange_seconds);
  const int me = context.comm->rank(), world = context.comm->world();
  std::vector<comm::Message> out(world);
  for (int rank = 0; rank < world; ++rank) {
    const HostRoutes::Incoming& from = routes_->incoming[rank];
    if (rank == me || from.y_row.empty()) continue;
    if (pipeline::PartOfPeers(me, rank, world, layer.num_parts) != layer.part) continue;
    const auto pairs = static_cast<int64_t>(from.y_row.size());
    const Parts parts(dx_, pairs, dweight_, pairs);
    out[rank] = context.comm->NewMessage(parts.bytes);
    GatherTo(*context.stream, dx_, from.y_row, out[rank].payload());
    GatherTo(*context.stream, dweight_, from.y_row, out[rank].payload() + parts.numbers_offset);
    context.stats->bytes_sent += parts.bytes;
  }
  ASSIGN_OR_RETURN(
      under_way_.emplace_back(),
      context.comm->AllToAllV(context.Call(comm::CallUse::kInputGradients, layer.index, layer.chunk + layer.part),
                              std::move(out)));
  return absl::OkStatus();
}

absl::Status DispatchGradient::PlaceReturned(const MoeContext& context, int part, int num_parts) {
  const comm::Timed timed(&context.stats->exchange_seconds);
  RETURN_IF_ERROR(under_way_.front()->Wait());
  const int me = context.comm->rank(), world = context.comm->world();
  for (int rank = 0; rank < world; ++rank) {
    if (rank == me) continue;
    const int64_t first = routes_->back_rows[rank];
    const bool of_part = pipeline::PartOfPeers(rank, me, world, num_parts) == part;
    const int64_t pairs = of_part ? routes_->back_rows[rank + 1] - first : 0;
    const Parts parts(all_dx_, pairs, all_dweight_, pairs);
    const comm::Message& message = under_way_.front()->received()[rank];
    RETURN_IF_ERROR(
        comm::ExpectBytes(context.comm, "an exchange of inputs' gradients", rank, message.bytes(), parts.bytes));
    if (parts.bytes == 0) continue;
    const char* const payload = message.payload();
    std::memcpy(RowAt(all_dx_, first), payload, pairs * RowBytes(all_dx_));
    std::memcpy(RowAt(all_dweight_, first), payload + parts.numbers_offset, pairs * RowBytes(all_dweight_));
  }
  under_way_.pop_front();
  return absl::OkStatus();
}

absl::Status DispatchGradient::FinishPart(const MoeContext& context, const LayerContext& layer) {
  return routes_->stays ? absl::OkStatus() : PlaceReturned(context, layer.part, layer.num_parts);
}

absl::Status DispatchGradient::FinishReturn(const MoeContext& context, const TensorView& dx,
                                            const TensorView& dweight) {
  RETURN_IF_ERROR(CheckReturn(own_dy_, topk_weight_, dx, dweight));
  if (!routes_->stays) RETURN_IF_ERROR(PlaceReturned(context, 0, 1));
  const DType acc = dweight.dtype();
  const TensorView numbers = dweight.Reshape({dweight.NumElements(), 1});
  for (int64_t i = 0; i < numbers.dim(0); ++i) {
    const int32_t row = routes_->slot_row[i];
    if (row < 0) {
      std::memset(RowAt(numbers, i), 0, DTypeBytes(acc));
    } else {
      std::memcpy(RowAt(numbers, i), RowAt(all_dweight_, row), DTypeBytes(acc));
    }
  }
  return ops::Combine(*context.stream, {.y = all_dx_, .slot_row = routes_->slot_row}, dx);
}

}  // namespace switchyard::moe
