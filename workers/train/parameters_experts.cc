// How a rank's parameters come to be those of other experts.
#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"
#include "workers/model/families/family.h"
#include "workers/model/memory_plan.h"
#include "workers/train/parameters.h"

namespace switchyard {

int64_t NewExperts::bytes() const {
  int64_t bytes = 0;
  for (const ParameterBlock& block : blocks) {
    bytes += block.bytes() + (block.weight != nullptr ? block.weight->bytes() : block.tensor->bytes());
  }
  return bytes;
}

absl::StatusOr<NewExperts> Parameters::AllocateExperts(std::vector<int32_t> ids) const {
  if (offload_ != nullptr)
    return absl::UnimplementedError("packing of experts whose masters and moments are offloaded");
  const ModelConfig& config = model_->config();
  NewExperts experts = {.ids = std::move(ids), .weights = {}, .blocks = {}};
  for (int64_t i = 0; i < config.num_moe_layers(); ++i) {
    const auto count = static_cast<int64_t>(experts.ids.size());
    ASSIGN_OR_RETURN(experts.weights.emplace_back(),
                     switchyard::AllocateExperts(config, model_->dtype(), count, stream_.device()));
  }
  experts.blocks =
      BlocksOf(ListExpertParams(config, *FindFamily(config.model_type), experts.ids, absl::MakeSpan(experts.weights)));
  for (ParameterBlock& block : experts.blocks) RETURN_IF_ERROR(Allocate(&block));
  return experts;
}

int64_t Parameters::BytesOfExperts(int64_t count) const {
  const ModelConfig& config = model_->config();
  const auto bytes = [&](DType dtype) { return WeightBytes(config, dtype, count) - WeightBytes(config, dtype, 0); };
  // The weights and their transposes; masters, gradients and two moments.
  return static_cast<int64_t>(2 * bytes(model_->dtype()) + 4 * bytes(AccDType(model_->dtype())));
}

absl::Status Parameters::PublishExperts(NewExperts* experts) const {
  for (ParameterBlock& block : experts->blocks) RETURN_IF_ERROR(Publish(&block));
  return absl::OkStatus();
}

void Parameters::AdoptExperts(std::vector<int32_t> residents, NewExperts experts) {
  // Memory goes where its name goes.
  std::map<std::string, ParameterBlock> memory;
  for (std::vector<ParameterBlock>* blocks : {&blocks_, &experts.blocks}) {
    for (ParameterBlock& block : *blocks) {
      const std::string name = block.parts[0].name;
      memory[name] = std::move(block);
    }
  }
  ModelWeights* const weights = model_->mutable_weights();
  std::vector<std::vector<FfnWeights>> by_slot;  // [MoE layers][residents]
  for (LayerWeights& layer : weights->layers) {
    if (!layer.moe.has_value()) continue;
    std::vector<FfnWeights>& brought = experts.weights[by_slot.size()];
    std::vector<FfnWeights>& to = by_slot.emplace_back();
    for (const int32_t id : residents) {
      const auto held = std::find(weights->residents.begin(), weights->residents.end(), id);
      if (held != weights->residents.end()) {
        to.push_back(std::move(layer.moe->experts[held - weights->residents.begin()]));
        continue;
      }
      const auto found = std::find(experts.ids.begin(), experts.ids.end(), id);
      SY_CHECK(found != experts.ids.end());
      to.push_back(std::move(brought[found - experts.ids.begin()]));
    }
  }
  model_->ReplaceExperts(stream_, std::move(residents), std::move(by_slot));
  blocks_ = BlocksOf(ListParams(model_->config(), *FindFamily(model_->config().model_type), weights));
  for (ParameterBlock& block : blocks_) {
    ParameterBlock& from = memory.at(block.parts[0].name);
    block.replica = from.replica;
    block.transposed = std::move(from.transposed);
    block.master = std::move(from.master);
    block.gradient = std::move(from.gradient);
    block.mean = std::move(from.mean);
    block.mean_squares = std::move(from.mean_squares);
  }
  gradients_ = {};
  LinkGradients();
}

void Parameters::SetReplica(int32_t replica) {
  for (ParameterBlock& block : blocks_) {
    if (block.shard == Shard::kExpert) block.replica = replica;
  }
}

}  // namespace switchyard
