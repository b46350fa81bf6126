// TokenDispatcher: brings rows to the ranks of their experts (dispatch) and expert outputs back to their rows
// (combine).
//
// Dispatch sends each row once to every rank that holds one of its experts; it makes, on the receiving rank, one batch
// sorted by expert.  Combine sends one output per (row, expert) back and adds them to the residual in top-k order,
// whatever their order of arrival.  What experts see of a row, and what it gets back, are the same bits on any number
// of ranks. Counts travel with the rows: one message per peer and direction.  Each half is started and finished apart,
// so that other work fits between.  A group of one rank moves no rows: experts read them in place through indices.
//
// There is one for hosts (host_dispatcher.h) and one whose work is all in the stream's order (device_dispatcher.h),
// which has two modes: kExact waits once for the counts, kPadded for nothing. An object is the handle of one exchange
// at a time, owns its buffers and keeps them for the next:
//   StartDispatch → FinishDispatch → [caller fills y()] → StartCombine → FinishCombine
// All ranks start and finish the same exchanges in the same order, with or without rows.  Thread-compatible.
// Errors: InvalidArgument (shapes, ids), the communicator's, Internal (a peer's message does not hold together; the
// group is aborted).
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "workers/moe/dispatch/expert_layout.h"
#include "workers/tensor/device.h"
#include "workers/tensor/int_view.h"
#include "workers/tensor/tensor.h"

namespace switchyard::moe {

struct MoeContext;  // moe_context.h, as the next
struct LayerContext;

enum class ExchangeMode : uint8_t {
  kExact,   // counts on the host, messages as long as they must be
  kPadded,  // fixed buffers, counts on the device: what a CUDA graph can hold
};

// What combine adds to these rows besides the experts' outputs; as in CombineInputs.
struct CombineTerms {
  TensorView topk_weight;  // [T, K] AccDType
  TensorView shared;       // [T, H] model dtype; rank 0 = no shared expert
  TensorView shared_gate;  // [T, 1] AccDType; rank 0 = weight 1
};

// The largest exchange of a group.
struct DispatchCapacity {
  const Stream* stream = nullptr;
  const ExpertLayout* layout = nullptr;  // of two ranks or more
  int rank = 0;
  int64_t rows = 0;  // T of any rank, at most
  int64_t top_k = 0;
  int64_t hidden = 0;
  DType dtype = DType::kBf16;
  bool split = false;  // rows may follow a split
};

class TokenDispatcher {
 public:
  virtual ~TokenDispatcher() = default;
  TokenDispatcher(const TokenDispatcher&) = delete;
  TokenDispatcher& operator=(const TokenDispatcher&) = delete;

  // Takes now what the largest exchange takes, whichever experts rows choose; else memory grows with the exchanges. y()
  // then has as many rows as there may be.  On a host there is nothing to take.  Errors: ResourceExhausted.
  virtual absl::Status Reserve(const DispatchCapacity& room) = 0;

  // Row t of layer.rows() of layer.x goes to the experts layer.topk_idx[t].  They must stay until the experts have run.
  virtual absl::Status StartDispatch(const MoeContext& context, const LayerContext& layer) = 0;
  virtual absl::Status FinishDispatch(const MoeContext& context, const LayerContext& layer) = 0;

  // After FinishDispatch: what the experts of this rank compute.  Row i of the batch is row x_rows()[i] of x(); the
  // expert in slot s has the rows [offsets()[s], offsets()[s + 1]).  Where counts are on a device, y() has room for
  // more rows than that.
  const TensorView& x() const { return x_; }           // [n, H]
  const IntView& x_rows() const { return x_rows_; }    // [rows]
  const IntView& offsets() const { return offsets_; }  // [El + 1]
  const TensorView& y() const { return y_; }           // [rows, H] model dtype, for the caller to fill in

  // REQUIRES: y() is filled in.
  virtual absl::Status StartCombine(const MoeContext& context, const LayerContext& layer) = 0;
  virtual absl::Status FinishCombine(const MoeContext& context, const CombineTerms& terms,
                                     const TensorView& residual) = 0;  // [T, H] AccDType, added to
  // After an error anywhere: gives up what is under way (which ends the group).
  virtual void Drop() = 0;

 protected:
  TokenDispatcher() = default;

  TensorView x_, y_;
  IntView x_rows_, offsets_;
};

// The one for this device and mode.
std::unique_ptr<TokenDispatcher> MakeDispatcher(Device device, ExchangeMode mode);

}  // namespace switchyard::moe
