// RowExchange in the stream's order: routing, sorting and gathering are ops, so nothing waits for the host.
//
// One rank: rows stay where they are, experts read them through indices.
// Does not do yet: groups of several ranks (Unimplemented).
#pragma once

#include "absl/status/status.h"
#include "workers/moe/exchange.h"
#include "workers/moe/row_scratch.h"
#include "workers/ops/permute.h"
#include "workers/tensor/tensor.h"

namespace switchyard {

class DeviceExchange : public RowExchange {
 public:
  absl::Status StartDispatch(const ExchangeContext& context, const TensorView& topk_idx, const TensorView& x,
                             int64_t first_token) override;
  absl::Status FinishDispatch(const ExchangeContext& context) override;
  absl::Status StartCombine(const ExchangeContext& context) override;
  absl::Status FinishCombine(const ExchangeContext& context, const CombineTerms& terms,
                             const TensorView& residual) override;
  void Drop() override {}

 private:
  ExpertOrder order_;
  RowScratch offsets_memory_, token_memory_, slot_row_memory_, y_memory_;
};

}  // namespace switchyard
