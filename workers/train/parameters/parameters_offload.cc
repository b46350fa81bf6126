// Masters and moments of experts that are in a file: who has which place, and who sees them when.
#include <utility>

#include "scheduler/base/status_macros.h"
#include "workers/train/parameters/parameters.h"
#include "workers/train/step/scoped_state.h"

namespace switchyard::train {

absl::StatusOr<std::unique_ptr<StateOffload>> Parameters::OffloadLayers(
    const std::vector<std::vector<ParameterBlock*>>& layers, const OpenStateFileFn& open) const {
  std::vector<std::vector<Shape>> shapes;
  for (const std::vector<ParameterBlock*>& layer : layers) {
    std::vector<Shape>& of_layer = shapes.emplace_back();
    for (const ParameterBlock* block : layer) of_layer.push_back(block->StateShape());
  }
  ASSIGN_OR_RETURN(std::unique_ptr<StateOffload> offload,
                   StateOffload::Create(shapes, AccDType(model_->dtype()), open));
  for (size_t l = 0; l < layers.size(); ++l) {
    for (size_t i = 0; i < layers[l].size(); ++i) {
      layers[l][i]->offloaded = &offload->file();
      layers[l][i]->offloaded_at = offload->place(l, i).at;
    }
  }
  return offload;
}

absl::Status Parameters::Offload(const OpenStateFileFn& open) {
  std::vector<std::vector<ParameterBlock*>> layers;
  int32_t layer = -1;
  for (size_t b = 0; b < blocks_.size(); ++b) {
    if (blocks_[b].shard != model::Shard::kExpert) continue;
    if (blocks_[b].layer != std::exchange(layer, blocks_[b].layer)) {
      layers.emplace_back();
      offloaded_.emplace_back();
    }
    layers.back().push_back(&blocks_[b]);
    offloaded_.back().push_back(b);
  }
  if (layers.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(offload_, OffloadLayers(layers, open));
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
    const ScopedState given(blocks, tensors);
    return use(blocks);
  });
}

}  // namespace switchyard::train
