#include "workers/ops/gemm/weight_group.h"

#include "scheduler/base/status_macros.h"
#include "workers/tensor/copy.h"

namespace switchyard::ops {

absl::StatusOr<WeightTable> WeightTable::Make(const Stream& stream, std::vector<const Weight*> weights) {
  WeightTable table;
  table.weights_ = std::move(weights);
  if (stream.device().is_cpu() || table.weights_.empty()) return table;
  const Tensor addresses(DType::kI64, {static_cast<int64_t>(table.weights_.size())});
  for (size_t i = 0; i < table.weights_.size(); ++i) {
    const Weight* const weight = table.weights_[i];
    addresses.data<int64_t>()[i] =
        weight == nullptr ? 0 : static_cast<int64_t>(reinterpret_cast<intptr_t>(weight->data()));
  }
  ASSIGN_OR_RETURN(table.on_device_, CopyToDevice(stream, addresses));
  return table;
}

}  // namespace switchyard::ops
