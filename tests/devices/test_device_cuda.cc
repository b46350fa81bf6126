#include "tests/devices/test_device.h"
#include "workers/ops/kernels_cuda.h"
#include "workers/tensor/cuda_backend.h"

namespace switchyard {

Device TestDevice() {
  static const bool registered = [] {
    RegisterBackend(DeviceKind::kCuda, CudaBackend());
    RegisterCudaOps();
    return true;
  }();
  static_cast<void>(registered);
  return Device::Cuda(0);
}

bool DeviceIsEmulated() {
  const auto description = CudaBackend()->Describe(0);
  return description.ok() && description->name.find("mulat") != std::string::npos;
}

}  // namespace switchyard
