// The level whose kernels CpuKernels() gives: for tables beside it.  Internal to workers/ops.
#pragma once

#include "workers/ops/core/isa.h"

namespace switchyard::ops {

// CurrentIsa(), or what a test chose by UseKernelsForTest.  Thread-safe.
Isa KernelIsa();

}  // namespace switchyard::ops
