// RowExchange: brings rows to the ranks of their experts (dispatch) and expert outputs back to their rows (combine).
//
// Dispatch sends each row once to every rank that holds one of its experts; it makes, on the receiving rank, one batch
// sorted by expert.  Combine sends one output per (row, expert) back and adds them to the residual in top-k order,
// whatever their order of arrival.  What experts see of a row, and what it gets back, are the same bits on any number
// of ranks. Counts travel with the rows: one message per peer and direction.  Each half is started and finished apart,
// so that other work fits between.  A group of one rank moves no rows: experts read them in place through indices.
//
// There is one for hosts (host_exchange.h) and one whose work is all in the stream's order (device_exchange.h), which
// has two modes: kExact waits once for the counts, kBounded for nothing.
// An object is the handle of one exchange at a time, owns its buffers and keeps them for the next:
//   StartDispatch → FinishDispatch → [caller fills y()] → StartCombine → FinishCombine
// All ranks start and finish the same exchanges in the same order, with or without rows.  Thread-compatible.
// Errors: InvalidArgument (shapes, ids), the communicator's, Internal (a peer's message does not hold together; the
// group is aborted).
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "workers/comm/core/call_tag.h"
#include "workers/comm/core/communicator.h"
#include "workers/moe/dispatch/expert_layout.h"
#include "workers/moe/dispatch/split_cursor.h"
#include "workers/moe/layer/moe_stats.h"
#include "workers/tensor/device.h"
#include "workers/tensor/int_view.h"
#include "workers/tensor/tensor.h"

namespace switchyard {

enum class ExchangeMode : uint8_t {
  kExact,    // counts on the host, messages as long as they must be
  kBounded,  // fixed buffers, counts on the device: what a CUDA graph can hold
};

// What the exchanges of a step share.  Borrowed.
struct ExchangeContext {
  const Stream* stream = nullptr;
  Communicator* comm = nullptr;
  const ExpertLayout* layout = nullptr;  // layout->num_ranks() == comm->world()
  absl::Time deadline = absl::InfiniteFuture();
  MoeStats* stats = nullptr;
  ExchangeMode mode = ExchangeMode::kExact;
  int64_t max_rows = 0;  // of kBounded: no rank has more rows in this exchange; the same on all ranks; 0 = kExact only
  // Which replica a row goes to; on a host the layer's exchanges advance it one after the other.  Null: the layout's
  // own rule.
  SplitCursor* split = nullptr;
  TensorView gated = {};  // with a split, [T', K] int32: topk_idx of all rows of the layer, which its exchanges share
  int64_t moe_layer = 0;  // of the model
  int64_t chunk = 0;      // of the layer's rows

  // Of a collective of this exchange.
  CommCall Call(CallUse use) const {
    return {.stream = stream, .deadline = deadline, .tag = CallTag(use, moe_layer, chunk)};
  }
};

// What combine adds besides the experts' outputs; as in CombineInputs.
struct CombineTerms {
  TensorView topk_weight;  // [T, K] AccDType
  TensorView shared;       // [T, H] model dtype; rank 0 = no shared expert
  TensorView shared_gate;  // [T, 1] AccDType; rank 0 = weight 1
};

// The largest exchange of a group.
struct ExchangeRoom {
  const Stream* stream = nullptr;
  const ExpertLayout* layout = nullptr;  // of two ranks or more
  int rank = 0;
  int64_t rows = 0;  // T of any rank, at most
  int64_t top_k = 0;
  int64_t hidden = 0;
  DType dtype = DType::kBf16;
  bool split = false;  // rows may follow a split
};

class RowExchange {
 public:
  virtual ~RowExchange() = default;
  RowExchange(const RowExchange&) = delete;
  RowExchange& operator=(const RowExchange&) = delete;

  // Takes now what the largest exchange takes, whichever experts rows choose; else memory grows with the exchanges. y()
  // then has as many rows as there may be.  On a host there is nothing to take.  Errors: ResourceExhausted.
  virtual absl::Status Reserve(const ExchangeRoom& room) = 0;

  // x[t] goes to the experts topk_idx[t].  first_token: index of row 0 in the rank's batch (where an expert has
  // replicas, which one a row goes to depends on it).  x must stay until the experts have run.
  virtual absl::Status StartDispatch(const ExchangeContext& context,
                                     const TensorView& topk_idx,  // [T, K] int32, -1 = dropped
                                     const TensorView& x,         // [T, H] model dtype
                                     int64_t first_token) = 0;
  virtual absl::Status FinishDispatch(const ExchangeContext& context) = 0;

  // After FinishDispatch: what the experts of this rank compute.  Row i of the batch is row x_rows()[i] of x(); the
  // expert in slot s has the rows [offsets()[s], offsets()[s + 1]).  Where counts are on a device, y() has room for
  // more rows than that.
  const TensorView& x() const { return x_; }           // [n, H]
  const IntView& x_rows() const { return x_rows_; }    // [rows]
  const IntView& offsets() const { return offsets_; }  // [El + 1]
  const TensorView& y() const { return y_; }           // [rows, H] model dtype, for the caller to fill in

  // REQUIRES: y() is filled in.
  virtual absl::Status StartCombine(const ExchangeContext& context) = 0;
  virtual absl::Status FinishCombine(const ExchangeContext& context, const CombineTerms& terms,
                                     const TensorView& residual) = 0;  // [T, H] AccDType, added to
  // After an error anywhere: gives up what is under way (which ends the group).
  virtual void Drop() = 0;

 protected:
  RowExchange() = default;

  TensorView x_, y_;
  IntView x_rows_, offsets_;
};

// The one for this device and mode.
std::unique_ptr<RowExchange> MakeExchange(Device device, ExchangeMode mode);

}  // namespace switchyard
