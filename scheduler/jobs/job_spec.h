// The specification of a training job: plain data, as the server keeps it and workers get it; and its limits.
//
// Names of files are relative: datasets to the dataset root, checkpoints to the checkpoint root; what opens them stays
// beneath (model_dir.h).  Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "scheduler/jobs/comm_spec.h"
#include "scheduler/jobs/lr_schedule.h"
#include "scheduler/pipeline/restore_strategy.h"

namespace switchyard::jobs {

enum class TrainDType : uint8_t { kF32, kBf16, kF64 };
enum class OffloadPolicy : uint8_t { kNever, kAuto, kAlways };      // how: workers/train/parameters/state_offload.h
enum class BalanceLoss : uint8_t { kNone, kAllLayers, kPerLayer };  // how: workers/train/step/router_losses.h

// How documents are laid into sequences: workers/train/data/data_source.h.
enum class WindowPacking : uint8_t { kConcatenate, kBestFit };

struct OptimizerSpec {
  LrSchedule schedule = {};  // its total_steps is the job's
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8;
  double weight_decay = 0.1;  // of matrices
  double clip_norm = 1.0;     // 0 = not
  bool operator==(const OptimizerSpec& other) const = default;
};

struct CheckpointSpec {
  int64_t every_steps = 1000;
  int32_t keep_last = 3;
  int64_t keep_every_steps = 0;  // checkpoints of multiples of this stay for ever; 0 = none do
  bool keep_best = false;  // each evaluation that is the best so far saves one, which stays until a better one has
  bool operator==(const CheckpointSpec& other) const = default;
};

// When a job ends before its last step: workers/train/step/evaluation_record.h.
struct EarlyStopSpec {
  int32_t patience = 0;        // evaluations in a row without an improvement; 0 = the job does not end early
  double min_improvement = 0;  // nats a token
  bool operator==(const EarlyStopSpec& other) const = default;
};

// What the optimizer does with the weights whose names fit (workers/train/parameters/parameter_rules.h).
struct ParameterRule {
  std::string pattern = {};                 // of the whole name; * is any characters
  bool frozen = false;                      // neither trained nor part of the gradients' norm
  std::optional<double> rate = {};          // factor of the learning rate; unset = 1
  std::optional<double> weight_decay = {};  // unset: the optimizer's
  bool operator==(const ParameterRule& other) const = default;
};

// Low-rank adapters of projections of attention and of experts: the base is frozen, and y = W x + scale() B A x.
struct LoraSpec {
  int32_t rank = 0;                       // 0 = no adapters
  double alpha = 0;                       // 0 = rank
  std::vector<std::string> targets = {};  // of kLoraTargets and kExpertLoraTargets (lora_targets.h); none: the former
  double dropout = 0;                     // of adapters' inputs
  double Alpha() const { return alpha == 0 ? rank : alpha; }
  double scale() const { return Alpha() / rank; }
  bool operator==(const LoraSpec& other) const = default;
};
inline constexpr const char* kLoraTargets[] = {"q_proj", "k_proj", "v_proj", "o_proj"};

// Direct preference optimization (workers/train/step/preference_loss.h): documents are pairs of answers to a prompt,
// and the reference is the base.
struct DpoSpec {
  double beta = 0;             // 0 = the job has no preferences
  double label_smoothing = 0;  // part of the pairs that is assumed to be the wrong way round
  bool operator==(const DpoSpec& other) const = default;
};

// Parts of numbers that a step sets to zero at random (workers/model/forward/training_noise.h).  Unset: as the model's
// config.json says, else 0.
struct DropoutSpec {
  std::optional<double> embedding = {};
  std::optional<double> hidden = {};
  std::optional<double> attention = {};
  bool operator==(const DropoutSpec& other) const = default;
};

struct JobSpec {
  // Exactly one: a checkpoint to go on from, with config and tokenizer; or the folder of a config.json and a tokenizer,
  // whose weights are drawn anew.
  std::string base_checkpoint = {};
  std::string architecture = {};
  std::vector<std::string> datasets = {};    // .jsonl or .bin
  std::vector<double> dataset_weights = {};  // none, or one for each: of the job's sequences (mixture_order.h)
  std::vector<std::string> evaluation = {};  // as datasets; none: nothing is evaluated
  // None, or one for each of evaluation: EvaluationSetsOf.  What a user submits without them has DefaultSetNames; specs
  // of journals from before it was a field have none, and one set.
  std::vector<std::string> evaluation_names = {};
  TrainDType dtype = TrainDType::kF32;
  int64_t steps = 0;  // 0 with epochs, until workers have counted the sequences
  double epochs = 0;  // 0 with steps
  int64_t sequence_length = 0;
  // Attention ends at a document's border, positions begin anew there, and no target is beyond it.  Off here, as in
  // specs of journals from before it was a field; what a user submits without the field has it on.
  bool document_mask = false;
  // Likewise: with the mask, what a user submits without the field has kBestFit.
  WindowPacking packing = WindowPacking::kConcatenate;
  int64_t batch_sequences = 0;        // of a step, on all ranks
  int64_t micro_batch_sequences = 0;  // of a rank at a time; 0 = all of its share
  int32_t workers = 1;
  bool on_serving_workers = false;  // in the slices that serving leaves; else on workers that train alone
  OptimizerSpec optimizer = {};
  std::vector<ParameterRule> parameters = {};  // of several rules that fit a weight the first one holds
  LoraSpec lora = {};
  DpoSpec dpo = {};
  bool has_pairs() const { return dpo.beta != 0; }  // its files are of pairs
  DropoutSpec dropout = {};
  std::optional<double> router_jitter = {};  // likewise
  BalanceLoss balance = BalanceLoss::kAllLayers;
  // Unset: the model's router_aux_loss_coef, else kDefaultBalanceWeight.
  std::optional<double> balance_weight = {};
  double z_weight = 0;
  double capacity_factor = 0;  // of experts: workers/moe/layer/expert_capacity.h; 0 = no row is dropped
  double balance_bias_rate =
      0;                   // of routers' biases, where a model has them: workers/train/step/router_losses.h; 0 = fixed
  bool recompute = false;  // keeps only layers' inputs for backward
  pipeline::RestoreStrategy restore = {};  // how MoE layers get rows for backward; not with recompute
  CommunicationSpec communication = {};
  OffloadPolicy offload = OffloadPolicy::kAuto;  // masters and moments of experts, to a file
  // 1: masters and moments of what every worker has are sharded over them (ZeRO-1, dense_shards.h); 0: each worker has
  // all.
  int32_t zero = 0;
  uint64_t seed = 0;
  int64_t evaluate_every_steps = 0;  // 0 = at the end, if there is evaluation
  CheckpointSpec checkpoints = {};
  EarlyStopSpec early_stop = {};
  int64_t max_runtime_seconds = 0;                               // 0 = no limit
  std::vector<std::pair<std::string, std::string>> labels = {};  // names are different
  bool operator==(const JobSpec& other) const = default;
};

inline constexpr double kDefaultBalanceWeight = 0.01;
inline constexpr double kMinEpochs = 1e-3, kEpochsLimit = 1e6;
inline constexpr double kMinDatasetWeight = 1e-6, kDatasetWeightLimit = 1e9;
inline constexpr int64_t kMixtureSequences = 1 << 14;  // so many in a row have each dataset's part; none is smaller
inline constexpr int64_t kMaxTrainSteps = int64_t{1} << 53;
inline constexpr int64_t kMaxSequenceLength = int64_t{1} << 20;
inline constexpr int64_t kMaxBatchSequences = int64_t{1} << 20;
inline constexpr int32_t kMaxTrainWorkers = 1024;
// With a capacity below a tenth of its even share an expert learns next to nothing; above, numbers are mistakes.
inline constexpr double kMinCapacityFactor = 0.1, kCapacityFactorLimit = 1e6;
inline constexpr size_t kMaxDatasets = 1024;
inline constexpr size_t kMaxParameterRules = 64;
inline constexpr size_t kMaxPatternBytes = 256;
inline constexpr int32_t kMaxLoraRank = 1024;
inline constexpr size_t kMaxLabels = 64;
inline constexpr size_t kMaxLabelBytes = 63;
inline constexpr size_t kMaxPathBytes = 4096;
inline constexpr size_t kMaxEvaluationSets = 64;
inline constexpr int32_t kMaxPatience = 1'000'000;
inline constexpr double kMinImprovementLimit = 1e6;

// Whether a file of `datasets` or `evaluation` is text, which is packed into tokens, rather than a .bin of tokens.
inline bool IsText(absl::string_view file) { return absl::EndsWith(file, ".jsonl"); }
// The folder of its model beneath the checkpoint root: base_checkpoint or architecture.
inline const std::string& ModelFolder(const JobSpec& spec) {
  return spec.base_checkpoint.empty() ? spec.architecture : spec.base_checkpoint;
}

// A named part of the evaluation, which has a loss of its own.
struct EvaluationSet {
  std::string name = {};           // "" of a spec without names
  std::vector<size_t> files = {};  // indices into JobSpec::evaluation, rising
};
// The sets of a spec in the order of their first files: files of one name are one set, and without names all files are
// one.  Pure.
std::vector<EvaluationSet> EvaluationSetsOf(const JobSpec& spec);
// A name for each file: its path without the extension, but kOneSet for all where these would be more than
// kMaxEvaluationSets sets.
std::vector<std::string> DefaultSetNames(const std::vector<std::string>& evaluation);
inline constexpr char kOneSet[] = "all";

// All that is wrong with it whatever the model, the data and the machine are: InvalidArgument, one line a problem,
// "field: what was found, what may be".
absl::Status Validate(const JobSpec& spec);

// OK if `path` may name something beneath a root: relative, no empty, "." or ".." parts, no "~" first, no URL, no NUL,
// at most kMaxPathBytes.  `root` is for the message: "the dataset root".
absl::Status CheckRelativePath(absl::string_view path, absl::string_view root);

}  // namespace switchyard::jobs
