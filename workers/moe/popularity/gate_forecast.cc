#include "workers/moe/popularity/gate_forecast.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "workers/ops/gemm/gemm.h"
#include "workers/ops/router/router.h"
#include "workers/tensor/copy.h"

namespace switchyard::moe {

absl::StatusOr<ForecastMap> MakeForecastMap(const Stream& stream, const TensorView& fitted, DType dtype) {
  if (fitted.rank() != 2 || fitted.dim(1) < 2 || fitted.dtype() != DType::kF64 || !fitted.device().is_cpu()) {
    return absl::InvalidArgumentError(
        absl::StrCat("forecast map is ", fitted.ToString(), ", wants fp64 [experts, hidden + 1] cpu"));
  }
  const int64_t num_experts = fitted.dim(0), hidden = fitted.dim(1) - 1;
  ForecastMap map;
  ASSIGN_OR_RETURN(map.weight,
                   ops::PackWeight(stream, {.n = num_experts, .k = hidden, .dtype = dtype}, fitted.Columns(0, hidden)));
  Tensor bias(dtype, {num_experts});
  VisitDType(dtype, [&]<class Elem>() {
    for (int64_t e = 0; e < num_experts; ++e) {
      bias.view().data<Elem>()[e] = static_cast<Elem>(static_cast<Acc<Elem>>(fitted.row<double>(e)[hidden]));
    }
  });
  ASSIGN_OR_RETURN(map.bias, CopyToDevice(stream, bias));
  return map;
}

absl::Status GateForecast::Predict(const Stream& stream, const TensorView& x, const ops::Weight& weight,
                                   const TensorView& bias, const TensorView& predicted) {
  const int64_t rows = x.rank() == 2 ? x.dim(0) : 0;
  if (predicted.rank() != 2 || predicted.dim(0) != rows) {
    return absl::InvalidArgumentError(
        absl::StrCat("gate_forecast: predicted is ", predicted.ToString(), " for ", rows, " rows"));
  }
  const DType acc = AccDType(weight.dtype());
  ASSIGN_OR_RETURN(const TensorView logits, logits_memory_.Take(rows, weight.n(), acc, stream.device()));
  ASSIGN_OR_RETURN(const TensorView scores, score_memory_.Take(rows, predicted.dim(1), acc, stream.device()));
  RETURN_IF_ERROR(ops::Gemm(stream, {}, x, weight, bias, logits));
  return ops::RouteTopK(stream, {.top_k = predicted.dim(1)}, logits, predicted, scores);
}

absl::Status GateForecast::Reserve(const Room& room, Device device) {
  RETURN_IF_ERROR(logits_memory_.Take(room.rows, room.experts, room.acc, device).status());
  return score_memory_.Take(room.rows, room.predicted, room.acc, device).status();
}

}  // namespace switchyard::moe
