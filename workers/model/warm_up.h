// Runs a forward pass of padding alone: so that all scratch of steps of so many rows is taken, and libraries are set
// up, before the KV cache takes what is left of a device's memory.
//
// Blocks until done.  For a device; the CPU needs none.  With experts on other ranks it does nothing: their exchange
// has no peers yet, and its scratch grows with the first steps.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "workers/model/model.h"
#include "workers/tensor/device.h"

namespace switchyard {

// Errors: ResourceExhausted, the device's.
absl::Status WarmUp(const Stream& stream, Model* model, int64_t rows);

}  // namespace switchyard
