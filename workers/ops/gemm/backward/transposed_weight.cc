#include "workers/ops/gemm/backward/transposed_weight.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "workers/ops/core/op_checks.h"
#include "workers/ops/gemm/kernels/find_gemm_kernel.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard::ops {
namespace {

constexpr int64_t kRowsPerTask = 512;  // even, for the panels of bf16

absl::Status Check(const Stream& stream, const TensorView& rows, const Weight& w) {
  const OpSite at = {"pack_transposed", stream.device()};
  RETURN_IF_ERROR(ExpectHost(at));
  RETURN_IF_ERROR(ExpectFloatMatrix(at, "rows", rows));
  if (!w.empty() && !w.gated() && w.format() == WeightFormat::kPlain && w.n() == rows.dim(1) && w.k() == rows.dim(0) &&
      w.device() == at.device) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("pack_transposed: the weight must be plain [", rows.dim(1), ", ",
                                                 rows.dim(0), "] cpu, is ", w.empty() ? "empty, " : "",
                                                 w.desc().ToString(), " ", w.device().ToString()));
}

}  // namespace

absl::Status PackTransposed(const Stream& stream, const TensorView& rows, Weight* w) {
  RETURN_IF_ERROR(Check(stream, rows, *w));
  const GemmKernel& kernel = FindGemmKernel(CurrentIsa(), w->dtype());
  const int64_t n = rows.dim(0), parts = (n + kRowsPerTask - 1) / kRowsPerTask;
  char* const panels = static_cast<char*>(w->mutable_data());
  const int64_t bytes_per_k = kPanelColumns * DTypeBytes(w->dtype());
  stream.pool().Run(w->num_panels() * parts, [&](int64_t task) {
    const int64_t panel = task / parts, begin = task % parts * kRowsPerTask, end = std::min(begin + kRowsPerTask, n);
    const int64_t column = panel * kPanelColumns;
    kernel.pack_panel({.x_dtype = DTypeCode(rows.dtype()),
                       .dtype = DTypeCode(w->dtype()),
                       .x = ElementAt(rows, begin, column),
                       .x_stride = rows.row_stride(),
                       .columns = std::min(kPanelColumns, w->n() - column),
                       .k = end - begin,
                       .padded_k = (end == n ? w->padded_k() : end) - begin,
                       .panel = panels + panel * w->panel_bytes() + begin * bytes_per_k});
  });
  return absl::OkStatus();
}

}  // namespace switchyard::ops
