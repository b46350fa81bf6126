// A CUDA stream as a DeviceQueue.  Internal to workers/tensor.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "workers/tensor/device_queue.h"

namespace switchyard {

absl::StatusOr<std::unique_ptr<DeviceQueue>> NewCudaQueue(int device_index, const DeviceQueueOptions& options);

}  // namespace switchyard
