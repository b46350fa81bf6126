#include "workers/moe/popularity/gate_forecast.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "workers/moe/popularity/text_context.h"
#include "workers/ops/embedding/fading_sum.h"
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

absl::StatusOr<ForecastMap> MakeContextMap(const Stream& stream, const TensorView& fitted, DType dtype) {
  if (fitted.rank() != 2 || fitted.dim(1) < 3 || fitted.dim(1) % 2 == 0 || fitted.dtype() != DType::kF64 ||
      !fitted.device().is_cpu()) {
    return absl::InvalidArgumentError(
        absl::StrCat("forecast map in context is ", fitted.ToString(), ", wants fp64 [experts, 2 * hidden + 1] cpu"));
  }
  return MakeForecastMap(stream, StackedMap(fitted), dtype);
}

absl::StatusOr<ForecastMap> MakeNetworkMap(const Stream& stream, const TensorView& linear, const TensorView& out,
                                           DType dtype) {
  if (out.rank() != 2 || linear.rank() != 2 || linear.dim(0) != out.dim(0) + out.dim(1) || out.dim(1) < 1) {
    return absl::InvalidArgumentError(absl::StrCat("forecast network is ", linear.ToString(), " and ", out.ToString(),
                                                   ", wants [experts + units, 2 * hidden + 1] and [experts, units]"));
  }
  ASSIGN_OR_RETURN(ForecastMap map, MakeContextMap(stream, linear, dtype));
  ASSIGN_OR_RETURN(map.out, ops::PackWeight(stream, {.n = out.dim(0), .k = out.dim(1), .dtype = AccDType(dtype)}, out));
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

absl::Status GateForecast::PredictInContext(const Stream& stream, const TensorView& x, const ForecastMap& map,
                                            const IntView& begins, const TensorView& predicted) {
  const int64_t rows = x.rank() == 2 ? x.dim(0) : 0, width = map.weight.n() / 2;
  const int64_t units = map.out.empty() ? 0 : map.out.k();
  if (predicted.rank() != 2 || predicted.dim(0) != rows || begins.size() != rows) {
    return absl::InvalidArgumentError(absl::StrCat("gate_forecast: predicted is ", predicted.ToString(), " and ",
                                                   begins.size(), " texts' begins for ", rows, " rows"));
  }
  if (map.weight.n() % 2 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("gate_forecast: a map of ", map.weight.n(), " outputs in context, wants 2 * experts"));
  }
  const DType acc = AccDType(map.weight.dtype());
  ASSIGN_OR_RETURN(const TensorView both, logits_memory_.Take(rows, 2 * width, acc, stream.device()));
  ASSIGN_OR_RETURN(const TensorView sum, sum_memory_.Take(rows, width, acc, stream.device()));
  ASSIGN_OR_RETURN(const TensorView scores, score_memory_.Take(rows, predicted.dim(1), acc, stream.device()));
  RETURN_IF_ERROR(ops::Gemm(stream, {}, x, map.weight, map.bias, both));
  RETURN_IF_ERROR(ops::AddFadingMean(stream, {.kept = kContextKept, .rectified = units}, both, begins, sum));
  const TensorView logits = sum.Columns(0, width - units);
  if (units > 0) {
    RETURN_IF_ERROR(ops::Gemm(stream, {.accumulate = true}, sum.Columns(width - units, units), map.out, {}, logits));
  }
  return ops::RouteTopK(stream, {.top_k = predicted.dim(1)}, logits, predicted, scores);
}

absl::Status GateForecast::Reserve(const Room& room, Device device) {
  const int64_t width = room.experts + room.units;
  RETURN_IF_ERROR(logits_memory_.Take(room.rows, room.in_context ? 2 * width : width, room.acc, device).status());
  if (room.in_context) RETURN_IF_ERROR(sum_memory_.Take(room.rows, width, room.acc, device).status());
  return score_memory_.Take(room.rows, room.predicted, room.acc, device).status();
}

}  // namespace switchyard::moe
