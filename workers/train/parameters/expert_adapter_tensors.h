// Adapters of all experts as PEFT saves them, one tensor for all experts of a layer
// (workers/checkpoint/adapters/fused_experts.h), in fp32, on rank 0, which writes adapter_model.safetensors.
//
// Each rank has those of its own experts.  Rank 0 gets them in rounds, which all ranks make together: one all-to-all of
// class all_reduce, which brings whole rows of one tensor, as many as have kRoundElements values, at least one.  So no
// message is longer, and rank 0 needs memory for a round alone, if it exchanges while it writes one tensor after
// another; or it gets a copy of all at once (Keep).  Thread-compatible.  CPU only.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "workers/checkpoint/safetensors/safetensors_writer.h"
#include "workers/comm/core/communicator.h"
#include "workers/tensor/tensor.h"
#include "workers/train/parameters/dense_shards.h"
#include "workers/train/parameters/parameters.h"
#include "workers/train/parameters/shard_stream.h"

namespace switchyard::train {

struct ExpertAdapterOptions {
  absl::Duration round_limit = absl::Hours(1);  // the longest that ranks wait for each other, while rank 0 writes
  std::function<bool()> given_up = [] { return false; };
  int64_t round_elements = kRoundElements;  // tests choose others; the same on all ranks
};

class ExpertAdapterTensors {
 public:
  // All borrowed; the blocks must not change until all rounds are made.  Exchanges nothing yet.  There are no tensors,
  // and no rounds, if the model has no adapters of experts.  REQUIRES: each expert is on one rank.
  ExpertAdapterTensors(comm::Communicator* comm, const Parameters& parameters, ExpertAdapterOptions options);
  ExpertAdapterTensors(const ExpertAdapterTensors&) = delete;
  ExpertAdapterTensors& operator=(const ExpertAdapterTensors&) = delete;

  // Rank 0's tensors, in the order in which they must be written, each once; none on others.  Borrows this.  Unless
  // they are kept, contents blocks on the other ranks.  Errors of contents, Finish and Keep: the communicator's, which
  // end the group; Cancelled: given up.  After one no further call is allowed, as with ShardStream.
  std::vector<checkpoint::TensorToWrite> ToWrite();
  // Makes the rounds that remain.  Every rank calls it: rank 0 after it has written its tensors, others before they
  // write anything, so that rank 0 waits for no other disk.
  absl::Status Finish();

  // Bytes that Keep allocates on this rank; 0 on others than rank 0.
  int64_t BytesToKeep() const;
  // Collective, before the first round.  Copies all tensors to rank 0; blocks may change afterwards.  limit: the
  // longest that it lasts.  Also ResourceExhausted.
  absl::Status Keep(absl::Duration limit);

 private:
  // One tensor of all experts.
  struct Fused {
    std::string name = {};
    int64_t rows = 0, columns = 0;
    bool is_a = false;
    std::vector<const ParameterBlock*> own = {};  // this rank's experts'
    Tensor kept = {};                             // [rows, columns] fp32; rank 0's, after Keep
    int64_t size() const { return rows * columns; }
  };
  void AddTensors(const Parameters& parameters, int32_t layer);
  // Sets each tensor's `own`.
  void AddBlocks(const Parameters& parameters);
  // Rows of the present tensor that the next round brings.
  ElementRange NextRows() const;
  // Elements of one expert's matrix that are in rows of the tensor; perhaps none.
  ElementRange PartOf(const Fused& fused, int64_t expert, const ElementRange& rows) const;
  // Brings NextRows, to: [rows, columns], of rank 0.
  absl::Status Round(absl::Span<float> to, absl::Time deadline);
  comm::Message OwnOf(const Fused& fused, const ElementRange& rows);
  // Puts what a rank has sent into `to`.  Returns the number of values; negative: it is not as this rank expects it.
  int64_t PlaceAll(const Fused& fused, const ElementRange& rows, absl::Span<const char> from,
                   absl::Span<float> to) const;
  absl::Status Stream(size_t tensor, checkpoint::ByteSink sink);

  comm::Communicator* const comm_;
  const ExpertAdapterOptions options_;
  const int64_t num_experts_;
  std::vector<Fused> tensors_;  // layer by layer gate_up_proj's A and B, then down_proj's, of those that it has
  size_t next_ = 0;             // the present tensor
  int64_t done_ = 0;            // rows of it
};

}  // namespace switchyard::train
