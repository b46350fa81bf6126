// The queue of work on a device that a Stream enqueues to.  Thread-compatible.
//
// Work is enqueued and runs later, in order; only Synchronize and WaitOnHost wait.  Host memory that a copy reads or
// writes must be pinned (PinnedBuffer) and stay as it is until the copy has run.  Errors of enqueued work surface at a
// later call and are sticky: the device's context is lost then.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "workers/tensor/device.h"

namespace switchyard {

// A point in a queue.
class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;
  // Whether the queue has passed it.
  virtual absl::StatusOr<bool> Passed() = 0;
};

// Work recorded once, to be run many times: a CUDA graph.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
};

struct DeviceQueueOptions {
  bool deterministic = false;  // ops are batch-invariant, also matrix products (gemm.h)
  bool high_priority = false;  // before other queues of the device, if the device can choose
};

class DeviceQueue {
 public:
  virtual ~DeviceQueue() = default;

  Device device() const { return device_; }
  void* handle() const { return handle_; }
  bool deterministic() const { return options_.deterministic; }
  int num_multiprocessors() const { return num_multiprocessors_; }

  // Scratch for every op of this queue while it runs.  May allocate; not while recording.  As the other calls, makes
  // the device the calling thread's current one, for the op's launch.
  virtual absl::StatusOr<void*> Workspace(int64_t bytes) = 0;

  // Copies between the host and this device, or within either.
  virtual absl::Status Copy(void* to, const void* from, int64_t bytes) = 0;
  virtual absl::Status Fill(void* to, uint8_t value, int64_t bytes) = 0;
  virtual absl::StatusOr<std::unique_ptr<DeviceEvent>> Record() = 0;
  // Later work waits until `event`, of any queue, has passed.
  virtual absl::Status WaitFor(const DeviceEvent& event) = 0;
  // Blocks until all that was enqueued has run, at most until the deadline (DeadlineExceeded).
  virtual absl::Status Synchronize(absl::Time deadline) = 0;
  // Blocks until this queue has passed the event, at most until the deadline.
  virtual absl::Status WaitOnHost(DeviceEvent& event, absl::Time deadline) = 0;

  // Between BeginRecording and EndRecording work is recorded and does not run; waiting and allocating are errors.
  virtual absl::Status BeginRecording() = 0;
  // ResourceExhausted: the device has no memory for the graph; the queue goes on as if nothing had been recorded.
  virtual absl::StatusOr<std::unique_ptr<DeviceGraph>> EndRecording() = 0;
  virtual absl::Status Run(DeviceGraph* graph) = 0;
  // Whether this process cannot use the device any more and must be restarted.
  virtual bool IsLost() = 0;

 protected:
  DeviceQueue(Device device, void* handle, int num_multiprocessors, const DeviceQueueOptions& options)
      : device_(device), handle_(handle), num_multiprocessors_(num_multiprocessors), options_(options) {}

 private:
  const Device device_;
  void* const handle_;
  const int num_multiprocessors_;
  const DeviceQueueOptions options_;
};

}  // namespace switchyard
