// TokenRebalancer: moves a step's rows to the ranks that compute them (scheduler/batching/row_transfers.h decides
// which).
//
// A rank has own rows, those of its sequences, [0, own), and computed rows: the own ones that it keeps, [0, kept), then
// the ones that it borrows, by giver in the order of the transfers.  Attention works on own rows, everything else on
// computed ones; a giver does not borrow.  Each of these is an all-to-all of the whole group:
//
//   Begin           to the borrower: tokens, RoPE rows, adapters, which rows' residual is wanted at the end
//   …Home           in each layer, to the giver: q, k and v of the rows that it gave
//   …Out            in each layer, to the borrower: the attended rows
//   ReturnWanted    to the giver: the residual of the logit rows that it gave
//
// A row's bits do not depend on who computes it.  A step without transfers moves nothing.  Every rank of the group must
// make the same calls.  Thread-compatible.  Errors: the communicator's; Internal for transfers that do not fit the plan
// or a malformed message of a peer.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "scheduler/batching/step.h"
#include "workers/comm/core/communicator.h"
#include "workers/model/config/config.h"
#include "workers/model/forward/batch.h"
#include "workers/ops/core/isa.h"
#include "workers/tensor/tensor.h"

namespace switchyard::model {

class TokenRebalancer {
 public:
  // Turns `batch`, of this rank's own rows, into the batch of its computed rows.  Borrows batch and comm until the next
  // Begin.  planned_rows: this rank's own rows in the plan; the batch may have fewer.
  absl::Status Begin(absl::Span<const batching::RowTransfer> transfers, int64_t planned_rows, comm::Communicator* comm,
                     absl::Time deadline, Batch* batch);
  // Gives up what is under way, which ends the group.  Call it after an error, before the communicator is destroyed.
  void Drop() { work_.reset(); }

  bool active() const { return active_; }  // this step has transfers
  bool borrows() const { return !borrowed_.empty(); }
  // The sequences' own rows that this rank computes, and those that it gives away.
  absl::Span<const ops::SequenceRows> kept_sequences() const { return kept_sequences_; }
  absl::Span<const ops::SequenceRows> given_sequences() const { return given_sequences_; }

  // rows: [max(own, computed), W], contiguous; rows [kept, own) of a giver are those that its borrowers compute behind
  // their own.  No other collective may be started between a Start and its Finish.
  absl::Status StartHome(const TensorView& rows) { return Start(borrowed_, rows); }
  absl::Status FinishHome(const TensorView& rows) { return Finish(given_, rows); }
  absl::Status StartOut(const TensorView& rows) { return Start(given_, rows); }
  absl::Status FinishOut(const TensorView& rows) { return Finish(borrowed_, rows); }
  // residual: as `rows`.  Fills in the given rows that are logit rows of the batch.
  absl::Status ReturnWanted(const TensorView& residual);

  double exchange_seconds() const { return exchange_seconds_; }  // since Begin: packing, waiting and unpacking

 private:
  // Rows [row, row + count) of this rank's tensors, given to or borrowed from `peer`.
  struct Stretch {
    int peer = 0;
    int64_t row = 0;
    int64_t count = 0;
    std::vector<int32_t> wanted = {};  // of the stretch, rising: rows whose residual goes home
  };

  absl::Status TakeTransfers(absl::Span<const batching::RowTransfer> transfers, int64_t planned_rows);
  void SplitSequences(int64_t kept);
  absl::Status SendTokens();
  absl::Status TakeTokens(const comm::Message& message, Stretch* stretch);
  absl::Status Exchange(std::vector<comm::Message> out);  // starts it
  absl::Status Start(const std::vector<Stretch>& stretches, const TensorView& rows);
  absl::Status Finish(const std::vector<Stretch>& stretches, const TensorView& rows);

  comm::Communicator* comm_ = nullptr;
  absl::Time deadline_;
  Batch* batch_ = nullptr;
  bool active_ = false;
  std::vector<Stretch> given_, borrowed_;
  std::vector<ops::SequenceRows> kept_sequences_, given_sequences_;
  std::unique_ptr<comm::Work> work_;
  int64_t num_exchanges_ = 0;  // since Begin
  double exchange_seconds_ = 0;
};

// The number of rows from which rebalancing pays; 0: it never does.  threads: of each worker.
//
// A row saves its giver the dense products of each layer, which all ranks wait for, and costs two transfers; each layer
// costs two more exchanges.  The constants were measured with workers of one thread on two cores (AMD EPYC,
// AVX512-BF16): a hidden size of 2048 gained a fifth of a prompt's time, one of 192 lost a third.  With AMX only whole
// layers were measured (Intel Xeon), not transfers.
int32_t MinRebalanceRows(const ModelConfig& config, DType dtype, ops::Isa isa, int threads);

}  // namespace switchyard::model
