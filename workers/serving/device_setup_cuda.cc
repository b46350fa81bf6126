#include <utility>

#include "workers/comm/nccl/nccl_communicator.h"
#include "workers/ops/core/kernels_cuda.h"
#include "workers/serving/device_setup.h"
#include "workers/tensor/cuda/cuda_backend.h"

namespace switchyard {
namespace {

absl::StatusOr<std::unique_ptr<Communicator>> Form(DeviceGroup group) {
  return FormNcclGroup({.device = group.device.index, .deadline = group.deadline, .deterministic = group.deterministic},
                       group.store, {.messages = std::move(group.messages), .watch = std::move(group.watch)});
}

}  // namespace

FormDeviceGroupFn SetUpDevices(bool deterministic) {
  if (deterministic) FixNcclReductions();
  RegisterBackend(DeviceKind::kCuda, CudaBackend());
  RegisterCudaOps();
  return Form;
}

}  // namespace switchyard
