// Runs a forward pass of padding alone, so that scratch for steps of so many rows is taken and libraries are set up
// before the KV cache takes what is left of a device's memory.  The CPU needs none.
//
// Blocks until done.  With experts on other ranks, which do not run yet, nothing runs: scratch is taken for the largest
// steps and any choice of experts.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "workers/model/forward/model.h"
#include "workers/moe/dispatch/expert_layout.h"
#include "workers/tensor/device.h"

namespace switchyard::model {

struct WarmUpSize {
  int64_t rows = 0;                           // of a step
  int64_t recorded_rows = 0;                  // of a step of decodes that is recorded; 0 = none is
  const moe::ExpertLayout* layout = nullptr;  // the group's
  int rank = 0;
};

// Errors: ResourceExhausted, the device's.
absl::Status WarmUp(const Stream& stream, Model* model, const WarmUpSize& size);

}  // namespace switchyard::model
