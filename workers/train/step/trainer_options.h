// The options of a trainer, and the checks of them and of the rows that it gets.  Pure.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "scheduler/jobs/comm_spec.h"
#include "scheduler/jobs/job_spec.h"
#include "scheduler/pipeline/restore_strategy.h"
#include "workers/model/forward/model.h"
#include "workers/model/forward/saved_forward.h"
#include "workers/model/forward/training_noise.h"
#include "workers/train/parameters/state_file.h"
#include "workers/train/step/router_losses.h"
#include "workers/train/step/train_rows.h"

namespace switchyard::train {

struct TrainerOptions {
  jobs::OptimizerSpec optimizer = {};  // its schedule is not used: Step gets the learning rate
  RouterLossOptions router = {};
  double capacity_factor = 0;    // of experts (expert_capacity.h); 0 = no choice is dropped
  jobs::DpoSpec dpo = {};        // rows are of pairs (preference_loss.h)
  model::NoiseRates noise = {};  // dropout and jitter of steps, by the seed; evaluation has none
  uint64_t seed = 0;             // the job's
  double balance_bias_rate = 0;  // for models with router biases (router_losses.h); 0 = they do not change
  model::SavePolicy save = model::SavePolicy::kAll;
  int64_t max_sequences = 0;   // of a micro-batch on this rank
  int64_t max_length = 0;      // of a sequence
  int64_t step_tokens = 0;     // of a step on all ranks, at most, where that is known (GathersEmbedding); else 0
  bool document_mask = false;  // rows may have borders
  // How sums of gradients and all-to-alls share the network, the same on all ranks.  All modes give the same bits but
  // pipelining and full, which change the order in which an expert's rows are added, as another granularity does.
  jobs::CommunicationSpec communication = {};
  // Of what MoE layers would keep for backward; the same bits.
  pipeline::RestoreStrategy restore = {};
  OpenStateFileFn open_activations = nullptr;  // makes the file, if that offloads
};

// InvalidArgument: an option outside its limits, or a balance_bias_rate without biases of routers.  FailedPrecondition:
// activations are offloaded, and nothing makes the file.
absl::Status CheckTrainerOptions(const TrainerOptions& options, const model::Model& model);

// InvalidArgument: a micro-batch beyond the options' sizes, or with a token or target outside the vocabulary, or with
// borders that do not rise, are outside, or are not expected.
absl::Status CheckMicroBatches(const TrainerOptions& options, int64_t vocab_size,
                               absl::Span<const TrainRows> micro_batches);

// InvalidArgument: rows whose documents are not pairs; with `referred`, pairs without what the reference says of them.
absl::Status CheckPairs(absl::Span<const TrainRows> micro_batches, bool referred);

}  // namespace switchyard::train
