// Int32 arrays that the host makes for every step and a device reads: token ids, positions, block tables.
//
// Each array has a place of its own in the device's memory, the same for ever, so that a recorded graph finds it.  What
// the host writes for a step is sent in its stream's order; the host may prepare the next step meanwhile: it has two
// copies, which take turns.  On the CPU host and device side are the same memory.
// Thread-compatible.
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

  int64_t capacity(int array) const { return capacities_[array]; }
  // Where the host writes array i for the next Send.  Contents are undefined.  After Begin.
  absl::Span<int32_t> host(int array);
  // Makes the host's side free to be written: waits for the copy of the step before the last.
  absl::Status Begin(const Stream& stream);
  // Sends the first counts[i] numbers of every array.
  absl::Status Send(const Stream& stream, absl::Span<const int64_t> counts);

  // [count] on the device, as of the last Send in the stream's order.
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
