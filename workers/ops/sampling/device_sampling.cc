#include "workers/ops/sampling/device_sampling.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "scheduler/base/status_macros.h"
#include "workers/ops/core/cuda_call.h"
#include "workers/ops/core/op_checks.h"
#include "workers/ops/sampling/sampling.h"

namespace switchyard::ops {
namespace {

float FloatAt(const IntView& bits, int64_t i) {
  float value;
  std::memcpy(&value, bits.data() + i, 4);
  return value;
}

batching::SamplingParams ParamsAt(const PlainSampling& requests, int64_t i) {
  const auto word = [&](int64_t w) { return static_cast<uint32_t>(requests.random.data()[4 * i + w]); };
  batching::SamplingParams params;
  params.temperature = FloatAt(requests.temperature, i);
  params.top_k = requests.top_k.data()[i];
  params.top_p = FloatAt(requests.top_p, i);
  params.min_p = FloatAt(requests.min_p, i);
  params.seed = uint64_t{word(1)} << 32 | word(0);
  params.choice = word(2);
  return params;
}

absl::Status SampleOnCpu(const Stream& stream, const TensorView& logits, const PlainSampling& requests,
                         const TensorView& tokens, const TensorView& last) {
  const int64_t n = logits.dim(0);
  std::vector<batching::SamplingParams> params;
  std::vector<TokenHistory> histories(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) {
    params.push_back(ParamsAt(requests, i));
    // Plain sampling reads the history's length alone.
    for (int32_t k = 0; k < requests.random.data()[4 * i + 3]; ++k) histories[i].AppendOutput(0);
  }
  std::vector<SampleRequest> rows;
  for (int64_t i = 0; i < n; ++i) rows.push_back({.params = &params[i], .history = &histories[i]});
  std::vector<SampleOutcome> outcomes(static_cast<size_t>(n));
  RETURN_IF_ERROR(SampleTokens(stream, logits, rows, absl::MakeSpan(outcomes)));
  for (int64_t i = 0; i < n; ++i) {
    tokens.data<int32_t>()[i] = outcomes[i].token;
    const int32_t slot = requests.slot.data()[i];
    if (slot >= 0) last.data<int32_t>()[slot] = std::max(outcomes[i].token, 0);
  }
  return absl::OkStatus();
}

}  // namespace

PlainSampling PlainSampling::Part(int64_t begin, int64_t count) const {
  return {temperature.Part(begin, count), top_k.Part(begin, count),          top_p.Part(begin, count),
          min_p.Part(begin, count),       random.Part(4 * begin, 4 * count), slot.Part(begin, count)};
}

absl::Status SamplePlain(const Stream& stream, const TensorView& logits, const PlainSampling& requests,
                         const TensorView& tokens, const TensorView& last) {
  const OpSite at = {"sampling", stream.device()};
  RETURN_IF_ERROR(ExpectKernels(at));
  const int64_t n = logits.dim(0);
  RETURN_IF_ERROR(ExpectView(at, "logits", logits, DType::kF32, {n, logits.dim(1)}));
  if (logits.dim(1) > kMaxPlainVocab) {
    return absl::InvalidArgumentError(
        absl::StrCat("sampling: ", logits.dim(1), " logits a row, limit ", kMaxPlainVocab));
  }
  RETURN_IF_ERROR(ExpectView(at, "tokens", tokens, DType::kI32, {n}));
  RETURN_IF_ERROR(ExpectView(at, "last", last, DType::kI32, last.shape()));
  constexpr int64_t kAny = int64_t{1} << 31;
  for (const IntView* numbers : {&requests.temperature, &requests.top_k, &requests.top_p, &requests.min_p}) {
    RETURN_IF_ERROR(ExpectInts(at, "requests", *numbers, n, -kAny, kAny));
  }
  RETURN_IF_ERROR(ExpectInts(at, "random", requests.random, 4 * n, -kAny, kAny));
  RETURN_IF_ERROR(ExpectInts(at, "slot", requests.slot, n, -1, last.dim(0)));
  if (at.device.is_cpu()) return SampleOnCpu(stream, logits, requests, tokens, last);
  const auto floats = [](const IntView& bits) { return reinterpret_cast<const float*>(bits.data()); };
  const CudaSampleArgs args = {.logits = logits.data<float>(),
                               .n = n,
                               .vocab = logits.dim(1),
                               .logits_stride = logits.row_stride(),
                               .temperature = floats(requests.temperature),
                               .top_k = requests.top_k.data(),
                               .top_p = floats(requests.top_p),
                               .min_p = floats(requests.min_p),
                               .random = reinterpret_cast<const uint32_t*>(requests.random.data()),
                               .slot = requests.slot.data(),
                               .token = tokens.data<int32_t>(),
                               .last = last.data<int32_t>()};
  return RunOnCuda("sampling", stream, &CudaKernelTable::sample, args);
}

absl::Status ResolveTokens(const Stream& stream, const IntView& planned, const TensorView& last,
                           const TensorView& tokens) {
  const OpSite at = {"resolve_tokens", stream.device()};
  RETURN_IF_ERROR(ExpectKernels(at));
  RETURN_IF_ERROR(ExpectView(at, "last", last, DType::kI32, last.shape()));
  RETURN_IF_ERROR(ExpectView(at, "tokens", tokens, DType::kI32, {planned.size()}));
  RETURN_IF_ERROR(ExpectInts(at, "planned", planned, planned.size(), -last.NumElements(), int64_t{1} << 31));
  const ResolveTokensArgs args = {.planned = planned.data(),
                                  .last = last.data<int32_t>(),
                                  .tokens = tokens.data<int32_t>(),
                                  .count = planned.size()};
  if (!at.device.is_cpu()) return RunOnCuda("resolve_tokens", stream, &CudaKernelTable::resolve_tokens, args);
  for (int64_t i = 0; i < args.count; ++i) {
    args.tokens[i] = args.planned[i] >= 0 ? args.planned[i] : args.last[-1 - args.planned[i]];
  }
  return absl::OkStatus();
}

}  // namespace switchyard::ops
