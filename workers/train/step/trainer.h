// One rank's part of a training step: forward and backward of micro-batches, sums of gradients over the ranks,
// clipping, AdamW.
//
// Attention and all that is dense is data parallel; experts are sharded, and rows travel to them, within one of p
// groups if experts are packed (trainer_group.h).  A step's loss is the mean over the unmasked tokens of all ranks
// and micro-batches, or with dpo over their pairs of answers (preference_loss.h); balance losses are of each
// micro-batch's rows on all ranks, averaged over micro-batches by their rows.  Every rank calls Step with as many
// micro-batches; some may be empty.  A step without a target on any rank is skipped: no parameter, moment or count of
// AdamW's changes.  Same seed and layout: same bits, whatever the threads.  Dropout is drawn by seed, step and each
// row's place in the step's batch (ops/dropout/counter_random.h).  Thread-compatible.  CPU only.
// Errors: the communicator's (the step is undone on no rank: the job goes back to its last checkpoint); InvalidArgument
// for tokens and targets outside the vocabulary, shapes, and numbers outside their limits; DataLoss "loss is not finite
// …", before any parameter has changed; errors of the file with offloaded masters, after which some parameters have
// changed.  In a group of several ranks any error aborts the group, so that no rank waits for this one.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "scheduler/pipeline/moe_schedule.h"
#include "workers/comm/core/communicator.h"
#include "workers/model/backward/loss_head.h"
#include "workers/model/backward/model_backward.h"
#include "workers/model/forward/batch.h"
#include "workers/model/forward/model.h"
#include "workers/model/forward/saved_forward.h"
#include "workers/model/forward/training_noise.h"
#include "workers/model/runner/kv_cache.h"
#include "workers/moe/dispatch/expert_layout.h"
#include "workers/moe/layer/moe_scratch.h"
#include "workers/train/parameters/parameters.h"
#include "workers/train/reduce/gradient_reducer.h"
#include "workers/train/step/activation_file.h"
#include "workers/train/step/preference_loss.h"
#include "workers/train/step/router_losses.h"
#include "workers/train/step/train_rows.h"
#include "workers/train/step/trainer_group.h"
#include "workers/train/step/trainer_options.h"

namespace switchyard::train {

// The seconds of a step's parts on this rank.
struct RankStepSeconds {
  double total = 0;
  double forward = 0;   // with the sums of the routers' statistics
  double experts = 0;   // part of forward: experts' products
  double backward = 0;  // with the loss head, which does both
  double backward_experts = 0;
  double all_to_all = 0;  // part of forward and backward: packing, waiting for and unpacking rows of other ranks
  double backward_all_to_all = 0;
  double all_reduce = 0;   // exposed: waiting for sums of gradients when backward was done
  double optimizer = 0;    // norm, AdamW, rounding into the model
  double offload = 0;      // part of optimizer: waiting for the file with experts' masters and moments
  double activations = 0;  // part of forward and backward: waiting for the file with activations
};

struct StepReport {
  double loss = 0;          // mean cross-entropy, nats a token; with dpo mean of the pairs'
  double balance_loss = 0;  // without its weight
  double z_loss = 0;
  double gradient_norm = 0;  // before it was clipped
  int64_t tokens = 0;        // unmasked, of all ranks
  bool skipped = false;      // no tokens, so nothing was done: the numbers above were not measured
  // Over all MoE layers, the same on all ranks: experts that no row chose, dropped choices included; dropped choices.
  int64_t dead_experts = 0;
  int64_t dropped_rows = 0;
  int64_t offloaded_bytes = 0;  // of this rank's masters and moments, in a file
  int64_t saved_bytes = 0;      // of this rank's activations, written to a file
  int64_t expert_ops = 0;       // in forward, on each rank: experts' micro-ops, one for each layer and chunk
  int32_t chunks = 1;           // into which a MoE layer's rows were cut
  int64_t step_rows = 0;        // computed in the step, on all ranks
  std::optional<jobs::PreferenceFigures> preferences = {};  // with dpo
  RankStepSeconds seconds = {};
};

class Trainer {
 public:
  // model, parameters: borrowed.  InvalidArgument: impossible numbers, a balance_bias_rate without biases of routers.
  static absl::StatusOr<std::unique_ptr<Trainer>> Create(const Stream& stream, model::Model* model,
                                                         Parameters* parameters, const TrainerOptions& options);

  // The group and its experts; borrowed until the next call.  InvalidArgument if the layout gives this rank other
  // experts than the model holds, or the ranks' numbers do not fit; Unimplemented if an expert is on several ranks.
  absl::Status SetGroup(const TrainerGroup& group);

  // Into how many chunks MoE layers cut a micro-batch that trains: a number in [1, pipeline::kMaxMicroBatches], the
  // same on all ranks.  Without it: jobs::ChunksOfLayer, as in evaluation.  Weights' gradients of another number have
  // other bits.
  void set_chunks(int32_t chunks) { chunks_ = chunks; }

  // REQUIRES: SetGroup was called.
  absl::StatusOr<StepReport> Step(absl::Span<const TrainRows> micro_batches, double learning_rate, absl::Time deadline);
  // The mean loss of all ranks' rows (0 of no tokens); nothing changes.  No choice is dropped, as in serving.
  absl::StatusOr<StepReport> Evaluate(absl::Span<const TrainRows> micro_batches, absl::Time deadline);
  // Log probabilities of both answers of this rank's pairs, as Evaluate has them, finite or not.  Collective: ranks
  // have rows of their own, and may have none.  Each value has the bits that it has in any other rows.
  absl::StatusOr<std::vector<PairLogProbs>> LogProbs(const TrainRows& rows, absl::Time deadline);

  // Runs four layers from the first MoE layer on, and dense ones before it, forward and backward, as a step of full
  // micro-batches does with so many chunks, but for capacity and dropout; to be timed between steps.  Drawn tokens; no
  // parameter changes.  Collective.  REQUIRES: SetGroup was called; the model has a MoE layer.
  absl::Status RunLayers(int32_t chunks, absl::Time deadline);
  // Frees what passes keep for the next; with other numbers of chunks they keep more than with one.
  void DropBuffers();

  // Steps since the moments were zero, and how many of them were skipped, so that the optimizer did not count them.
  int64_t steps() const { return steps_; }
  int64_t skipped_steps() const { return skipped_steps_; }
  void set_steps(int64_t steps, int64_t skipped = 0) {
    steps_ = steps;
    skipped_steps_ = skipped;
  }

 private:
  Trainer(const Stream& stream, model::Model* model, Parameters* parameters, const TrainerOptions& options,
          model::KvCache cache);

  // Sums over all ranks.
  struct GlobalCounts {
    int64_t tokens = 0;         // unmasked
    int64_t pairs = 0;          // of answers
    std::vector<int64_t> rows;  // [micro-batches]
  };
  absl::StatusOr<StepReport> RunStep(absl::Span<const TrainRows> micro_batches, double learning_rate,
                                     absl::Time deadline);
  absl::StatusOr<StepReport> RunEvaluation(absl::Span<const TrainRows> micro_batches, absl::Time deadline);
  template <class Result>
  absl::StatusOr<Result> EndingGroup(absl::StatusOr<Result> result) {
    if (!result.ok()) EndGroup(result.status());
    return result;
  }
  // Ends the group after an error of this rank, as the other ranks wait for it.
  void EndGroup(const absl::Status& error);
  // trains: begins the step of embedding_, too.
  absl::StatusOr<GlobalCounts> CountAll(absl::Span<const TrainRows> micro_batches, bool trains, absl::Time deadline);
  void BuildBatch(const TrainRows& rows);
  const model::TrainingNoise* NoiseOf(const TrainRows& rows);  // of the present step; null: none
  // Sets schedule_ for a micro-batch of so many rows on all ranks.
  void ChooseSchedule(int64_t rows, bool trains);
  void SetSchedule(int32_t chunks, bool trains);
  absl::Status RunTimedLayers(int32_t chunks, absl::Time deadline);
  moe::ExpertCapacity CapacityFor(int64_t rows) const;
  moe::MoeContext ContextOf(const moe::ExpertCapacity& capacity, absl::Time deadline, moe::MoeStats* stats);
  absl::StatusOr<TensorView> Forward(const TrainRows& rows, const moe::MoeContext& moe);
  bool of_pairs() const { return options_.dpo.beta != 0; }
  // Forward without backward, of rows of which all ranks have so many.
  absl::StatusOr<TensorView> ForwardOnly(const TrainRows& rows, int64_t all_rows, absl::Time deadline);
  absl::StatusOr<std::vector<PairLogProbs>> RunLogProbs(const TrainRows& rows, absl::Time deadline);
  // The end of a pass: adds to the report's loss, which is this rank's sum until FinishLoss, and writes d_residual.
  absl::Status RunHead(const TrainRows& rows, const GlobalCounts& counts, const TensorView& residual,
                       const TensorView& d_residual, StepReport* report);
  absl::Status EvaluateHead(const TrainRows& rows, const TensorView& residual, StepReport* report);
  // Sums over documents, two a pair.
  absl::StatusOr<std::vector<model::LossSegment>> DocumentLosses(const TrainRows& rows, const TensorView& residual);
  absl::Status FinishLoss(const GlobalCounts& counts, absl::Time deadline, StepReport* report);
  absl::Status RunMicroBatch(const TrainRows& rows, const GlobalCounts& counts, size_t index, absl::Time deadline,
                             StepReport* report);
  absl::Status SumTotals(absl::Time deadline);
  void CountChosen();
  absl::Status Update(double learning_rate, double gradient_scale, absl::Time deadline);
  void BalanceRouter(const ParameterBlock& block);
  ActivationFileCounters Activations() const {
    return activations_ == nullptr ? ActivationFileCounters() : activations_->counters();
  }
  OffloadCounters Offloaded() const {
    return parameters_->offload() == nullptr ? OffloadCounters() : parameters_->offload()->counters();
  }
  template <class Elem>
  absl::Status SumOverRanks(absl::Span<Elem> values, absl::Time deadline);

  const Stream stream_;
  model::Model* const model_;
  Parameters* const parameters_;
  const TrainerOptions options_;
  model::KvCache cache_;
  std::unique_ptr<SparseEmbedding> embedding_;  // null: its gradient is summed whole
  std::unique_ptr<GradientReducer> sync_;
  moe::MoeScratch moe_scratch_;  // the layers take turns
  std::optional<model::SavedForward> saved_;
  std::optional<model::ModelBackward> backward_;
  model::LossHead head_;
  TrainerGroup group_;
  int32_t chunks_ = 0;  // 0: not set
  pipeline::MoeSchedule schedule_;
  bool schedule_trains_ = false;  // schedule_ has a backward
  model::Batch batch_;
  model::TrainingNoise noise_;
  std::vector<int32_t> blocks_;  // the cache's blocks in order, for block tables
  ScratchTensor d_residual_;     // [T, H] AccDType
  int64_t steps_ = 0, skipped_steps_ = 0;

  // The present step.
  RankStepSeconds seconds_;
  PreferenceSums preferences_;  // of this rank
  std::vector<int64_t>
      chosen_;           // [L * E] rows that chose an expert, on all ranks, dropped ones included; 0 for dense layers
  int64_t dropped_ = 0;  // choices of this rank

  // Null: no activations are offloaded.  The last member: its thread ends before the memory that it copies.
  std::unique_ptr<ActivationFile> activations_;
};

}  // namespace switchyard::train
