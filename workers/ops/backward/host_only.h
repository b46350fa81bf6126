// The check of ops that only the CPU has so far.  Internal to workers/ops/backward.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "workers/ops/op_checks.h"

namespace switchyard {

// Unimplemented on a device, with op and device.
inline absl::Status ExpectHost(const OpSite& at) {
  if (at.device.is_cpu()) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat(at.op, ": runs on the CPU alone, not on ", at.device.ToString()));
}

}  // namespace switchyard
