// Interface to a kind of device other than the CPU: its memory and its queues.  Thread-safe.
//
// Programs that are built with the CUDA backend (cuda_backend.h) register it; without one, its devices do not exist.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "workers/tensor/device.h"
#include "workers/tensor/device_queue.h"

namespace switchyard {

struct DeviceDescription {
  std::string name;        // "NVIDIA H100 80GB HBM3"
  std::string capability;  // "9.0"
  int64_t total_bytes = 0;
  int64_t free_bytes = 0;  // at the moment, for all processes together
};

// Keeps host memory pinned as long as it lives.  It must be destroyed before the memory is freed.
class HostPin {
 public:
  virtual ~HostPin() = default;
  // Devices can only read it.
  virtual bool read_only() const { return false; }
};

class DeviceBackend {
 public:
  virtual ~DeviceBackend() = default;

  // 0 if there is none, or no driver.
  virtual int NumDevices() = 0;
  // NotFound: there is no such device; names how many there are.  FailedPrecondition: the driver is too old for this
  // program; names both versions.
  virtual absl::StatusOr<DeviceDescription> Describe(int index) = 0;
  // 256-byte aligned, not initialised.  ResourceExhausted: with needed and available bytes.
  virtual absl::StatusOr<void*> Allocate(int index, int64_t bytes) = 0;
  virtual void Free(int index, void* memory) = 0;
  // Host memory that devices copy from and to directly.  ResourceExhausted as above.
  virtual absl::StatusOr<void*> AllocatePinned(int64_t bytes) = 0;
  virtual void FreePinned(void* memory) = 0;
  // Pins memory that exists already, from which a device only reads: as read-only where it can, else as memory that may
  // be written to, which then it must be.  May take a second for some gigabytes.
  // Errors: the driver's (the system may allow too little, or not this kind of mapping).
  virtual absl::StatusOr<std::unique_ptr<HostPin>> Pin(int index, void* memory, int64_t bytes) = 0;
  virtual absl::StatusOr<std::unique_ptr<DeviceQueue>> NewQueue(int index, const DeviceQueueOptions& options) = 0;
};

// Makes a backend known, before the first use of a device.  backend: borrowed for ever.
void RegisterBackend(DeviceKind kind, DeviceBackend* backend);
// Unimplemented: this build has no such backend.
absl::StatusOr<DeviceBackend*> BackendOf(DeviceKind kind);
// The registered backend.  REQUIRES: there is one.
DeviceBackend& RegisteredBackend(DeviceKind kind);

}  // namespace switchyard
