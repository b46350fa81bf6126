#include <utility>

#include "workers/comm/nccl/nccl_communicator.h"
#include "workers/ops/core/kernels_cuda.h"
#include "workers/serving/device_setup.h"
#include "workers/tensor/cuda/cuda_backend.h"

namespace switchyard::worker {
namespace {

absl::StatusOr<std::unique_ptr<comm::Communicator>> Form(DeviceGroup group) {
  return comm::FormNcclGroup(
      {.device = group.device.index, .deadline = group.deadline, .deterministic = group.deterministic}, group.store,
      {.messages = std::move(group.messages), .watch = std::move(group.watch)});
}

}  // namespace

FormDeviceGroupFn SetUpDevices(bool deterministic) {
  if (deterministic) comm::FixNcclReductions();
  RegisterBackend(DeviceKind::kCuda, CudaBackend());
  ops::RegisterCudaOps();
  return Form;
}

}  // namespace switchyard::worker
