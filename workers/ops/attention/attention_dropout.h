// The dropout of attention's probabilities as its kernels get it, and its checks.  Internal to workers/ops.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "workers/ops/core/kernels.h"
#include "workers/ops/core/op_checks.h"
#include "workers/ops/dropout/dropout.h"

namespace switchyard::ops {

inline absl::Status CheckAttentionDropout(const OpSite& at, const NoiseDesc& desc, int64_t rows) {
  if (desc.rate == 0) return absl::OkStatus();
  if (!(desc.rate > 0 && desc.rate < 1)) {
    return absl::InvalidArgumentError(absl::StrCat(at.op, ": dropout ", desc.rate, " is outside [0, 1)"));
  }
  RETURN_IF_ERROR(ExpectHost(at));
  if (static_cast<int64_t>(desc.row_keys.size()) == rows) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(at.op, ": dropout has ", desc.row_keys.size(), " keys for ", rows, " rows"));
}

// row, head: the first ones of a task.
inline AttentionDropout AttentionDropoutOf(const NoiseDesc& desc, int64_t row, int64_t head) {
  if (!desc.on()) return {};
  return {.row_keys = desc.row_keys.data() + row,
          .layer = desc.layer,
          .first_head = head,
          .threshold = DropThreshold(desc.rate),
          .scale = 1 / (1 - desc.rate)};
}

}  // namespace switchyard::ops
