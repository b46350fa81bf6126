// Int32 arrays that the host writes for every step and a device reads: token ids, positions, block tables.
//
// Each array has a fixed address in the device's memory, which a recorded graph keeps.  Arrays are sent in the stream's
// order; the host has two copies, which take turns, so it may prepare the next step meanwhile.  On the CPU the host's
// and the device's side are the same memory.  Thread-compatible.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "workers/tensor/device.h"
#include "workers/tensor/device_queue.h"
#include "workers/tensor/int_view.h"
#include "workers/tensor/tensor.h"

namespace switchyard {

class IntUpload {
 public:
  IntUpload() = default;
  // capacities: of array 0, 1, …  ResourceExhausted, the device's errors.
  static absl::StatusOr<IntUpload> Create(Device device, std::vector<int64_t> capacities);

  // The memory in which the host writes an array for the next Send.  Contents are undefined.  REQUIRES: Begin.
  absl::Span<int32_t> host(int array);
  // Makes the host's side writable: waits for the copy of the step before the last.
  absl::Status Begin(const Stream& stream);
  // Sends the first counts[i] numbers of every array.
  absl::Status Send(const Stream& stream, absl::Span<const int64_t> counts);

  // [count] numbers on the device, as of the last Send in the stream's order.
  IntView view(int array, int64_t count) const;

 private:
  static constexpr int64_t kAlign = 64;  // numbers: arrays begin at 256 bytes

  std::vector<int64_t> capacities_;
  std::vector<int64_t> offsets_;
  Tensor on_device_;        // [sum of capacities]
  PinnedBuffer pinned_[2];  // none on the CPU
  std::unique_ptr<DeviceEvent> sent_[2];
  int turn_ = 0;
};

}  // namespace switchyard
