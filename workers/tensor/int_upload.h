// Int32 arrays that the host writes for every step and a device reads: token ids, positions, new entries of block
// tables.  One copy brings all of a step's there:
//
//   Begin → Take, Take, … (the host writes) → Send
//
// An array's place in the device's memory depends on the counts of the arrays that were taken before it, and on nothing
// else: a captured graph finds those of every step that takes the same counts.  Copies are in the stream's order; the
// host has two sides, which take turns, so it may prepare the next step meanwhile.  On the CPU the host's and the
// device's side are the same memory.  Thread-compatible.
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
  // Of a step.
  struct Array {
    absl::Span<int32_t> host;  // for the host to fill before Send; contents are undefined
    IntView device;            // as Send leaves it in the stream's order, until the next Send
  };

  IntUpload() = default;
  // Allocates memory for arrays of so many numbers each.  ResourceExhausted, the device's errors.
  static absl::StatusOr<IntUpload> Create(Device device, const std::vector<int64_t>& counts);

  // Makes the host's side writable: waits for the copy of the step before the last.  Forgets what was taken.
  absl::Status Begin(const Stream& stream);
  // Returns the next array.  REQUIRES: there is room.
  Array Take(int64_t count);
  // Sends what was taken since Begin.
  absl::Status Send(const Stream& stream);

 private:
  Tensor on_device_;        // [room]
  PinnedBuffer pinned_[2];  // none on the CPU
  std::unique_ptr<DeviceEvent> sent_[2];
  int turn_ = 0;
  int64_t taken_ = 0;  // numbers, with the gaps between arrays
};

}  // namespace switchyard
