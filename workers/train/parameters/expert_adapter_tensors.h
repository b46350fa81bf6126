// Adapters of all experts as PEFT saves them, one tensor for all experts of a layer
// (workers/checkpoint/adapters/fused_experts.h), in fp32, on rank 0, which writes adapter_model.safetensors.
//
// Each rank has those of its own experts; rank 0 gets the others' layer by layer, and keeps a copy of all as long as
// this lives.  Thread-compatible.  CPU only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "workers/checkpoint/files/write_files.h"
#include "workers/comm/core/communicator.h"
#include "workers/train/parameters/parameters.h"

namespace switchyard::train {

class ExpertAdapterTensors {
 public:
  // Collective, in class control; with none if the model has no adapters of experts.  limit: the longest that ranks
  // wait for each other in a layer.  REQUIRES: each expert is on one rank.  Errors: the communicator's, which ends the
  // group.
  static absl::StatusOr<ExpertAdapterTensors> Gather(const Parameters& parameters, comm::Communicator* comm,
                                                     absl::Duration limit);

  // Of rank 0; none on others.  Borrows this.
  std::vector<checkpoint::TensorToWrite> ToWrite() const;

 private:
  struct Fused {
    std::string name = {};
    std::vector<int64_t> shape = {};
    std::vector<float> values = {};
  };
  // Adds all that one rank has sent of a layer, whose tensors begin at `first`.
  absl::Status PlaceAll(size_t first, int64_t num_experts, absl::Span<const char> from);
  // Adds an A or B of one expert.
  static void Place(Fused* to, int64_t expert, int64_t num_experts, absl::Span<const float> values);

  std::vector<Fused> tensors_;  // of each layer gate_up's A and B, then down's, of those that it has
};

}  // namespace switchyard::train
