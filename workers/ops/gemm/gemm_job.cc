#include "workers/ops/gemm/gemm_job.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "workers/ops/core/cuda_call.h"
#include "workers/ops/core/op_checks.h"

namespace switchyard::ops {
namespace {

// null: no weight is this job's.
const Weight* FirstWeight(const GemmJob& job) {
  for (int64_t e = 0; e < job.weights.size(); ++e) {
    if (job.weights[e] != nullptr && !job.weights[e]->empty()) return job.weights[e];
  }
  return nullptr;
}

template <class... Args>
absl::Status Bad(const GemmJob& job, const Args&... args) {
  return absl::InvalidArgumentError(absl::StrCat(job.op, ": ", args...));
}

absl::Status CheckWeights(const GemmJob& job, DType dtype, Device device) {
  const bool on_cpu = device.is_cpu();
  const int32_t* const offsets = job.offsets.data();
  const int64_t k = job.x.dim(1);
  const int64_t n = job.gated ? 2 * job.y.dim(1) : job.y.dim(1);
  const WeightFormat format = FormatOf(job);
  const Weight* const first = FirstWeight(job);
  const bool bias = first != nullptr && first->desc().bias;
  if (format != WeightFormat::kPlain && dtype == DType::kF64) {
    return Bad(job, "weights of ", WeightFormatName(format), " have products in fp32, not fp64");
  }
  if (format != WeightFormat::kPlain && !on_cpu && dtype == DType::kF32) {
    return Bad(job, "weights of ", WeightFormatName(format), " on ", device.ToString(),
               " have products of bf16 and fp16, not fp32");
  }
  for (int64_t e = 0; e < job.weights.size(); ++e) {
    const Weight* w = job.weights[e];
    if (w == nullptr || w->empty()) {
      if (job.partial && w == nullptr) continue;
      if (on_cpu && offsets[e] == offsets[e + 1]) continue;
      return Bad(job, "weight ", e, " has rows but is empty");
    }
    if (w->n() != n || w->k() != k || w->dtype() != dtype || w->gated() != job.gated) {
      return Bad(job, "weight ", e, " must be ", DTypeName(dtype), " [", n, ", ", k, "]", job.gated ? " gated" : "",
                 ", is ", w->desc().ToString());
    }
    if (w->desc().bias != bias) {
      return Bad(job, "weight ", e, " is ", w->desc().ToString(), ", those before it ", first->desc().ToString());
    }
    if (w->format() != format) {
      return Bad(job, "weight ", e, " is ", WeightFormatName(w->format()), ", those before it ",
                 WeightFormatName(format));
    }
    if (!(w->device() == device)) {
      return Bad(job, "weight ", e, " is on ", w->device().ToString(), ", not ", device.ToString());
    }
  }
  if (!on_cpu && job.weights.size() > 0 && !job.offsets.empty() && job.weights.on_device() == nullptr) {
    return Bad(job, "weights of groups on ", device.ToString(), " need a WeightTable");
  }
  return absl::OkStatus();
}

absl::Status CheckRows(const GemmJob& job, Device device) {
  const OpSite at = {job.op, device};
  const int64_t rows = job.y.dim(0), weights = job.weights.size();
  // One weight has all rows: no offsets need to be there.
  if (job.offsets.size() != weights + 1 && !(weights == 1 && job.offsets.empty())) {
    return Bad(job, "offsets must be ", weights + 1, ", are ", job.offsets.size());
  }
  if (device.is_cpu() && !job.offsets.empty()) {
    RETURN_IF_ERROR(ExpectOffsets(at, job.offsets.data(), weights, "y", rows));
  }
  if (job.x_rows.empty()) {
    // With 0 rows an empty x_rows may also mean an index list without entries.
    if (job.x.dim(0) != rows && rows != 0) return Bad(job, "x has ", job.x.dim(0), " rows, y ", rows);
    return absl::OkStatus();
  }
  return ExpectInts(at, "x_rows", job.x_rows, rows, 0, job.x.dim(0));
}

absl::Status CheckSums(const GemmJob& job, Device device) {
  if (job.sums.raw() == nullptr) return absl::OkStatus();
  if (!job.gated) return Bad(job, "sums are of gated products alone");
  if (!device.is_cpu()) return Bad(job, "sums are kept on the CPU alone, not on ", device.ToString());
  return ExpectView({job.op, device}, "sums", job.sums, job.x.dtype(), {job.y.dim(0), 2 * job.y.dim(1)});
}

absl::Status CheckBiases(const GemmJob& job, Device device) {
  const Weight* const first = FirstWeight(job);
  if (first != nullptr && first->desc().bias) {
    const bool other =
        std::any_of(job.biases.begin(), job.biases.end(), [](const TensorView& bias) { return bias.raw() != nullptr; });
    if (!other && job.sums.raw() == nullptr) return absl::OkStatus();
    return absl::UnimplementedError(
        absl::StrCat(job.op, ": ", first->desc().ToString(), " and ", other ? "another bias" : "sums that are kept"));
  }
  if (job.biases.empty()) return absl::OkStatus();
  if (static_cast<int64_t>(job.biases.size()) != job.weights.size()) {
    return Bad(job, job.biases.size(), " biases for ", job.weights.size(), " weights");
  }
  bool any = false;
  for (const TensorView& bias : job.biases) {
    if (bias.raw() == nullptr) continue;
    any = true;
    if (bias.dtype() == job.x.dtype() && bias.rank() == 1 && bias.dim(0) == job.y.dim(1)) continue;
    return Bad(job, "bias must be ", DTypeName(job.x.dtype()), " [", job.y.dim(1), "], is ", bias.ToString());
  }
  if (any && (job.gated || (!device.is_cpu() && !job.offsets.empty()))) {
    return absl::UnimplementedError(
        absl::StrCat(job.op, ": biases of ", job.gated ? "a gated product" : "groups on a device"));
  }
  return absl::OkStatus();
}

absl::Status CheckClamp(const GemmJob& job) {
  const auto [alpha, limit] = job.clamp;
  if (limit == 0) return absl::OkStatus();
  if (!(limit > 0 && std::isfinite(limit) && std::isfinite(alpha)) || !job.gated) {
    return Bad(job, "limit ", limit, " and alpha ", alpha, " of ", job.gated ? "a gated" : "another", " product");
  }
  return absl::OkStatus();
}

absl::Status CheckJob(const Stream& stream, const GemmJob& job) {
  const DType dtype = job.x.dtype();
  const Device device = stream.device();
  RETURN_IF_ERROR(ExpectKernels({job.op, device}));
  if (!(job.x.device() == device) || !(job.y.device() == device)) {
    return Bad(job, "stream, x and y must be on one device, are on ", device.ToString(), ", ",
               job.x.device().ToString(), ", ", job.y.device().ToString());
  }
  if (job.x.rank() != 2 || !IsFloating(dtype)) return Bad(job, "x must be a floating matrix, is ", job.x.ToString());
  if (job.y.rank() != 2 || (job.y.dtype() != dtype && job.y.dtype() != AccDType(dtype))) {
    return Bad(job, "y must be a matrix of ", DTypeName(dtype), " or ", DTypeName(AccDType(dtype)), ", is ",
               job.y.ToString());
  }
  if (job.accumulate && job.y.dtype() != AccDType(dtype)) {
    return Bad(job, "y must be ", DTypeName(AccDType(dtype)), " to be added to, is ", job.y.ToString());
  }
  if (job.gated && job.y.dtype() != dtype)
    return Bad(job, "hidden must be ", DTypeName(dtype), ", is ", job.y.ToString());
  RETURN_IF_ERROR(CheckBiases(job, device));
  RETURN_IF_ERROR(CheckClamp(job));
  if (job.isa > DetectedIsa()) {
    return Bad(job, "this processor has ", IsaName(DetectedIsa()), ", not ", IsaName(job.isa));
  }
  RETURN_IF_ERROR(CheckSums(job, device));
  RETURN_IF_ERROR(CheckRows(job, device));
  return CheckWeights(job, dtype, device);
}

int64_t OwnBiasOffset(const Weight& weight) {
  return static_cast<const char*>(weight.bias().raw()) - static_cast<const char*>(weight.data());
}

absl::Status RunOnDevice(const Stream& stream, const GemmJob& job, const Weight& first) {
  const bool dense = job.offsets.empty(), own = first.desc().bias;
  // Of a dense product that is not gated: the product's.
  const bool of_product = own && dense && !job.gated;
  const void* bias = dense && !job.biases.empty() ? job.biases[0].raw() : nullptr;
  if (of_product) bias = first.bias().raw();
  const CudaGemmArgs args = {.dtype = DTypeCode(job.x.dtype()),
                             .y_dtype = DTypeCode(job.y.dtype()),
                             .x = job.x.raw(),
                             .x_rows = job.x_rows.empty() ? nullptr : job.x_rows.data(),
                             .weights = dense ? nullptr : job.weights.on_device(),
                             .weight = dense ? first.data() : nullptr,
                             .format = static_cast<uint8_t>(first.format()),
                             .offsets = dense ? nullptr : job.offsets.data(),
                             .bias = bias,
                             .y = job.y.raw(),
                             .rows = job.y.dim(0),
                             .n = first.n(),
                             .k = first.k(),
                             .x_stride = job.x.row_stride(),
                             .w_stride = first.padded_k(),
                             .y_stride = job.y.row_stride(),
                             .experts = static_cast<int32_t>(job.weights.size()),
                             .accumulate = job.accumulate,
                             .gated = job.gated,
                             .own_bias = own && !of_product ? OwnBiasOffset(first) : 0,
                             .glu_alpha = job.clamp.alpha,
                             .glu_limit = job.clamp.limit};
  return RunOnCuda(job.op, stream, dense ? &CudaKernelTable::dense_gemm : &CudaKernelTable::grouped_gemm, args);
}

}  // namespace

WeightFormat FormatOf(const GemmJob& job) {
  const Weight* const first = FirstWeight(job);
  return first == nullptr ? WeightFormat::kPlain : first->format();
}

absl::Status RunGemmJob(const Stream& stream, const GemmJob& job) {
  RETURN_IF_ERROR(CheckJob(stream, job));
  const Weight* const first = FirstWeight(job);
  if (job.y.dim(0) == 0 || first == nullptr) return absl::OkStatus();
  if (!stream.device().is_cpu()) return RunOnDevice(stream, job, *first);
  RunGemmJobOnCpu(stream, job);
  return absl::OkStatus();
}

}  // namespace switchyard::ops
