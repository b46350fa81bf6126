// RowExchange on the host: rows travel in messages, counts are host numbers (kExact).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "workers/comm/communicator.h"
#include "workers/moe/dispatch_message.h"
#include "workers/moe/exchange.h"
#include "workers/moe/row_scratch.h"
#include "workers/tensor/tensor.h"

namespace switchyard {

class HostExchange : public RowExchange {
 public:
  absl::Status Reserve(const ExchangeRoom&) override { return absl::OkStatus(); }
  absl::Status StartDispatch(const ExchangeContext& context, const TensorView& topk_idx, const TensorView& x,
                             int64_t first_token) override;
  absl::Status FinishDispatch(const ExchangeContext& context) override;
  absl::Status StartCombine(const ExchangeContext& context) override;
  absl::Status FinishCombine(const ExchangeContext& context, const CombineTerms& terms,
                             const TensorView& residual) override;
  void Drop() override { work_.reset(); }

 private:
  // (row of x(), slot of its expert) pairs that one rank has for this one.
  struct Incoming {
    std::vector<int32_t> row;
    std::vector<int32_t> slot;
    std::vector<int32_t> y_row;  // where the sort by expert put each pair
  };
  // The (row of a message, slot) pairs that this rank has for another, and the rows of that message.
  struct Outgoing {
    std::vector<int32_t> token;     // [rows]
    std::vector<int32_t> pair_row;  // [pairs] into token
    std::vector<int32_t> pair_slot;
  };

  absl::Status Route(const ExchangeContext& context, const TensorView& topk_idx, int64_t first_token);
  Message Pack(const ExchangeContext& context, const Outgoing& outgoing) const;
  absl::Status Unpack(const ExchangeContext& context, std::vector<Message>* received);
  void SortByExpert(int64_t num_slots);
  void PlaceOutputs(int rank);
  absl::Status CollectOutputs(const ExchangeContext& context);

  TensorView own_x_;                // [T, H]
  std::vector<int32_t> rank_of_;    // [T * K] who computes (t, k); -1 = dropped
  std::vector<int32_t> pair_of_;    // [T * K] index among the pairs with that rank
  std::vector<Outgoing> outgoing_;  // [R]
  std::vector<Incoming> incoming_;  // [R], this rank's own among them
  std::unique_ptr<Work> work_;      // what is under way
  TensorView all_y_;                // y_, then what comes back
  std::vector<int32_t> row_of_;     // [rows] what x_rows_ shows
  std::vector<int32_t> begin_of_;   // [El + 1] what offsets_ shows
  std::vector<int32_t> cursor_;     // [El + 1] of the sort
  std::vector<int64_t> back_rows_;  // [R + 1] rows of all_y_ where each rank's outputs come
  std::vector<int32_t> slot_row_;   // [T * K] row of all_y_; -1 = dropped
  RowScratch x_memory_, y_memory_;
};

}  // namespace switchyard
