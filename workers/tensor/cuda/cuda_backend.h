// NVIDIA GPUs as a DeviceBackend, on the CUDA runtime.  Without a driver there are no devices; nothing else fails.
#pragma once

#include "workers/tensor/device_backend.h"

namespace switchyard {

// The backend of this process, made at the first call and never destroyed.  RegisterBackend makes it known.
DeviceBackend* CudaBackend();

}  // namespace switchyard
