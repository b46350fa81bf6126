#include "tests/bench/placement/probe_time.h"

#include <algorithm>
#include <random>
#include <vector>

#include "scheduler/base/status_macros.h"
#include "workers/comm/core/timed.h"
#include "workers/moe/popularity/gate_forecast.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard::bench {
namespace {

constexpr int kTimes = 50;

template <class Elem>
void Fill(const TensorView& values, std::mt19937* random) {
  std::normal_distribution<float> draw;
  for (int64_t i = 0; i < values.NumElements(); ++i) values.data<Elem>()[i] = static_cast<Elem>(draw(*random));
}

}  // namespace

absl::StatusOr<double> ProbeSeconds(const popularity::RoutingShape& shape, int64_t rows, int64_t hidden) {
  ThreadPool pool(1, false);
  const Stream stream = Stream::OnCpu(&pool);
  std::mt19937 random(1);
  Tensor fitted(DType::kF64, {shape.num_experts, hidden + 1}), x(DType::kBf16, {rows, hidden}),
      predicted(DType::kI32, {rows, shape.top_k});
  Fill<double>(fitted.view(), &random);
  Fill<Bf16>(x.view(), &random);
  ASSIGN_OR_RETURN(const moe::ForecastMap map, moe::MakeForecastMap(stream, fitted, DType::kBf16));
  moe::GateForecast forecast;
  std::vector<double> seconds;
  for (int i = 0; i < kTimes; ++i) {
    const double begin = comm::ThreadCpuSeconds();
    RETURN_IF_ERROR(forecast.Predict(stream, x, map.weight, map.bias, predicted));
    seconds.push_back(comm::ThreadCpuSeconds() - begin);
  }
  std::nth_element(seconds.begin(), seconds.begin() + kTimes / 2, seconds.end());
  return seconds[kTimes / 2];
}

}  // namespace switchyard::bench
