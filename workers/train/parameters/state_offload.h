// Masters and moments of experts in a file instead of in memory, for the optimizer's part of a step, layer by layer:
//
//   a thread:  read 0 │ read 1 │ write 0, read 2 │ write 1, read 3 │ …
//   the caller:       │ use 0  │ use 1           │ use 2           │ …
//
// Two layers are in memory, in two slots that keep their memory.  Results have the bits of training without offload.
// Thread-compatible; another thread may read the file while ForEachLayer does not run.
// (Lina offloads idle expert parameters to the host, scheduler/PAPERS.md, item 4; here a disk has the host's part.)
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "workers/tensor/device.h"
#include "workers/tensor/tensor.h"
#include "workers/train/parameters/state_file.h"

namespace switchyard::train {

enum class StateAccess {
  kRead,    // changes are lost
  kUpdate,  // changes are kept
};

struct OffloadCounters {
  int64_t bytes = 0;        // of the file
  double wait_seconds = 0;  // in which the caller waited for the disk, since Create
};

class StateOffload {
 public:
  using Tensors = std::array<Tensor, 3>;

  // shapes[l]: of the blocks of layer l, equal for all layers.  Begins with zeros.  Errors: open's; ResourceExhausted.
  static absl::StatusOr<std::unique_ptr<StateOffload>> Create(const std::vector<std::vector<Shape>>& shapes,
                                                              DType dtype, const OpenStateFileFn& open);

  // Calls `use` for each layer in turn, with its blocks' tensors; `use` may move them away if it moves them back.  Ends
  // with the first error, use's or the file's; then the file's contents are undefined.
  absl::Status ForEachLayer(StateAccess access,
                            absl::FunctionRef<absl::Status(size_t layer, absl::Span<Tensors> blocks)> use);

  // Outside of ForEachLayer: a layer's slot, which every second layer shares; and copies from file to slot and back.
  absl::Span<Tensors> slot(size_t layer) { return absl::MakeSpan(slots_[layer % slots_.size()]); }
  absl::Status ReadLayer(size_t layer);
  absl::Status WriteLayer(size_t layer);

  // The byte of the file at which a block's master begins; its two moments follow.
  int64_t place(size_t layer, size_t block) const { return layers_[layer][block]; }
  const StateFile& file() const { return *file_; }
  OffloadCounters counters() const { return {.bytes = bytes_, .wait_seconds = wait_seconds_}; }

 private:
  struct Progress;

  StateOffload(std::vector<std::vector<int64_t>> layers, int64_t bytes) : layers_(std::move(layers)), bytes_(bytes) {}
  void Stream(StateAccess access, Progress* progress);
  // Calls move(at, piece) for each piece of a layer's slot.
  absl::Status InPieces(size_t layer, absl::FunctionRef<absl::Status(int64_t at, absl::Span<char> piece)> move);

  const std::vector<std::vector<int64_t>> layers_;  // places
  const int64_t bytes_;
  std::unique_ptr<StateFile> file_;
  std::array<std::vector<Tensors>, 2> slots_;  // of a layer's blocks
  double wait_seconds_ = 0;
};

}  // namespace switchyard::train
