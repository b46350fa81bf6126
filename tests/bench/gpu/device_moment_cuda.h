// A moment in a stream's order, with the device's time at it.
//
// Thread-compatible.  Makes an event on the stream's device when recorded first.  Not for streams of the CPU, nor while
// a graph is being recorded.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "workers/tensor/device.h"

namespace switchyard {

class DeviceMoment {
 public:
  DeviceMoment();
  ~DeviceMoment();
  DeviceMoment(DeviceMoment&&) noexcept;
  DeviceMoment& operator=(DeviceMoment&&) noexcept;

  // It is now: behind what was enqueued so far.
  absl::Status Record(const Stream& stream);

 private:
  friend absl::StatusOr<double> SecondsBetween(const DeviceMoment& from, const DeviceMoment& to);
  struct Event;
  std::unique_ptr<Event> event_;
};

// Waits until the device has reached both.  REQUIRES: both were recorded, on streams of one device.
absl::StatusOr<double> SecondsBetween(const DeviceMoment& from, const DeviceMoment& to);

}  // namespace switchyard
