#include "workers/moe/experts/device_expert_copier.h"

#include <algorithm>
#include <cstring>

#include "absl/time/time.h"
#include "scheduler/base/clock.h"
#include "scheduler/base/log.h"
#include "scheduler/base/memory_share.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::moe {
namespace {

constexpr int64_t kPieceBytes = 512 << 10;
// For a chunk and the computing before its slot is free: far more than a working device takes.
constexpr absl::Duration kChunkLimit = absl::Seconds(60);

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceExpertCopier>> DeviceExpertCopier::Create(Device device,
                                                                               const ExpertSource& source) {
  ASSIGN_OR_RETURN(DeviceBackend* const backend, BackendOf(device.kind));
  ASSIGN_OR_RETURN(std::unique_ptr<DeviceQueue> queue, backend->NewQueue(device.index, {}));
  auto copier = std::unique_ptr<DeviceExpertCopier>(new DeviceExpertCopier(std::move(queue)));
  absl::StatusOr<std::unique_ptr<HostPin>> pin =
      backend->Pin(device.index, const_cast<char*>(source.begin), source.bytes);
  if (pin.ok()) {
    copier->pin_ = *std::move(pin);
    LogInfo("experts: ", Mib(source.bytes), " are registered", copier->pin_->read_only() ? " read-only" : "", " with ",
            device.ToString());
    return copier;
  }
  LogWarn("experts: ", Mib(source.bytes), " cannot be pinned for ", device.ToString(), ": ", pin.status().message(),
          "; copies go through two pinned pieces of ", kPieceBytes >> 10, " KiB");
  for (Piece& piece : copier->pieces_) {
    ASSIGN_OR_RETURN(piece.memory, PinnedBuffer::Allocate(kPieceBytes, device.kind));
  }
  return copier;
}

CopyPath DeviceExpertCopier::path() const {
  if (pin_ == nullptr) return CopyPath::kPinnedPieces;
  return pin_->read_only() ? CopyPath::kRegisteredReadOnly : CopyPath::kRegistered;
}

void DeviceExpertCopier::Start(const ExpertChunk& chunk) { started_ = {chunk, Enqueue(chunk)}; }

ExpertCopier::Finished DeviceExpertCopier::Await() {
  if (started_.status.ok()) started_.status = Synchronize();
  return std::move(started_);
}

absl::Status DeviceExpertCopier::Enqueue(const ExpertChunk& chunk) {
  if (chunk.after != nullptr) RETURN_IF_ERROR(queue_->WaitFor(*chunk.after));
  return pin_ != nullptr ? queue_->Copy(chunk.to, chunk.from, chunk.bytes) : EnqueueByPieces(chunk);
}

absl::Status DeviceExpertCopier::EnqueueByPieces(const ExpertChunk& chunk) {
  size_t turn = 0;
  for (int64_t begin = 0; begin < chunk.bytes; begin += kPieceBytes) {
    Piece& piece = pieces_[turn];
    turn = (turn + 1) % pieces_.size();
    if (piece.copied != nullptr) RETURN_IF_ERROR(queue_->WaitOnHost(*piece.copied, MonotonicNow() + kChunkLimit));
    const int64_t bytes = std::min(kPieceBytes, chunk.bytes - begin);
    std::memcpy(piece.memory.data(), chunk.from + begin, static_cast<size_t>(bytes));
    RETURN_IF_ERROR(queue_->Copy(chunk.to + begin, piece.memory.data(), bytes));
    ASSIGN_OR_RETURN(piece.copied, queue_->Record());
  }
  return absl::OkStatus();
}

absl::Status DeviceExpertCopier::Synchronize() { return queue_->Synchronize(MonotonicNow() + kChunkLimit); }

absl::StatusOr<std::unique_ptr<ExpertCopier>> MakeExpertCopier(Device device, const ExpertSource& source) {
  if (device.is_cpu()) return std::make_unique<HostExpertCopier>();
  return DeviceExpertCopier::Create(device, source);
}

}  // namespace switchyard::moe
