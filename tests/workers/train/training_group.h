// A whole group of ranks that train, each a thread with a model, parameters and a trainer of its own, with the same
// sequences divided among them: for comparing runs that must not differ.  And PyTorch's results for the same
// checkpoints (tests/golden/training).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "scheduler/jobs/job_spec.h"
#include "workers/comm/core/communicator.h"
#include "workers/model/forward/model.h"
#include "workers/model/weights/adapters.h"
#include "workers/tensor/device.h"
#include "workers/tensor/thread_pool.h"
#include "workers/train/packing/expert_groups.h"
#include "workers/train/parameters/parameters.h"
#include "workers/train/parameters/state_file.h"
#include "workers/train/step/trainer.h"

namespace switchyard::train {

struct TrainingGolden {
  std::string name, dir;
  int64_t sequences = 0, length = 0;
  std::vector<int32_t> tokens = {}, targets = {};            // [S * T]
  std::vector<int32_t> borders = {};                         // TrainRows::borders, of goldens with documents
  double loss = 0, aux = 0;                                  // of them
  std::map<std::string, std::vector<float>> gradients = {};  // of loss + kAuxWeight * aux, by parameter
  std::vector<std::vector<int32_t>> step_tokens = {};        // [steps][S * (T + 1)]
  std::vector<double> step_loss = {}, step_norm = {};        // [steps]
  // With a capacity, else 0 and empty: the number of dropped choices, of the tokens and in each step.
  double capacity_factor = 0;
  int64_t dropped = 0;
  std::vector<int32_t> step_dropped = {};
  // For models with moving router biases: their values after each step.
  double bias_rate = 0;
  std::vector<double> step_bias = {};  // [steps][MoE layers * E]
};

inline constexpr double kAuxWeight = 0.1;  // make.py's AUX, and so below
inline constexpr double kLearningRate = 2e-3;

std::vector<std::string> TrainingGoldenNames();
// Also what make.py has beside those: "gpt2-top1-capacity", "gpt2-top2-capacity", "gpt2-bias", and without steps
// "gpt2-top2-documents", "mixtral-window-documents".
TrainingGolden LoadTrainingGolden(const std::string& name);
// Rows of a step of the golden: every token but the last, and the next token as its target.
TrainRows RowsOfStep(const TrainingGolden& golden, size_t step);

struct TrainingGroupOptions {
  DType dtype = DType::kF32;
  int world = 1;
  int threads = 1;                      // of each rank
  int packing = 1;                      // of experts
  bool zero = false;                    // dense state is sharded
  int64_t gather_bytes = kGatherBytes;  // of a call that gathers its weights
  TrainerOptions trainer = {.router = {.balance_weight = kAuxWeight}};
  std::vector<jobs::ParameterRule> rules = {};
  model::AdapterDesc adapters = {};  // rank 0: none
  // Forms the ranks' group; none: they are threads of one process.
  std::function<std::vector<std::unique_ptr<comm::Communicator>>(int world)> form = {};
  // Wraps a rank's communicator.
  std::function<std::unique_ptr<comm::Communicator>(std::unique_ptr<comm::Communicator>)> wrap = {};
  // Opens a rank's file for masters and moments of experts; an empty function: memory.  None: memory on all.
  std::function<OpenStateFileFn(int rank)> offload = {};
};

class TrainingGroup {
 public:
  // Of a checkpoint; aborts on errors, it is a fixture.
  TrainingGroup(const std::string& dir, const TrainingGroupOptions& options);
  ~TrainingGroup();

  // One step of the micro-batches' sequences, dealt out to the ranks in order.  All ranks must report the same.
  StepReport Step(const std::vector<TrainRows>& micro_batches, double learning_rate);
  absl::StatusOr<StepReport> TryStep(const std::vector<TrainRows>& micro_batches, double learning_rate);
  // Each rank's report; they may differ.
  std::vector<absl::StatusOr<StepReport>> StepEach(const std::vector<TrainRows>& micro_batches, double learning_rate);
  StepReport Evaluate(const std::vector<TrainRows>& micro_batches);

  // By the checkpoint's names, from a rank with the parameter, or what is sharded from all; without what frozen ones
  // do not have.
  std::map<std::string, std::vector<double>> Gradients() const;
  std::map<std::string, std::vector<double>> Masters() const;
  std::map<std::string, std::vector<double>> Moments() const;  // both, one behind the other
  // Replicas, of experts and of what every rank has, have the same bits: masters, moments, gradients, model; of what is
  // sharded, the model.
  void ExpectReplicasAlike() const;

  // Runs it on a thread of each rank.
  std::vector<absl::Status> OnEach(const std::function<absl::Status(int rank)>& run);
  // Changes the packing of a group; each rank's outcome.  offload: as the options have it, from now on.
  std::vector<absl::Status> TryRepack(int packing) { return TryRepack(packing, options_.offload); }
  std::vector<absl::Status> TryRepack(int packing, const std::function<OpenStateFileFn(int rank)>& offload);

  comm::Communicator* comm(int rank);
  ExpertGroups& groups(int rank);
  Trainer& trainer(int rank);
  Parameters& parameters(int rank);
  // The same values on all ranks.  REQUIRES: of every part, by its name.
  void SetMasters(const std::map<std::string, std::vector<double>>& values);
  // On a thread of each rank.
  absl::Status Publish(int rank);
  model::Model& model(int rank);

 private:
  struct Rank;
  std::map<std::string, std::vector<double>> Collect(Tensor ParameterBlock::*values) const;
  // With masters and moments in memory, rank by rank.
  void ForEachBlock(absl::FunctionRef<void(const ParameterBlock&)> use) const;
  std::vector<absl::StatusOr<StepReport>> OnRanks(
      const std::vector<TrainRows>& micro_batches,
      const std::function<absl::StatusOr<StepReport>(Trainer*, const std::vector<TrainRows>&)>& run);

  const TrainingGroupOptions options_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

}  // namespace switchyard::train
