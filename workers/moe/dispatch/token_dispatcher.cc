#include "workers/moe/dispatch/token_dispatcher.h"

#include "absl/strings/str_cat.h"
#include "workers/moe/dispatch/device_dispatcher.h"
#include "workers/moe/dispatch/host_dispatcher.h"
#include "workers/moe/layer/moe_context.h"

namespace switchyard::moe {

absl::Status TokenDispatcher::CheckDispatch(const MoeContext& context, const LayerContext& layer) {
  SY_CHECK_EQ(layer.layout->num_ranks(), context.comm->world());
  const TensorView &topk_idx = layer.topk_idx, &x = layer.x;
  if (topk_idx.rank() == 2 && topk_idx.dtype() == DType::kI32 && topk_idx.contiguous() && x.rank() == 2 &&
      topk_idx.dim(0) == x.dim(0) && IsFloating(x.dtype())) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("exchange: wants topk_idx [T, K] int32 and x [T, H], got ",
                                                 topk_idx.ToString(), " and ", x.ToString()));
}

std::unique_ptr<TokenDispatcher> MakeDispatcher(Device device, ExchangeMode mode) {
  if (device.is_cpu() && mode == ExchangeMode::kExact) return std::make_unique<HostDispatcher>();
  return std::make_unique<DeviceDispatcher>();
}

}  // namespace switchyard::moe
