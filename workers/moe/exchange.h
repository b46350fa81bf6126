// RowExchange: brings rows to the ranks of their experts (dispatch) and expert outputs back to their rows (combine).
//
// Dispatch sends each row once to every rank that holds one of its experts; it makes, on the receiving rank, one batch
// sorted by expert.  Combine sends one output per (row, expert) back and adds them to the residual in top-k order,
// whatever their order of arrival.  What experts see of a row, and what it gets back, are the same bits on any number
// of ranks. Counts travel with the rows: one message per peer and direction.  Each half is started and finished apart,
// so that other work fits between.  A group of one rank moves no rows: experts read them in place through indices.
//
// An object is the handle of one exchange at a time, owns its buffers and keeps them for the next:
//   StartDispatch → FinishDispatch → [caller fills y()] → StartCombine → FinishCombine
// All ranks start and finish the same exchanges in the same order, with or without rows.  Thread-compatible.
// Errors: InvalidArgument (shapes, ids), the communicator's, Internal (a peer's message does not hold together; the
// group is aborted).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "workers/comm/communicator.h"
#include "workers/moe/dispatch_message.h"
#include "workers/moe/expert_layout.h"
#include "workers/moe/moe_stats.h"
#include "workers/moe/row_scratch.h"
#include "workers/tensor/device.h"
#include "workers/tensor/tensor.h"

namespace switchyard {

enum class ExchangeMode : uint8_t {
  kExact,    // counts on the host, messages as long as they must be
  kBounded,  // fixed buffers, counts on the device: what a CUDA graph can hold.  Unimplemented on the CPU
};

// What the exchanges of a step share.  Borrowed.
struct ExchangeContext {
  const Stream* stream = nullptr;
  Communicator* comm = nullptr;
  const ExpertLayout* layout = nullptr;  // layout->num_ranks() == comm->world()
  absl::Time deadline = absl::InfiniteFuture();
  MoeStats* stats = nullptr;
  ExchangeMode mode = ExchangeMode::kExact;
};

// What combine adds besides the experts' outputs; as in CombineInputs.
struct CombineTerms {
  TensorView topk_weight;  // [T, K] AccDType
  TensorView shared;       // [T, H] model dtype; rank 0 = no shared expert
  TensorView shared_gate;  // [T, 1] AccDType; rank 0 = weight 1
};

class RowExchange {
 public:
  // x[t] goes to the experts topk_idx[t].  first_token: index of row 0 in the rank's batch (where an expert has
  // replicas, which one a row goes to depends on it).  x must stay until the experts have run.
  absl::Status StartDispatch(const ExchangeContext& context,
                             const TensorView& topk_idx,  // [T, K] int32, -1 = dropped
                             const TensorView& x,         // [T, H] model dtype
                             int64_t first_token);
  absl::Status FinishDispatch(const ExchangeContext& context);

  // After FinishDispatch: what the experts of this rank compute.  Row i of the batch is row x_rows()[i] of x(); the
  // expert in slot s has the rows [offsets()[s], offsets()[s + 1]).
  const TensorView& x() const { return x_; }                      // [n, H]
  absl::Span<const int32_t> x_rows() const { return x_rows_; }    // [rows]
  absl::Span<const int64_t> offsets() const { return offsets_; }  // [El + 1]
  const TensorView& y() const { return y_; }                      // [rows, H] model dtype, for the caller to fill in

  // REQUIRES: y() is filled in.
  absl::Status StartCombine(const ExchangeContext& context);
  absl::Status FinishCombine(const ExchangeContext& context, const CombineTerms& terms,
                             const TensorView& residual);  // [T, H] AccDType, added to
  // After an error anywhere: gives up what is under way (which ends the group).
  void Drop() { work_.reset(); }

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
  TensorView x_, y_, all_y_;        // all_y_: y_, then what comes back
  std::vector<int32_t> x_rows_;
  std::vector<int64_t> offsets_;
  std::vector<int64_t> cursor_;     // [El + 1] of the sort
  std::vector<int64_t> back_rows_;  // [R + 1] rows of all_y_ where each rank's outputs come
  std::vector<int32_t> slot_row_;   // [T * K] row of all_y_; -1 = dropped
  RowScratch x_memory_, y_memory_;
};

}  // namespace switchyard
