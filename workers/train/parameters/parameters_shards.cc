// The parameters of a rank that has a part of the dense state (dense_shards.h).
#include <algorithm>
#include <utility>
#include <vector>

#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"
#include "workers/model/weights/loader.h"
#include "workers/tensor/copy_bytes.h"
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

// Whether any rows of a block's params can be read alone.
bool CanBeCut(const std::vector<model::Param>& params) {
  return std::all_of(params.begin(), params.end(), [&](const model::Param& param) {
    return param.matrix == nullptr && !param.interleaved && param.columns == params.front().columns;
  });
}

// The rows that have some of the elements.
ElementRange RowsOf(const ElementRange& elements, int64_t columns) {
  const int64_t first = elements.begin / columns;
  return {first, (elements.end() + columns - 1) / columns - first};
}

// Cuts a param of a block to these rows of it, which are all of `to`.
void KeepRows(const ElementRange& rows, Tensor* to, model::Param* param) {
  const ElementRange here = Intersect({param->first_row, param->rows}, rows);
  param->source_row += here.begin - param->first_row;
  param->first_row = here.begin - rows.begin;
  param->rows = here.count;
  param->weight = nullptr;
  param->tensor = to;
}

}  // namespace

// A router's bias stays on every rank: each moves it by itself.
void Parameters::ShardDense(std::vector<ParameterBlock>* blocks) const {
  if (!shards_dense()) return;
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
    dense[i]->borders = std::move(shards[i].borders);
    dense[i]->place = place_.rank;
  }
}

ShardedGradients Parameters::ShardedGradients() const {
  train::ShardedGradients sharded;
  for (const ParameterBlock& block : blocks_) {
    if (block.is_sharded() && !block.frozen) sharded[block.gradient.view().raw()] = &block.borders;
  }
  return sharded;
}

// Reads the rows that have this rank's elements, a block at a time.
absl::Status Parameters::LoadSharded(const checkpoint::Checkpoint& checkpoint, const std::vector<model::Param>& params,
                                     absl::FunctionRef<model::LoadOptions()> options) {
  for (ParameterBlock& block : blocks_) {
    const ElementRange own = block.own();
    if (!block.is_sharded() || own.count == 0) continue;
    std::vector<model::Param> wanted;
    for (const model::Param& param : params) {
      if (param.weight == block.weight && param.tensor == block.tensor) wanted.push_back(param);
    }
    SY_CHECK(!wanted.empty());
    const int64_t columns = wanted.front().columns;
    const ElementRange rows = CanBeCut(wanted) ? RowsOf(own, columns) : ElementRange{0, block.size() / columns};
    ASSIGN_OR_RETURN(Tensor values,
                     Tensor::Allocate(AccDType(model_->dtype()), {rows.count, columns}, stream_.device()));
    for (model::Param& param : wanted) KeepRows(rows, &values, &param);
    std::erase_if(wanted, [](const model::Param& param) { return param.rows == 0; });
    RETURN_IF_ERROR(model::LoadParams(checkpoint, wanted, options()));
    const TensorView from =
        values.view().Reshape({rows.count * columns}).Rows(own.begin - rows.begin * columns, own.count);
    CopyBytes(block.master.view().raw(), from.raw(), block.master.bytes());
  }
  return absl::OkStatus();
}

}  // namespace switchyard::train
