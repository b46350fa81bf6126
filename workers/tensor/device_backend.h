// What a kind of device gives: memory and queues.  The CPU needs none.
//
// The CUDA backend (cuda_backend.h) is registered by programs that are built with it; without one, its devices do not
// exist here.  Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "workers/tensor/device.h"
#include "workers/tensor/device_queue.h"

namespace switchyard {

struct DeviceDescription {
  std::string name;        // "NVIDIA H100 80GB HBM3"
  std::string capability;  // "9.0"
  int num_multiprocessors = 0;
  int64_t total_bytes = 0;
  int64_t free_bytes = 0;  // now, also for other processes
};

// Somebody else's host memory while it is pinned: until this goes, which must be before the memory does.
class HostPin {
 public:
  virtual ~HostPin() = default;
};

class DeviceBackend {
 public:
  virtual ~DeviceBackend() = default;

  // How many devices there are; 0 also where the driver is missing.
  virtual int NumDevices() = 0;
  // NotFound: no such device, with how many there are.
  virtual absl::StatusOr<DeviceDescription> Describe(int index) = 0;
  // 256-byte aligned, not initialised.  ResourceExhausted: with needed and available bytes.
  virtual absl::StatusOr<void*> Allocate(int index, int64_t bytes) = 0;
  virtual void Free(int index, void* memory) = 0;
  // Host memory that devices copy from and to without a detour.  ResourceExhausted as above.
  virtual absl::StatusOr<void*> AllocatePinned(int64_t bytes) = 0;
  virtual void FreePinned(void* memory) = 0;
  // Makes memory that is there already, and may be written to, such memory.  May take a second for some gigabytes.
  // Errors: what the driver says (the system may allow too little, or not this kind of mapping).
  virtual absl::StatusOr<std::unique_ptr<HostPin>> Pin(void* memory, int64_t bytes) = 0;
  virtual absl::StatusOr<std::unique_ptr<DeviceQueue>> NewQueue(int index, const DeviceQueueOptions& options) = 0;
};

// Before the first use of a device.  backend: borrowed for ever.
void RegisterBackend(DeviceKind kind, DeviceBackend* backend);
// Unimplemented: this build has none.
absl::StatusOr<DeviceBackend*> BackendOf(DeviceKind kind);
// REQUIRES: there is one.
DeviceBackend& RegisteredBackend(DeviceKind kind);

}  // namespace switchyard
