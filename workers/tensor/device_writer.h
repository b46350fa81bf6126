// Copies data from the host into a device's memory through a few pinned pieces, as when weights stream from disk.
// Thread-safe: several threads fill pieces while earlier ones are copied.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "workers/tensor/device.h"
#include "workers/tensor/device_queue.h"
#include "workers/tensor/tensor.h"

namespace switchyard {

class DeviceWriter {
 public:
  static constexpr int64_t kPieceBytes = 4 << 20;
  static constexpr int kPieces = 6;

  // Null for the CPU.  Errors: ResourceExhausted (no pinned memory), the device's.
  static absl::StatusOr<std::unique_ptr<DeviceWriter>> Create(Device device);
  ~DeviceWriter();

  // Writes `rows` rows of row_bytes each, one after the other, to `to` on the device.  fill(first, count, at) writes
  // rows [first, first + count) to host memory and is called once for each piece.  Blocks for a free piece.
  absl::Status Write(void* to, int64_t rows, int64_t row_bytes,
                     absl::FunctionRef<void(int64_t first, int64_t count, char* at)> fill);
  // Waits until everything that was written is on the device.
  absl::Status Finish();

 private:
  struct Piece {
    PinnedBuffer memory;
    std::unique_ptr<DeviceEvent> copied;  // null: free
    bool being_filled = false;
  };

  explicit DeviceWriter(std::unique_ptr<DeviceQueue> queue) : queue_(std::move(queue)) {}
  absl::StatusOr<Piece*> TakePiece(int64_t bytes);
  bool OneIsFree() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  absl::Mutex mu_;
  const std::unique_ptr<DeviceQueue> queue_ ABSL_PT_GUARDED_BY(mu_);
  std::vector<Piece> pieces_ ABSL_GUARDED_BY(mu_);
  absl::Status status_ ABSL_GUARDED_BY(mu_);
};

}  // namespace switchyard
