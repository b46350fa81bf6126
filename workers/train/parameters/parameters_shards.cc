// The parameters of a rank that has a part of the dense state (dense_shards.h).
#include <utility>

#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"
#include "workers/model/weights/loader.h"
#include "workers/tensor/yield_point.h"
#include "workers/train/parameters/parameters.h"

namespace switchyard::train {
namespace {

// The ranges of a block whose norms are computed by themselves (gradient_norm.h).
std::vector<ElementRange> NormRangesOf(const ParameterBlock& block) {
  if (block.frozen || block.uniform()) return {{0, block.size()}};
  std::vector<ElementRange> ranges;
  for (const model::Param& part : block.parts) {
    ranges.push_back({part.first_row * part.columns, part.rows * part.columns});
  }
  return ranges;
}

}  // namespace

// A router's bias stays on every rank: each moves it by itself.
void Parameters::ShareDense(std::vector<ParameterBlock>* blocks) const {
  if (!shares_dense()) return;
  std::vector<ParameterBlock*> dense;
  std::vector<DenseBlock> shapes;
  for (ParameterBlock& block : *blocks) {
    if (block.shard != model::Shard::kReplicated || block.base || !block.by_gradient) continue;
    dense.push_back(&block);
    shapes.push_back({.ranges = NormRangesOf(block), .states = static_cast<int64_t>(StateOf(block).size())});
  }
  std::vector<DenseShard> shards = PlanShards(shapes, place_.world);
  for (size_t i = 0; i < dense.size(); ++i) {
    SY_CHECK_EQ(shards[i].borders.back(), dense[i]->size());
    dense[i]->writer = shards[i].writer;
    dense[i]->shared = std::move(shards[i]);
    dense[i]->place = place_.rank;
  }
}

SharedGradients Parameters::SharedGradients() const {
  train::SharedGradients shared;
  for (const ParameterBlock& block : blocks_) {
    if (block.is_shared() && !block.frozen) shared[block.gradient.view().raw()] = &block.shared.borders;
  }
  return shared;
}

// One block at a time is whole in memory.
absl::Status Parameters::LoadShared(const checkpoint::Checkpoint& checkpoint, const std::vector<model::Param>& params,
                                    absl::FunctionRef<model::LoadOptions()> options) {
  for (ParameterBlock& block : blocks_) {
    if (!block.is_shared()) continue;
    ASSIGN_OR_RETURN(Tensor whole, Tensor::Allocate(AccDType(model_->dtype()), block.StateShape(), stream_.device()));
    std::vector<model::Param> wanted;
    for (const model::Param& param : params) {
      if (param.weight != block.weight || param.tensor != block.tensor) continue;
      wanted.push_back(param);
      wanted.back().weight = nullptr;
      wanted.back().tensor = &whole;
    }
    RETURN_IF_ERROR(model::LoadParams(checkpoint, wanted, options()));
    const ElementRange own = block.own();
    const TensorView from = whole.view().Reshape({block.size()}).Rows(own.begin, own.count);
    CopyBehindGate(block.master.view().raw(), from.raw(), block.master.bytes());
  }
  return absl::OkStatus();
}

}  // namespace switchyard::train
