// Replaces a rank's experts by others in its parameters.
#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"
#include "workers/model/config/memory_plan.h"
#include "workers/model/families/family.h"
#include "workers/tensor/copy_bytes.h"
#include "workers/train/parameters/parameters.h"

namespace switchyard::train {
namespace {

const std::string& NameOf(const ParameterBlock& block) { return block.parts[0].name; }

bool Contains(absl::Span<const int32_t> ids, int32_t id) { return std::find(ids.begin(), ids.end(), id) != ids.end(); }

std::vector<ParameterBlock*> ExpertsOf(int32_t layer, std::vector<ParameterBlock>* blocks) {
  std::vector<ParameterBlock*> some;
  for (ParameterBlock& block : *blocks) {
    if (block.shard == model::Shard::kExpert && block.layer == layer) some.push_back(&block);
  }
  return some;
}

// By MoE layer, in the order of the file that they are to have.
std::vector<std::vector<ParameterBlock*>> InFile(const model::ModelConfig& config, NewExperts* experts) {
  std::vector<std::vector<ParameterBlock*>> layers;
  for (size_t layer = 0; layer < config.layers.size(); ++layer) {
    if (!config.layers[layer].moe) continue;
    std::vector<ParameterBlock*>& blocks = layers.emplace_back();
    for (std::vector<ParameterBlock>* from : {&experts->blocks, &experts->staying}) {
      const std::vector<ParameterBlock*> some = ExpertsOf(static_cast<int32_t>(layer), from);
      blocks.insert(blocks.end(), some.begin(), some.end());
    }
  }
  return layers;
}

void CopyState(const ParameterBlock& from, const ParameterBlock& to) {
  for (const auto state : StateOf(from)) {
    SY_CHECK_EQ((from.*state).bytes(), (to.*state).bytes());
    CopyBytes((to.*state).view().raw(), (from.*state).view().raw(), (to.*state).bytes());
  }
}

// [MoE layers][residents], from where they are.
std::vector<std::vector<model::FfnWeights>> BySlot(model::ModelWeights* weights, NewExperts* experts) {
  std::vector<std::vector<model::FfnWeights>> by_slot;
  for (model::LayerWeights& layer : weights->layers) {
    if (!layer.moe.has_value()) continue;
    std::vector<model::FfnWeights>& offloaded = experts->weights[by_slot.size()];
    std::vector<model::FfnWeights>& to = by_slot.emplace_back();
    for (const int32_t id : experts->residents) {
      const auto held = std::find(weights->residents.begin(), weights->residents.end(), id);
      if (held != weights->residents.end()) {
        to.push_back(std::move(layer.moe->experts[held - weights->residents.begin()]));
        continue;
      }
      const auto found = std::find(experts->ids.begin(), experts->ids.end(), id);
      SY_CHECK(found != experts->ids.end());
      to.push_back(std::move(offloaded[found - experts->ids.begin()]));
    }
  }
  return by_slot;
}

}  // namespace

std::vector<ParameterBlock> Parameters::StayingBlocks(absl::Span<const int32_t> residents) const {
  std::vector<ParameterBlock> blocks;
  for (const ParameterBlock& from : blocks_) {
    if (from.shard != model::Shard::kExpert || !Contains(residents, from.expert)) continue;
    ParameterBlock& block = blocks.emplace_back();
    block.parts = from.parts;
    block.rules = from.rules;
    block.frozen = from.frozen;
    block.base = from.base;
    block.shard = from.shard;
    block.layer = from.layer;
    block.expert = from.expert;
    block.weight = from.weight;
    block.tensor = from.tensor;
  }
  return blocks;
}

absl::StatusOr<NewExperts> Parameters::AllocateExperts(std::vector<int32_t> residents,
                                                       const OpenStateFileFn& open_offload) const {
  const model::ModelConfig& config = model_->config();
  NewExperts experts = {.residents = std::move(residents)};
  for (const int32_t id : experts.residents) {
    if (!Contains(model_->weights().residents, id)) experts.ids.push_back(id);
  }
  for (int64_t i = 0; i < config.num_moe_layers(); ++i) {
    const auto count = static_cast<int64_t>(experts.ids.size());
    ASSIGN_OR_RETURN(experts.weights.emplace_back(),
                     switchyard::model::AllocateExperts(config, model_->dtype(), count, stream_.device()));
  }
  experts.blocks = BlocksOf(model::ListExpertParams(config, *model::FindFamily(config.model_type), experts.ids,
                                                    absl::MakeSpan(experts.weights)));
  if (open_offload || offload_ != nullptr) experts.staying = StayingBlocks(experts.residents);
  const bool offloads = open_offload && !(experts.blocks.empty() && experts.staying.empty());
  if (offloads) {
    ASSIGN_OR_RETURN(experts.offload, OffloadLayers(InFile(config, &experts), open_offload));
  } else {
    for (ParameterBlock& block : experts.staying) RETURN_IF_ERROR(AllocateState(&block));
  }
  for (ParameterBlock& block : experts.blocks) RETURN_IF_ERROR(Allocate(&block));
  return experts;
}

int64_t Parameters::BytesOfExperts(const NewExpertsShape& shape) const {
  const model::ModelConfig& config = model_->config();
  const auto bytes = [&](DType dtype, int64_t count) {
    return model::WeightBytes(config, dtype, count) - model::WeightBytes(config, dtype, 0);
  };
  const DType wide = AccDType(model_->dtype());
  // Master and two moments of each moved expert; with a file those of two layers.
  absl::int128 state = 3 * bytes(wide, shape.added);
  if (shape.offload) {
    const int64_t layers = std::max<int64_t>(1, config.num_moe_layers());
    state = 3 * bytes(wide, shape.added + shape.staying) * std::min<int64_t>(layers, 2) / layers;
  } else if (offload_ != nullptr) {
    state += 3 * bytes(wide, shape.staying);
  }
  // The weights and their transposes, and gradients.
  return static_cast<int64_t>(2 * bytes(model_->dtype(), shape.added) + bytes(wide, shape.added) + state);
}

absl::Status Parameters::BringLayer(NewExperts* experts, int32_t layer, size_t moe_layer, BringLayerFn bring) {
  const std::vector<ParameterBlock*> from = ExpertsOf(layer, &blocks_), to = ExpertsOf(layer, &experts->blocks),
                                     staying = ExpertsOf(layer, &experts->staying);
  std::vector<ParameterBlock*> read, written;
  absl::Span<StateOffload::Tensors> read_slot, written_slot;
  if (offload_ != nullptr) {
    RETURN_IF_ERROR(offload_->ReadLayer(moe_layer));
    for (const size_t b : offloaded_[moe_layer]) read.push_back(&blocks_[b]);
    read_slot = offload_->slot(moe_layer);
  }
  if (experts->offload != nullptr) {
    written = to;
    written.insert(written.end(), staying.begin(), staying.end());
    written_slot = experts->offload->slot(moe_layer);
  }
  {
    const ScopedState now(std::move(read), read_slot), to_come(std::move(written), written_slot);
    for (const ParameterBlock* block : staying) {
      const auto same = std::find_if(from.begin(), from.end(),
                                     [&](const ParameterBlock* each) { return NameOf(*each) == NameOf(*block); });
      SY_CHECK(same != from.end());
      CopyState(**same, *block);
    }
    RETURN_IF_ERROR(bring(layer, from, to));
    for (ParameterBlock* block : to) RETURN_IF_ERROR(Publish(block));
  }
  return experts->offload != nullptr ? experts->offload->WriteLayer(moe_layer) : absl::OkStatus();
}

absl::Status Parameters::BringExperts(NewExperts* experts, BringLayerFn bring) {
  const std::vector<model::LayerConfig>& layers = model_->config().layers;
  size_t moe_layer = 0;
  for (size_t i = 0; i < layers.size(); ++i) {
    if (layers[i].moe) RETURN_IF_ERROR(BringLayer(experts, static_cast<int32_t>(i), moe_layer++, bring));
  }
  return absl::OkStatus();
}

void Parameters::AdoptExperts(NewExperts experts) {
  std::vector<std::vector<std::string>> in_file;
  if (experts.offload != nullptr) {
    for (const std::vector<ParameterBlock*>& layer : InFile(model_->config(), &experts)) {
      std::vector<std::string>& names = in_file.emplace_back();
      for (const ParameterBlock* block : layer) names.push_back(NameOf(*block));
    }
  }
  // Moves memory by name.
  std::map<std::string, ParameterBlock> memory;
  for (std::vector<ParameterBlock>* blocks : {&blocks_, &experts.blocks}) {
    for (ParameterBlock& block : *blocks) {
      const std::string name = NameOf(block);
      memory[name] = std::move(block);
    }
  }
  for (ParameterBlock& block : experts.staying) {
    ParameterBlock& to = memory.at(NameOf(block));
    for (const auto state : kState) to.*state = std::move(block.*state);
    to.offloaded = block.offloaded;
    to.offloaded_at = block.offloaded_at;
  }
  model::ModelWeights* const weights = model_->mutable_weights();
  std::vector<std::vector<model::FfnWeights>> by_slot = BySlot(weights, &experts);
  model_->ReplaceExperts(stream_, std::move(experts.residents), std::move(by_slot));
  blocks_ = AllBlocks();
  std::map<std::string, size_t> index;
  for (size_t b = 0; b < blocks_.size(); ++b) {
    ParameterBlock& block = blocks_[b];
    ParameterBlock& from = memory.at(NameOf(block));
    block.replica = from.replica;
    block.transposed = std::move(from.transposed);
    block.gradient = std::move(from.gradient);
    for (const auto state : kState) block.*state = std::move(from.*state);
    block.offloaded = from.offloaded;
    block.offloaded_at = from.offloaded_at;
    index[NameOf(block)] = b;
  }
  offload_ = std::move(experts.offload);
  offloaded_.clear();
  for (const std::vector<std::string>& names : in_file) {
    std::vector<size_t>& layer = offloaded_.emplace_back();
    for (const std::string& name : names) layer.push_back(index.at(name));
  }
  gradients_ = {};
  LinkGradients();
}

void Parameters::SetReplica(int32_t replica) {
  for (ParameterBlock& block : blocks_) {
    if (block.shard == model::Shard::kExpert) block.replica = replica;
  }
}

}  // namespace switchyard::train
