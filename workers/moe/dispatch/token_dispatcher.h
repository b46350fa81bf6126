// TokenDispatcher: sends rows to the ranks of their experts (dispatch) and expert outputs back to their rows (combine).
//
// Dispatch sends each row once to every rank that holds one of its experts, where rows become one batch sorted by
// expert. Combine sends one output per (row, expert) back and adds them to the residual in top-k order.  Experts read,
// and rows receive, the same bits on any number of ranks (but with MoeContext::add_outputs: added_outputs.h).  A group
// of one rank moves no rows: experts read them through indices. Each half is started and finished apart, so that other
// work fits between.
//
// One is for hosts (host_dispatcher.h), one works in the stream's order (device_dispatcher.h) and has two modes: kExact
// waits once for the counts, kPadded for nothing.  An object is the handle of one exchange at a time and keeps its
// buffers:
//   StartDispatch → FinishDispatch → TakeOutputs → [caller fills y()] → StartCombine → FinishCombine
// All ranks start and finish the same exchanges in the same order, with or without rows.  Thread-compatible.
// Errors: InvalidArgument (shapes, ids), the communicator's, Internal (a peer's message is malformed; the group is
// aborted).
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "workers/moe/dispatch/expert_layout.h"
#include "workers/ops/exchange/combine.h"
#include "workers/tensor/device.h"
#include "workers/tensor/int_view.h"
#include "workers/tensor/tensor.h"

namespace switchyard::moe {

struct MoeContext;  // moe_context.h, as the next
struct LayerContext;
class HostDispatcher;  // host_dispatcher.h
class RowScratch;      // workers/moe/layer/row_scratch.h

enum class ExchangeMode : uint8_t {
  kExact,   // counts on the host, messages as long as they must be
  kPadded,  // fixed buffers, counts on the device: what a CUDA graph can hold
};

// The largest exchange of a group.
struct DispatchCapacity {
  const Stream* stream = nullptr;
  const ExpertLayout* layout = nullptr;
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

  // Allocates memory for the largest exchange, whichever experts rows choose, else it grows with the exchanges; y()
  // then has as many rows as there may be.  A host needs none.  Errors: ResourceExhausted.
  virtual absl::Status Reserve(const DispatchCapacity& room) = 0;

  // Memory of dispatched rows from the next dispatch on; borrowed.  A device has its own.
  virtual void UseInputs(RowScratch* /*memory*/) {}

  // Row t of layer.rows() of layer.x goes to the experts layer.topk_idx[t].  They must stay until the experts have run.
  virtual absl::Status StartDispatch(const MoeContext& context, const LayerContext& layer) = 0;
  virtual absl::Status FinishDispatch(const MoeContext& context, const LayerContext& layer) = 0;

  // After FinishDispatch: y() is memory of this from now on, with what combine returns behind it.  Borrowed until
  // FinishCombine.  A device has its own.
  virtual void TakeOutputs(RowScratch* /*memory*/) {}

  // After FinishDispatch, this rank's batch: row i is row x_rows()[i] of x(); the expert in slot s has the rows
  // [offsets()[s], offsets()[s + 1]).  Where counts are on a device, y() has room for more rows.
  const TensorView& x() const { return x_; }           // [n, H]
  const IntView& x_rows() const { return x_rows_; }    // [rows]
  const IntView& offsets() const { return offsets_; }  // [El + 1]
  const TensorView& y() const { return y_; }           // [rows, H] model dtype, for the caller to fill in

  // REQUIRES: y() is filled in.
  virtual absl::Status StartCombine(const MoeContext& context, const LayerContext& layer) = 0;
  // terms: of these rows, without y and slot_row.
  virtual absl::Status FinishCombine(const MoeContext& context, ops::CombineInputs terms,
                                     const TensorView& residual) = 0;  // [T, H] AccDType, added to
  // After an error anywhere: gives up what is under way (which ends the group).
  virtual void Drop() = 0;
  // Null: it is not the host's.
  virtual HostDispatcher* AsHost() { return nullptr; }

 protected:
  // The shapes of layer.topk_idx and layer.x.
  static absl::Status CheckDispatch(const MoeContext& context, const LayerContext& layer);

  TensorView x_, y_;
  IntView x_rows_, offsets_;
};

// The one for this device and mode.
std::unique_ptr<TokenDispatcher> MakeDispatcher(Device device, ExchangeMode mode);

}  // namespace switchyard::moe
