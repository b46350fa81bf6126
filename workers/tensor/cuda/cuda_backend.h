// NVIDIA GPUs as a DeviceBackend, on the CUDA runtime.
//
// Where the driver is missing there are no devices; nothing else fails.
#pragma once

#include "workers/tensor/device_backend.h"

namespace switchyard {

// The one of this process, made at the first call and never destroyed.  RegisterBackend makes it known.
DeviceBackend* CudaBackend();

}  // namespace switchyard
