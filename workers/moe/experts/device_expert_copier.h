// Copies experts from the host's memory into slots on a device, over a queue of its own, so that they run beside what
// the device computes.
//
// Where the driver can pin the memory that they come from, a chunk is one copy; else it goes through two small pinned
// pieces, one of which the host fills while the other is on its way.  A chunk's copy begins when chunk.after has
// passed, which the queue waits for, not the host. Called by an expert store's copy thread alone, but for Create.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "workers/moe/experts/expert_copier.h"
#include "workers/tensor/device.h"
#include "workers/tensor/device_backend.h"
#include "workers/tensor/device_queue.h"
#include "workers/tensor/tensor.h"

namespace switchyard::moe {

// What all chunks come from: an expert file's mapping.  Stays there as long as the copier does.
struct ExpertSource {
  const char* begin = nullptr;
  int64_t bytes = 0;
};

class DeviceExpertCopier : public ExpertCopier {
 public:
  // Pins the source, which must be mapped to be written to, or else takes the pieces, and logs why.
  // Errors: Unimplemented (no such backend), ResourceExhausted, the device's.
  static absl::StatusOr<std::unique_ptr<DeviceExpertCopier>> Create(Device device, const ExpertSource& source);

  absl::Status Copy(const ExpertChunk& chunk) override {
    return CopyBeside(chunk, [] {});
  }
  absl::Status CopyBeside(const ExpertChunk& chunk, absl::FunctionRef<void()> beside) override;
  absl::StatusOr<const char*> ReadBack(const ExpertChunk& chunk) override;
  bool pinned() const { return pin_ != nullptr; }

 private:
  struct Piece {
    PinnedBuffer memory;
    std::unique_ptr<DeviceEvent> copied;  // null: free
  };

  explicit DeviceExpertCopier(std::unique_ptr<DeviceQueue> queue) : queue_(std::move(queue)) {}
  absl::Status EnqueueByPieces(const ExpertChunk& chunk);
  // Of all that is enqueued.
  absl::Status Await();

  std::unique_ptr<HostPin> pin_;  // null: pieces_ are used
  std::array<Piece, 2> pieces_;
  PinnedBuffer read_back_;
  const std::unique_ptr<DeviceQueue> queue_;  // goes first, and waits for what is under way
};

// The one for slots on that device.  Errors: DeviceExpertCopier::Create's.
absl::StatusOr<std::unique_ptr<ExpertCopier>> MakeExpertCopier(Device device, const ExpertSource& source);

}  // namespace switchyard::moe
