#include "workers/ops/gemm_job.h"

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"

namespace switchyard {
namespace {

template <class... Args>
absl::Status Bad(const GemmJob& job, const Args&... args) {
  return absl::InvalidArgumentError(absl::StrCat(job.op, ": ", args...));
}

absl::Status CheckWeights(const GemmJob& job, DType dtype) {
  const int64_t k = job.x.dim(1);
  const int64_t n = job.gated ? 2 * job.y.dim(1) : job.y.dim(1);
  for (size_t e = 0; e < job.weights.size(); ++e) {
    const Weight* w = job.weights[e];
    if (w == nullptr || w->empty()) {
      if (job.offsets[e] == job.offsets[e + 1]) continue;
      return Bad(job, "weight ", e, " has rows but is empty");
    }
    if (w->n() != n || w->k() != k || w->dtype() != dtype || w->gated() != job.gated) {
      return Bad(job, "weight ", e, " must be ", DTypeName(dtype), " [", n, ", ", k, "]", job.gated ? " gated" : "",
                 ", is ", w->desc().ToString());
    }
    if (!(w->device() == Device::Cpu())) return Bad(job, "weight ", e, " is on ", w->device().ToString(), ", not cpu");
  }
  return absl::OkStatus();
}

absl::Status CheckRows(const GemmJob& job) {
  const int64_t rows = job.y.dim(0);
  if (job.offsets.size() != job.weights.size() + 1 || job.offsets.front() != 0 || job.offsets.back() != rows) {
    return Bad(job, "offsets must be ", job.weights.size() + 1, " from 0 to y's ", rows, " rows, are ",
               job.offsets.size(), job.offsets.empty() ? "" : absl::StrCat(", the last ", job.offsets.back()));
  }
  for (size_t e = 0; e < job.weights.size(); ++e) {
    if (job.offsets[e] > job.offsets[e + 1]) {
      return Bad(job, "offsets fall at ", e, ": ", job.offsets[e], " to ", job.offsets[e + 1]);
    }
  }
  if (job.x_rows.empty()) {
    // With 0 rows an empty x_rows may also mean "picks none of x".
    if (job.x.dim(0) != rows && rows != 0) return Bad(job, "x has ", job.x.dim(0), " rows, y ", rows);
    return absl::OkStatus();
  }
  if (static_cast<int64_t>(job.x_rows.size()) != rows)
    return Bad(job, "x_rows has ", job.x_rows.size(), " rows, y ", rows);
  for (size_t i = 0; i < job.x_rows.size(); ++i) {
    if (job.x_rows[i] < 0 || job.x_rows[i] >= job.x.dim(0)) {
      return Bad(job, "x_rows[", i, "] = ", job.x_rows[i], " is not a row of x ", job.x.ToString());
    }
  }
  return absl::OkStatus();
}

absl::Status CheckJob(const Stream& stream, const GemmJob& job) {
  const DType dtype = job.x.dtype();
  if (!(stream.device() == Device::Cpu()) || !(job.x.device() == Device::Cpu()) || !(job.y.device() == Device::Cpu())) {
    return Bad(job, "stream, x and y must be on the cpu, are on ", stream.device().ToString(), ", ",
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
  if (job.bias.raw() != nullptr &&
      (job.bias.dtype() != dtype || job.bias.rank() != 1 || job.bias.dim(0) != job.y.dim(1))) {
    return Bad(job, "bias must be ", DTypeName(dtype), " [", job.y.dim(1), "], is ", job.bias.ToString());
  }
  if (job.isa > DetectedIsa()) {
    return Bad(job, "this processor has ", IsaName(DetectedIsa()), ", not ", IsaName(job.isa));
  }
  RETURN_IF_ERROR(CheckRows(job));
  return CheckWeights(job, dtype);
}

}  // namespace

absl::Status RunGemmJob(const Stream& stream, const GemmJob& job) {
  RETURN_IF_ERROR(CheckJob(stream, job));
  if (job.y.dim(0) > 0) RunGemmJobOnCpu(stream, job);
  return absl::OkStatus();
}

}  // namespace switchyard
