#include "workers/tensor/device_backend.h"

#include <atomic>

#include "scheduler/base/check.h"

namespace switchyard {
namespace {

std::atomic<DeviceBackend*> cuda_backend{nullptr};

}  // namespace

Stream Stream::On(DeviceQueue* queue, ThreadPool* pool) { return Stream(queue->device(), pool, queue); }

void* Stream::handle() const { return queue_ == nullptr ? nullptr : queue_->handle(); }

void RegisterBackend(DeviceKind kind, DeviceBackend* backend) {
  SY_CHECK(kind == DeviceKind::kCuda);
  cuda_backend = backend;
}

absl::StatusOr<DeviceBackend*> BackendOf(DeviceKind kind) {
  DeviceBackend* const backend = kind == DeviceKind::kCuda ? cuda_backend.load() : nullptr;
  if (backend == nullptr) return absl::UnimplementedError("this program is built without CUDA");
  return backend;
}

DeviceBackend& RegisteredBackend(DeviceKind kind) {
  const absl::StatusOr<DeviceBackend*> backend = BackendOf(kind);
  SY_CHECK_OK(backend.status());
  return **backend;
}

}  // namespace switchyard
