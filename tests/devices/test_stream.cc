#include "scheduler/base/check.h"
#include "tests/devices/test_device.h"
#include "workers/tensor/device_backend.h"

namespace switchyard {

bool HasDevices(int world) {
  const Device device = TestDevice();
  return device.is_cpu() || RegisteredBackend(device.kind).NumDevices() >= world;
}

TestStream::TestStream(int threads, int index, const DeviceQueueOptions& options)
    : pool_(threads, /*spin=*/false), stream_(Stream::OnCpu(&pool_)) {
  const Device device = TestDevice();
  if (device.is_cpu()) return;
  auto queue = RegisteredBackend(device.kind).NewQueue(index, options);
  SY_CHECK_OK(queue.status());
  queue_ = *std::move(queue);
  stream_ = Stream::On(queue_.get(), &pool_);
}

}  // namespace switchyard
