#include "tests/bench/gpu/device_moment_cuda.h"

#include <cuda_runtime.h>

#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"
#include "workers/tensor/cuda/cuda_status.h"

namespace switchyard {

struct DeviceMoment::Event {
  ~Event() { cudaEventDestroy(event); }
  cudaEvent_t event = nullptr;
};

DeviceMoment::DeviceMoment() = default;
DeviceMoment::~DeviceMoment() = default;
DeviceMoment::DeviceMoment(DeviceMoment&&) noexcept = default;
DeviceMoment& DeviceMoment::operator=(DeviceMoment&&) noexcept = default;

absl::Status DeviceMoment::Record(const Stream& stream) {
  SY_CHECK(!stream.device().is_cpu());
  SY_RETURN_IF_CUDA_ERROR(cudaSetDevice(stream.device().index));
  if (event_ == nullptr) {
    auto event = std::make_unique<Event>();
    SY_RETURN_IF_CUDA_ERROR(cudaEventCreate(&event->event));
    event_ = std::move(event);
  }
  SY_RETURN_IF_CUDA_ERROR(cudaEventRecord(event_->event, static_cast<cudaStream_t>(stream.handle())));
  return absl::OkStatus();
}

absl::StatusOr<double> SecondsBetween(const DeviceMoment& from, const DeviceMoment& to) {
  SY_CHECK(from.event_ != nullptr && to.event_ != nullptr);
  SY_RETURN_IF_CUDA_ERROR(cudaEventSynchronize(from.event_->event));
  SY_RETURN_IF_CUDA_ERROR(cudaEventSynchronize(to.event_->event));
  float milliseconds = 0;
  SY_RETURN_IF_CUDA_ERROR(cudaEventElapsedTime(&milliseconds, from.event_->event, to.event_->event));
  return milliseconds * 1e-3;
}

}  // namespace switchyard
