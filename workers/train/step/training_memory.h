// Computes the memory of a rank's training, before any of it is allocated.  Pure, in 128 bits.
#pragma once

#include <cstdint>
#include <string>

#include "absl/numeric/int128.h"
#include "absl/status/status.h"
#include "scheduler/jobs/job_spec.h"
#include "scheduler/pipeline/restore_strategy.h"
#include "workers/model/config/config.h"
#include "workers/tensor/dtype.h"
#include "workers/train/parameters/parameter_rules.h"

namespace switchyard::train {

struct TrainingNeed {
  DType dtype = DType::kF32;
  int64_t experts_per_layer = 0;           // of this rank
  int64_t rows = 0;                        // of a micro-batch
  int world = 1;                           // ranks that rows travel among, each with some of the experts
  bool recompute = false;                  // only layers' inputs are kept for backward
  pipeline::RestoreStrategy restore = {};  // what MoE layers do not keep counts as nothing
  bool offload = false;                    // masters and moments of experts are in a file
  FrozenElements frozen = {};              // have neither gradients nor moments
  int dense_shards = 1;                    // ranks that dense masters and moments are sharded over
  int64_t full_ranks = 0;                  // ranks with so many experts; 0: all, others have one less
  // GatheredRows of a step, where ranks gather the embedding's gradient (sparse_embedding.h).
  int64_t gathered_rows = 0;
};

// Lower bounds: rows are assumed to be spread evenly over the ranks' experts.
struct TrainingBytes {
  absl::int128 weights = 0;                // the model's, and their transposes
  absl::int128 parameters = 0;             // masters, gradients and moments that are in memory
  absl::int128 offloaded = 0;              // masters and moments in a file
  absl::int128 activations = 0;            // kept for backward, and the cache
  absl::int128 offloaded_activations = 0;  // in a file between forward and backward
  absl::int128 experts = 0;  // the part of weights and parameters that experts take, which is divided among ranks
  absl::int128 total() const { return weights + parameters + activations; }
};
TrainingBytes TrainingMemory(const model::ModelConfig& config, const TrainingNeed& need);

// ResourceExhausted "training needs at least X bytes (…), the worker has Y bytes available".
absl::Status CheckTrainingMemory(const model::ModelConfig& config, const TrainingNeed& need, int64_t available_bytes);

// The choices of a job and its ranks, for advice.
struct MemoryChoices {
  int64_t micro_batch_sequences = 1;
  jobs::OffloadPolicy offload = jobs::OffloadPolicy::kAuto;
  int world = 1;
  int ranks_here = 1;  // that share this machine's memory
};
// Advice how to reduce the part that takes the most memory, as a part of a sentence.
std::string MemoryRemedy(const model::ModelConfig& config, const TrainingNeed& need, const MemoryChoices& choices,
                         int64_t available_bytes);

}  // namespace switchyard::train
