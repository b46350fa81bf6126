#include "workers/tensor/device_writer.h"

#include <algorithm>
#include <utility>

#include "absl/time/time.h"
#include "scheduler/base/status_macros.h"
#include "workers/tensor/device_backend.h"

namespace switchyard {

absl::StatusOr<std::unique_ptr<DeviceWriter>> DeviceWriter::Create(Device device) {
  if (device.is_cpu()) return nullptr;
  ASSIGN_OR_RETURN(DeviceBackend* const backend, BackendOf(device.kind));
  ASSIGN_OR_RETURN(std::unique_ptr<DeviceQueue> queue, backend->NewQueue(device.index, {}));
  std::unique_ptr<DeviceWriter> writer(new DeviceWriter(std::move(queue)));
  absl::MutexLock lock(&writer->mu_);
  for (int i = 0; i < kPieces; ++i) {
    writer->pieces_.emplace_back();
    ASSIGN_OR_RETURN(writer->pieces_.back().memory, PinnedBuffer::Allocate(kPieceBytes, device.kind));
  }
  return writer;
}

DeviceWriter::~DeviceWriter() {
  absl::MutexLock lock(&mu_);
  queue_->Synchronize(absl::InfiniteFuture()).IgnoreError();  // copies from the pieces may be under way
}

bool DeviceWriter::OneIsFree() const {
  return std::any_of(pieces_.begin(), pieces_.end(), [](const Piece& piece) { return !piece.being_filled; });
}

// A piece grows when a row is longer.
absl::StatusOr<DeviceWriter::Piece*> DeviceWriter::TakePiece(int64_t bytes) {
  absl::MutexLock lock(&mu_);
  mu_.Await(absl::Condition(this, &DeviceWriter::OneIsFree));
  RETURN_IF_ERROR(status_);
  Piece* chosen = nullptr;
  for (Piece& piece : pieces_) {
    if (piece.being_filled) continue;
    if (piece.copied != nullptr) {
      ASSIGN_OR_RETURN(const bool passed, piece.copied->Passed());
      if (passed) piece.copied = nullptr;
    }
    if (chosen == nullptr || piece.copied == nullptr) chosen = &piece;
    if (chosen->copied == nullptr) break;
  }
  // All pieces are under way: waiting for the queue frees them all.
  if (chosen->copied != nullptr) RETURN_IF_ERROR(queue_->Synchronize(absl::InfiniteFuture()));
  chosen->copied = nullptr;
  if (chosen->memory.bytes() < bytes) {
    ASSIGN_OR_RETURN(chosen->memory, PinnedBuffer::Allocate(bytes, queue_->device().kind));
  }
  chosen->being_filled = true;
  return chosen;
}

absl::Status DeviceWriter::Write(void* to, int64_t rows, int64_t row_bytes,
                                 absl::FunctionRef<void(int64_t first, int64_t count, char* at)> fill) {
  const int64_t step = std::max<int64_t>(1, kPieceBytes / std::max<int64_t>(row_bytes, 1));
  for (int64_t first = 0; first < rows; first += step) {
    const int64_t count = std::min(step, rows - first), bytes = count * row_bytes;
    ASSIGN_OR_RETURN(Piece* const piece, TakePiece(bytes));
    fill(first, count, piece->memory.data());
    absl::MutexLock lock(&mu_);
    piece->being_filled = false;
    status_.Update(queue_->Copy(static_cast<char*>(to) + first * row_bytes, piece->memory.data(), bytes));
    RETURN_IF_ERROR(status_);
    absl::StatusOr<std::unique_ptr<DeviceEvent>> copied = queue_->Record();
    status_.Update(copied.status());
    RETURN_IF_ERROR(status_);
    piece->copied = *std::move(copied);
  }
  return absl::OkStatus();
}

absl::Status DeviceWriter::Finish() {
  absl::MutexLock lock(&mu_);
  status_.Update(queue_->Synchronize(absl::InfiniteFuture()));
  return status_;
}

}  // namespace switchyard
