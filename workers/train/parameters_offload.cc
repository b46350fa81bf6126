// Masters and moments of experts that are in a file: who has which place, and who sees them when.
#include <utility>

#include "scheduler/base/status_macros.h"
#include "workers/train/parameters.h"

namespace switchyard {
namespace {

// In the order of the file.
constexpr Tensor ParameterBlock::*kState[] = {&ParameterBlock::master, &ParameterBlock::mean,
                                              &ParameterBlock::mean_squares};

}  // namespace

absl::Status Parameters::Offload(const OpenStateFileFn& open) {
  std::vector<std::vector<Shape>> shapes;
  int32_t layer = -1;
  for (size_t b = 0; b < blocks_.size(); ++b) {
    if (blocks_[b].shard != Shard::kExpert) continue;
    if (blocks_[b].layer != std::exchange(layer, blocks_[b].layer)) {
      shapes.emplace_back();
      offloaded_.emplace_back();
    }
    shapes.back().push_back(blocks_[b].StateShape());
    offloaded_.back().push_back(b);
  }
  if (shapes.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(offload_, StateOffload::Create(shapes, AccDType(model_->dtype()), open));
  for (size_t l = 0; l < offloaded_.size(); ++l) {
    for (size_t i = 0; i < offloaded_[l].size(); ++i) {
      blocks_[offloaded_[l][i]].offloaded = &offload_->file();
      blocks_[offloaded_[l][i]].offloaded_at = offload_->place(l, i).at;
    }
  }
  return absl::OkStatus();
}

absl::Status Parameters::ForEachGroup(StateAccess access,
                                      absl::FunctionRef<absl::Status(absl::Span<ParameterBlock* const>)> use) {
  std::vector<ParameterBlock*> group;
  for (ParameterBlock& block : blocks_) {
    if (block.offloaded == nullptr) group.push_back(&block);
  }
  RETURN_IF_ERROR(use(group));
  if (offload_ == nullptr) return absl::OkStatus();
  return offload_->ForEachLayer(access, [&](size_t layer, absl::Span<StateOffload::Tensors> tensors) {
    std::vector<ParameterBlock*> blocks;
    for (const size_t b : offloaded_[layer]) blocks.push_back(&blocks_[b]);
    const auto exchange = [&] {
      for (size_t i = 0; i < blocks.size(); ++i) {
        for (size_t s = 0; s < tensors[i].size(); ++s) std::swap(blocks[i]->*kState[s], tensors[i][s]);
      }
    };
    exchange();
    absl::Status status = use(blocks);
    exchange();
    return status;
  });
}

}  // namespace switchyard
