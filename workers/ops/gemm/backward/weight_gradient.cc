#include "workers/ops/gemm/backward/weight_gradient.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "workers/ops/core/op_checks.h"
#include "workers/ops/gemm/backward/weight_gradient_job.h"

namespace switchyard::ops {
namespace {

template <class... Args>
absl::Status Bad(const WeightGradientJob& job, const Args&... args) {
  return absl::InvalidArgumentError(absl::StrCat(job.op, ": ", args...));
}

absl::Status CheckRows(const OpSite& at, const WeightGradientJob& job) {
  const int64_t rows = job.dy.dim(0), groups = static_cast<int64_t>(job.gradients.size());
  RETURN_IF_ERROR(ExpectInts(at, "offsets", job.offsets, groups + 1, 0, std::numeric_limits<int32_t>::max()));
  RETURN_IF_ERROR(ExpectOffsets(at, job.offsets.data(), groups, "dy", rows));
  if (!job.x_rows.empty()) return ExpectInts(at, "x_rows", job.x_rows, rows, 0, job.x.dim(0));
  // With 0 rows an empty x_rows may also mean an index list without entries.
  if (job.x.dim(0) != rows && rows != 0) return Bad(job, "x has ", job.x.dim(0), " rows, dy ", rows);
  return absl::OkStatus();
}

absl::Status Run(const Stream& stream, const WeightGradientJob& job) {
  const OpSite at = {job.op, stream.device()};
  RETURN_IF_ERROR(ExpectHost(at));
  RETURN_IF_ERROR(ExpectFloatMatrix(at, "dy", job.dy));
  RETURN_IF_ERROR(ExpectFloatMatrix(at, "x", job.x));
  if (job.x.dtype() != job.dy.dtype()) return Bad(job, "dy is ", job.dy.ToString(), ", x is ", job.x.ToString());
  if (job.isa > DetectedIsa()) {
    return Bad(job, "this processor has ", IsaName(DetectedIsa()), ", not ", IsaName(job.isa));
  }
  RETURN_IF_ERROR(CheckRows(at, job));
  for (size_t e = 0; e < job.gradients.size(); ++e) {
    if (job.gradients[e].raw() == nullptr) continue;
    RETURN_IF_ERROR(ExpectView(at, absl::StrCat("gradient ", e), job.gradients[e], AccDType(job.dy.dtype()),
                               {job.dy.dim(1), job.x.dim(1)}));
  }
  RunWeightGradientOnCpu(stream, job);
  return absl::OkStatus();
}

}  // namespace

absl::Status WeightGradient(const Stream& stream, const TensorView& dy, const TensorView& x, const TensorView& gradient,
                            Isa isa) {
  if (gradient.raw() == nullptr) return absl::OkStatus();
  const int32_t offsets[] = {0, static_cast<int32_t>(dy.dim(0))};
  return Run(stream, {.op = "weight_gradient",
                      .dy = dy,
                      .x = x,
                      .gradients = absl::MakeConstSpan(&gradient, 1),
                      .offsets = absl::MakeConstSpan(offsets),
                      .isa = isa});
}

absl::Status GroupedWeightGradient(const Stream& stream, const GroupedWeightGradientDesc& desc, const TensorView& dy,
                                   const TensorView& x, absl::Span<const TensorView> gradients) {
  return Run(stream, {.op = "grouped_weight_gradient",
                      .dy = dy,
                      .x = x,
                      .gradients = gradients,
                      .offsets = desc.offsets,
                      .x_rows = desc.x_rows,
                      .isa = desc.isa});
}

}  // namespace switchyard::ops
