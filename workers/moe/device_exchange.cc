#include "workers/moe/device_exchange.h"

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "workers/ops/combine.h"

namespace switchyard {
namespace {

absl::Status CheckDispatch(const ExchangeContext& context, const TensorView& topk_idx, const TensorView& x) {
  if (context.comm->world() > 1) {
    return absl::UnimplementedError(
        absl::StrCat("exchange: ", context.comm->world(), " ranks on ", x.device().ToString()));
  }
  if (topk_idx.rank() == 2 && x.rank() == 2 && topk_idx.dim(0) == x.dim(0) && IsFloating(x.dtype())) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("exchange: wants topk_idx [T, K] int32 and x [T, H], got ",
                                                 topk_idx.ToString(), " and ", x.ToString()));
}

TensorView Ints(RowScratch* memory, int64_t count, Device device) {
  return memory->Rows(count, 1, DType::kI32, device).Reshape({count});
}

}  // namespace

absl::Status DeviceExchange::StartDispatch(const ExchangeContext& context, const TensorView& topk_idx,
                                           const TensorView& x, int64_t first_token) {
  RETURN_IF_ERROR(CheckDispatch(context, topk_idx, x));
  static_cast<void>(first_token);  // on one rank a row has nowhere else to go
  const Device device = x.device();
  const int64_t choices = topk_idx.NumElements(), experts = context.layout->num_experts();
  order_ = {.offsets = Ints(&offsets_memory_, experts + 1, device),
            .token = Ints(&token_memory_, choices, device),
            .slot_row = Ints(&slot_row_memory_, choices, device)};
  RETURN_IF_ERROR(BuildExpertOrder(*context.stream, topk_idx, experts, order_));
  x_ = x;
  x_rows_ = IntView(order_.token);
  offsets_ = IntView(order_.offsets);
  y_ = y_memory_.Rows(choices, x.dim(1), x.dtype(), device);
  return absl::OkStatus();
}

absl::Status DeviceExchange::FinishDispatch(const ExchangeContext&) { return absl::OkStatus(); }

absl::Status DeviceExchange::StartCombine(const ExchangeContext&) { return absl::OkStatus(); }

absl::Status DeviceExchange::FinishCombine(const ExchangeContext& context, const CombineTerms& terms,
                                           const TensorView& residual) {
  return Combine(*context.stream,
                 {.y = y_,
                  .slot_row = IntView(order_.slot_row),
                  .weight = terms.topk_weight,
                  .shared = terms.shared,
                  .shared_gate = terms.shared_gate},
                 residual);
}

}  // namespace switchyard
