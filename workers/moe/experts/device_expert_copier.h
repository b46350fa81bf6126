// Copies experts from the host's memory into slots on a device, over a queue of its own, beside the device's computing.
//
// Where the driver can pin the source, a chunk is one copy; else it goes through two small pinned pieces: the host
// fills one while the other is on its way.  The queue, not the host, waits for chunk.after.  Called by an expert
// store's copy thread alone, but for Create.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "workers/moe/experts/expert_copier.h"
#include "workers/tensor/device.h"
#include "workers/tensor/device_backend.h"
#include "workers/tensor/device_queue.h"
#include "workers/tensor/tensor.h"

namespace switchyard::moe {

// The source of all chunks, an expert file's mapping, which must outlive the copier.
struct ExpertSource {
  const char* begin = nullptr;
  int64_t bytes = 0;
};

class DeviceExpertCopier : public ExpertCopier {
 public:
  // Pins the source, or else allocates the pieces; logs which, and why.
  // Errors: Unimplemented (no such backend), ResourceExhausted, the device's.
  static absl::StatusOr<std::unique_ptr<DeviceExpertCopier>> Create(Device device, const ExpertSource& source);

  void Start(const ExpertChunk& chunk) override;
  Finished Await() override;
  CopyPath path() const override;

 private:
  struct Piece {
    PinnedBuffer memory;
    std::unique_ptr<DeviceEvent> copied;  // null: free
  };

  explicit DeviceExpertCopier(std::unique_ptr<DeviceQueue> queue) : queue_(std::move(queue)) {}
  absl::Status Enqueue(const ExpertChunk& chunk);
  absl::Status EnqueueByPieces(const ExpertChunk& chunk);
  absl::Status Synchronize();

  std::unique_ptr<HostPin> pin_;  // null: pieces_ are used
  std::array<Piece, 2> pieces_;
  Finished started_;                          // status: whether it could be enqueued
  const std::unique_ptr<DeviceQueue> queue_;  // is destroyed first, and waits for work under way
};

// Makes the copier for slots on that device.  Errors: DeviceExpertCopier::Create's.
absl::StatusOr<std::unique_ptr<ExpertCopier>> MakeExpertCopier(Device device, const ExpertSource& source);

}  // namespace switchyard::moe
