// Masters and moments of a layer that are in a slot of their file (state_offload.h), put into their blocks for as long
// as this lives.  Borrows both; what is in the tensors then stays in the slot.
#pragma once

#include <cstddef>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "workers/train/parameters/parameters.h"
#include "workers/train/parameters/state_offload.h"

namespace switchyard::train {

class ScopedState {
 public:
  // Of no blocks: nothing.
  ScopedState() = default;
  // REQUIRES: as many of both.
  ScopedState(std::vector<ParameterBlock*> blocks, absl::Span<StateOffload::Tensors> tensors)
      : blocks_(std::move(blocks)), tensors_(tensors) {
    Exchange();
  }
  ~ScopedState() { Exchange(); }
  ScopedState(const ScopedState&) = delete;
  ScopedState& operator=(const ScopedState&) = delete;

 private:
  void Exchange() {
    for (size_t i = 0; i < blocks_.size(); ++i) {
      for (size_t s = 0; s < std::size(kState); ++s) std::swap(blocks_[i]->*kState[s], tensors_[i][s]);
    }
  }

  const std::vector<ParameterBlock*> blocks_;
  const absl::Span<StateOffload::Tensors> tensors_;
};

}  // namespace switchyard::train
