// NVIDIA GPUs as a DeviceBackend, on the CUDA runtime.  Without a driver there are no devices; nothing else fails.
// Queues set their device for the calling thread in every call, as the runtime has a current one a thread.
#pragma once

#include "workers/tensor/device_backend.h"

namespace switchyard {

// The backend of this process, made at the first call and never destroyed.  RegisterBackend makes it known.
DeviceBackend* CudaBackend();

}  // namespace switchyard
