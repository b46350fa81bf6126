#include "workers/train/parameters/state_offload.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "scheduler/base/check.h"
#include "scheduler/base/clock.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::train {
namespace {

constexpr int64_t kPieceBytes = int64_t{1} << 20;

}  // namespace

// The progress of one pass.  The thread and the caller wait for each other, or for the end.
struct StateOffload::Progress {
  absl::Mutex mu;
  size_t read ABSL_GUARDED_BY(mu) = 0;  // layers that are in their slots
  size_t used ABSL_GUARDED_BY(mu) = 0;  // layers that the caller has used
  bool given_up ABSL_GUARDED_BY(mu) = false;
  absl::Status status ABSL_GUARDED_BY(mu);  // the file's

  // False: the pass has ended early.
  bool AwaitRead(size_t layer) {
    absl::MutexLock lock(&mu);
    const auto there = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu) { return read > layer || !status.ok(); };
    mu.Await(absl::Condition(&there));
    return read > layer;
  }
  bool AwaitUse(size_t layer) {
    absl::MutexLock lock(&mu);
    const auto done = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu) { return used > layer || given_up; };
    mu.Await(absl::Condition(&done));
    return used > layer;
  }
  bool Keep(const absl::Status& done) {
    absl::MutexLock lock(&mu);
    if (status.ok()) status = done;
    return status.ok();
  }
};

absl::StatusOr<std::unique_ptr<StateOffload>> StateOffload::Create(const std::vector<std::vector<Shape>>& shapes,
                                                                   DType dtype, const OpenStateFileFn& open) {
  std::vector<std::vector<int64_t>> layers;
  int64_t bytes = 0;
  for (const std::vector<Shape>& blocks : shapes) {
    std::vector<int64_t>& places = layers.emplace_back();
    for (const Shape& shape : blocks) {
      places.push_back(bytes);
      bytes += 3 * shape.NumElements() * DTypeBytes(dtype);
    }
  }
  std::unique_ptr<StateOffload> offload(new StateOffload(std::move(layers), bytes));
  ASSIGN_OR_RETURN(offload->file_, open(bytes));
  const size_t slots = std::min(shapes.size(), offload->slots_.size());
  for (size_t s = 0; s < slots; ++s) {
    for (const Shape& shape : shapes[s]) {
      Tensors& tensors = offload->slots_[s].emplace_back();
      for (Tensor& tensor : tensors) {
        ASSIGN_OR_RETURN(tensor, Tensor::Allocate(dtype, shape, Device::Cpu()));
      }
    }
  }
  for (size_t l = slots; l < shapes.size(); ++l) SY_CHECK(shapes[l] == shapes[l % slots]);
  return offload;
}

absl::Status StateOffload::ReadLayer(size_t layer) {
  return InPieces(layer, [this](int64_t at, absl::Span<char> piece) { return file_->Read(at, piece); });
}

absl::Status StateOffload::WriteLayer(size_t layer) {
  return InPieces(layer, [this](int64_t at, absl::Span<char> piece) {
    return file_->Write(at, absl::string_view(piece.data(), piece.size()));
  });
}

absl::Status StateOffload::InPieces(size_t layer, absl::FunctionRef<absl::Status(int64_t, absl::Span<char>)> move) {
  for (size_t b = 0; b < layers_[layer].size(); ++b) {
    int64_t at = layers_[layer][b];
    for (const Tensor& tensor : slot(layer)[b]) {
      char* const values = static_cast<char*>(tensor.view().raw());
      for (int64_t begin = 0; begin < tensor.bytes(); begin += kPieceBytes) {
        const int64_t count = std::min(kPieceBytes, tensor.bytes() - begin);
        RETURN_IF_ERROR(move(at + begin, absl::MakeSpan(values + begin, static_cast<size_t>(count))));
      }
      at += tensor.bytes();
    }
  }
  return absl::OkStatus();
}

// The thread's part.  Layer i uses the slot of layer i - 2, after that was used and written back.
void StateOffload::Stream(StateAccess access, Progress* progress) {
  const size_t layers = layers_.size(), ahead = slots_.size();
  for (size_t i = 0; i < layers + ahead; ++i) {
    if (i >= ahead && i - ahead < layers) {
      if (!progress->AwaitUse(i - ahead)) return;
      if (access == StateAccess::kUpdate && !progress->Keep(WriteLayer(i - ahead))) return;
    }
    if (i >= layers) continue;
    if (!progress->Keep(ReadLayer(i))) return;
    absl::MutexLock lock(&progress->mu);
    progress->read = i + 1;
  }
}

absl::Status StateOffload::ForEachLayer(StateAccess access,
                                        absl::FunctionRef<absl::Status(size_t, absl::Span<Tensors>)> use) {
  Progress progress;
  std::thread thread([&] { Stream(access, &progress); });
  absl::Status used;
  for (size_t layer = 0; layer < layers_.size() && used.ok(); ++layer) {
    const absl::Time begin = MonotonicNow();
    const bool there = progress.AwaitRead(layer);
    wait_seconds_ += absl::ToDoubleSeconds(MonotonicNow() - begin);
    if (!there) break;
    used = use(layer, slot(layer));
    absl::MutexLock lock(&progress.mu);
    if (used.ok()) progress.used = layer + 1;
    progress.given_up = !used.ok();
  }
  const absl::Time begin = MonotonicNow();
  thread.join();
  wait_seconds_ += absl::ToDoubleSeconds(MonotonicNow() - begin);
  RETURN_IF_ERROR(used);
  absl::MutexLock lock(&progress.mu);
  return progress.status;
}

}  // namespace switchyard::train
