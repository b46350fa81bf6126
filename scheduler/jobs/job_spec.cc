#include "scheduler/jobs/job_spec.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "scheduler/jobs/lora_targets.h"
#include "scheduler/jobs/trainer_limits.h"

namespace switchyard::jobs {
namespace {

constexpr size_t kShownBytes = 64;

std::string Shown(absl::string_view text) {
  return absl::StrCat("\"", absl::CHexEscape(text.substr(0, kShownBytes)), "\"");
}

class Problems {
 public:
  void Add(absl::string_view field, absl::string_view problem) { lines_.push_back(absl::StrCat(field, ": ", problem)); }
  void Add(absl::string_view field, const absl::Status& status) {
    if (!status.ok()) Add(field, status.message());
  }
  void CheckIn(absl::string_view field, int64_t value, int64_t least, int64_t most) {
    if (value < least || value > most) Add(field, absl::StrCat(value, " is outside [", least, ", ", most, "]"));
  }
  void CheckReal(absl::string_view field, double value, const RealRange& range) {
    if (range.Holds(value)) return;
    Add(field, absl::StrCat(value, " is outside [", range.least, ", ", range.below, ")"));
  }
  absl::Status Status() const {
    return lines_.empty() ? absl::OkStatus() : absl::InvalidArgumentError(absl::StrJoin(lines_, "\n"));
  }

 private:
  std::vector<std::string> lines_;
};

void CheckModel(const JobSpec& spec, Problems* problems) {
  if (spec.base_checkpoint.empty() == spec.architecture.empty()) {
    problems->Add("base_checkpoint, architecture", "exactly one is wanted");
  }
  for (const auto& [field, path] :
       {std::make_pair("base_checkpoint", &spec.base_checkpoint), std::make_pair("architecture", &spec.architecture)}) {
    if (!path->empty()) problems->Add(field, CheckRelativePath(*path, "the checkpoint root"));
  }
}

void CheckFiles(absl::string_view field, const std::vector<std::string>& files, Problems* problems) {
  if (files.size() > kMaxDatasets) {
    problems->Add(field, absl::StrCat(files.size(), " files, at most ", kMaxDatasets));
    return;
  }
  for (size_t i = 0; i < files.size(); ++i) {
    const std::string name = absl::StrCat(field, "[", i, "]");
    problems->Add(name, CheckRelativePath(files[i], "the dataset root"));
    if (!IsText(files[i]) && !absl::EndsWith(files[i], ".bin")) {
      problems->Add(name, absl::StrCat(Shown(files[i]), " ends neither in .jsonl nor in .bin"));
    }
  }
}

// True if the text may not be a part of a line.
bool HasControl(absl::string_view text) {
  return std::any_of(text.begin(), text.end(), [](unsigned char c) { return absl::ascii_iscntrl(c); });
}

void CheckSetNames(const JobSpec& spec, Problems* problems) {
  const std::vector<std::string>& names = spec.evaluation_names;
  if (names.empty()) return;
  if (names.size() != spec.evaluation.size()) {
    problems->Add("evaluation_names", absl::StrCat(names.size(), " for ", spec.evaluation.size(),
                                                   " files of evaluation; none, or one for each is wanted"));
    return;
  }
  for (size_t i = 0; i < names.size(); ++i) {
    if (!names[i].empty() && names[i].size() <= kMaxPathBytes && !HasControl(names[i])) continue;
    problems->Add(
        absl::StrCat("evaluation_names[", i, "]"),
        absl::StrCat(Shown(names[i]), ": 1 to ", kMaxPathBytes, " bytes without control characters are wanted"));
  }
  if (const size_t sets = EvaluationSetsOf(spec).size(); sets > kMaxEvaluationSets) {
    problems->Add("evaluation_names", absl::StrCat(sets, " sets, at most ", kMaxEvaluationSets));
  }
}

// What is decided by evaluations wants some.
void CheckDecisions(const JobSpec& spec, Problems* problems) {
  const EarlyStopSpec& stop = spec.early_stop;
  problems->CheckIn("early_stop.patience", stop.patience, 0, kMaxPatience);
  problems->CheckReal("early_stop.min_improvement", stop.min_improvement, {0, kMinImprovementLimit});
  if (stop.patience == 0 && stop.min_improvement > 0) {
    problems->Add("early_stop.min_improvement",
                  absl::StrCat(stop.min_improvement, ", but early_stop.patience is 0, so the job does not end early"));
  }
  if (stop.patience > 0 && spec.evaluation.empty()) {
    problems->Add("early_stop.patience", absl::StrCat(stop.patience, ", but there are no files of evaluation"));
  } else if (stop.patience > 0 && spec.evaluate_every_steps == 0) {
    problems->Add("early_stop.patience",
                  absl::StrCat(stop.patience, ", but evaluate_every_steps is 0: the only evaluation is at the end"));
  }
  if (spec.checkpoints.keep_best && spec.evaluation.empty()) {
    problems->Add("checkpoints.keep_best", "there are no files of evaluation, so no checkpoint is the best");
  }
}

void CheckWeights(const JobSpec& spec, Problems* problems) {
  const std::vector<double>& weights = spec.dataset_weights;
  if (weights.empty()) return;
  if (weights.size() != spec.datasets.size()) {
    problems->Add("dataset_weights", absl::StrCat(weights.size(), " for ", spec.datasets.size(),
                                                  " datasets; none, or one for each is wanted"));
    return;
  }
  if (weights.size() == 1) {
    problems->Add("dataset_weights", "one dataset is all of the data and needs no weight");
    return;
  }
  static constexpr RealRange kWeights = {kMinDatasetWeight, kDatasetWeightLimit};
  const auto field = [](size_t i) { return absl::StrCat("dataset_weights[", i, "]"); };
  for (size_t i = 0; i < weights.size(); ++i) problems->CheckReal(field(i), weights[i], kWeights);
  if (!std::all_of(weights.begin(), weights.end(), [](double weight) { return kWeights.Holds(weight); })) return;
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] * kMixtureSequences >= sum) continue;
    problems->Add(field(i),
                  absl::StrCat(weights[i], " of ", sum, " is less than one of ", kMixtureSequences, " sequences"));
  }
}

void CheckEpochs(const JobSpec& spec, Problems* problems) {
  if (spec.epochs == 0) {
    problems->CheckIn("steps", spec.steps, 1, kMaxTrainSteps);
    return;
  }
  problems->CheckReal("epochs", spec.epochs, {kMinEpochs, kEpochsLimit});
  if (spec.steps != 0) {
    problems->Add("steps, epochs",
                  absl::StrCat(spec.steps, " steps and ", spec.epochs, " epochs; one of both is wanted"));
  }
}

void CheckShape(const JobSpec& spec, Problems* problems) {
  CheckEpochs(spec, problems);
  if (spec.packing == WindowPacking::kBestFit && !spec.document_mask) {
    problems->Add("packing", "best_fit keeps documents apart, which wants document_mask on; concatenate goes with off");
  }
  problems->CheckIn("sequence_length", spec.sequence_length, 1, kMaxSequenceLength);
  problems->CheckIn("batch_sequences", spec.batch_sequences, 1, kMaxBatchSequences);
  problems->CheckIn("workers", spec.workers, 1, kMaxTrainWorkers);
  if (spec.workers < 1 || spec.batch_sequences < 1) return;
  const int64_t share = spec.batch_sequences / spec.workers;
  if (spec.batch_sequences % spec.workers != 0) {
    problems->Add("batch_sequences", absl::StrCat(spec.batch_sequences, " cannot be dealt out to ", spec.workers,
                                                  " workers in equal parts"));
  } else if (spec.micro_batch_sequences < 0 || spec.micro_batch_sequences > share ||
             (spec.micro_batch_sequences > 0 && share % spec.micro_batch_sequences != 0)) {
    problems->Add("micro_batch_sequences", absl::StrCat(spec.micro_batch_sequences, " does not divide a worker's ",
                                                        share, " sequences of a step (0 = all of them)"));
  } else if (spec.sequence_length >= 1 && spec.sequence_length <= kMaxSequenceLength) {
    const int64_t sequences = spec.micro_batch_sequences > 0 ? spec.micro_batch_sequences : share;
    if (sequences <= kMaxMicroBatchRows / spec.sequence_length) return;
    problems->Add("micro_batch_sequences",
                  absl::StrCat(spec.micro_batch_sequences, " (0 = all of a worker's): ", sequences, " sequences of ",
                               spec.sequence_length, " tokens, at most ", kMaxMicroBatchRows,
                               " tokens may be computed at a time"));
  }
}

void CheckOptimizer(const OptimizerSpec& optimizer, int64_t steps, Problems* problems) {
  LrSchedule schedule = optimizer.schedule;
  schedule.total_steps = std::max<int64_t>(steps, 1);
  problems->Add("optimizer", Validate(schedule));
  problems->CheckReal("optimizer.beta1", optimizer.beta1, kBetas);
  problems->CheckReal("optimizer.beta2", optimizer.beta2, kBetas);
  problems->CheckReal("optimizer.epsilon", optimizer.epsilon, kEpsilons);
  problems->CheckReal("optimizer.weight_decay", optimizer.weight_decay, kWeightDecays);
  problems->CheckReal("optimizer.clip_norm", optimizer.clip_norm, kClipNorms);
}

void CheckLabels(const JobSpec& spec, Problems* problems) {
  if (spec.labels.size() > kMaxLabels) {
    problems->Add("labels", absl::StrCat(spec.labels.size(), ", at most ", kMaxLabels));
    return;
  }
  std::vector<absl::string_view> names;
  for (const auto& [name, value] : spec.labels) {
    if (name.empty() || name.size() > kMaxLabelBytes || value.size() > kMaxLabelBytes) {
      problems->Add("labels", absl::StrCat(Shown(name), " = ", Shown(value), ": a name of 1 to ", kMaxLabelBytes,
                                           " bytes and a value of at most as many are wanted"));
    }
    if (HasControl(name) || HasControl(value)) {  // lists of jobs have a line for each
      problems->Add("labels", absl::StrCat(Shown(name), " = ", Shown(value),
                                           ": a name and a value may have no control characters"));
    }
    names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice != names.end()) problems->Add("labels", absl::StrCat(Shown(*twice), " is there twice"));
}

void CheckRules(const JobSpec& spec, Problems* problems) {
  if (spec.parameters.size() > kMaxParameterRules) {
    problems->Add("parameters", absl::StrCat(spec.parameters.size(), " rules, at most ", kMaxParameterRules));
    return;
  }
  for (size_t i = 0; i < spec.parameters.size(); ++i) {
    const ParameterRule& rule = spec.parameters[i];
    const std::string field = absl::StrCat("parameters[", i, "]");
    if (rule.pattern.empty() || rule.pattern.size() > kMaxPatternBytes || HasControl(rule.pattern)) {
      problems->Add(field, absl::StrCat("pattern ", Shown(rule.pattern), ": 1 to ", kMaxPatternBytes,
                                        " bytes without control characters are wanted"));
    }
    if (rule.frozen && (rule.rate.has_value() || rule.weight_decay.has_value())) {
      problems->Add(field, absl::StrCat(Shown(rule.pattern), " is frozen, so it has no rate and no weight_decay"));
    }
    if (rule.rate.has_value()) {
      problems->CheckReal(absl::StrCat(field, ".rate"), *rule.rate, kRateFactors);
      const double peak = *rule.rate * spec.optimizer.schedule.peak;
      if (kRateFactors.Holds(*rule.rate) && peak > kMaxLearningRate && spec.optimizer.schedule.peak <= kMaxLearningRate)
        problems->Add(field, absl::StrCat("learning rate ", peak, ", at most ", kMaxLearningRate));
    }
    if (rule.weight_decay.has_value())
      problems->CheckReal(absl::StrCat(field, ".weight_decay"), *rule.weight_decay, kWeightDecays);
  }
}

void CheckLoraTargets(const LoraSpec& lora, Problems* problems) {
  for (size_t i = 0; i < lora.targets.size(); ++i) {
    const std::string& target = lora.targets[i];
    const std::string field = absl::StrCat("lora.targets[", i, "]");
    const bool of_attention =
        std::find(std::begin(kLoraTargets), std::end(kLoraTargets), target) != std::end(kLoraTargets);
    if (target == "gate_proj" || target == "up_proj") {
      problems->Add(field, absl::StrCat(Shown(target), "; gate and up of an expert are one matrix, as in PEFT, which ",
                                        kExpertLoraTargets[0], " adapts; shared experts have no adapters"));
    } else if (!of_attention && !IsExpertTarget(target)) {
      problems->Add(field, absl::StrCat(Shown(target), "; known are ", absl::StrJoin(kLoraTargets, ", "),
                                        " of attention and ", absl::StrJoin(kExpertLoraTargets, ", "),
                                        " of experts; routers, embeddings and other feed-forwards have no adapters"));
    } else if (std::find(lora.targets.begin(), lora.targets.begin() + static_cast<int64_t>(i), target) !=
               lora.targets.begin() + static_cast<int64_t>(i)) {
      problems->Add(field, absl::StrCat(Shown(target), " is there twice"));
    }
  }
}

void CheckLora(const JobSpec& spec, Problems* problems) {
  const LoraSpec& lora = spec.lora;
  if (lora.rank == 0) {
    if (lora.alpha != 0 || !lora.targets.empty() || lora.dropout != 0)
      problems->Add("lora.rank", "0, but the job has other fields of lora");
    return;
  }
  problems->CheckIn("lora.rank", lora.rank, 1, kMaxLoraRank);
  if (lora.alpha != 0) problems->CheckReal("lora.alpha", lora.alpha, kLoraAlphas);
  problems->CheckReal("lora.dropout", lora.dropout, kNoiseRates);
  CheckLoraTargets(lora, problems);
  if (lora.dropout > 0 && AdaptsExperts(lora)) {
    problems->Add("lora.dropout",
                  absl::StrCat(lora.dropout, ", but adapters of experts have none, as in PEFT, which refuses it"));
  }
  if (spec.base_checkpoint.empty()) problems->Add("lora", "wants a base_checkpoint, whose weights adapters go with");
  if (spec.balance_bias_rate > 0) problems->Add("balance_bias_rate", "with lora routers' biases are the base's");
  if (FirstPacking(spec.communication) > 1 || TriesPackings(spec.communication)) {
    problems->Add("communication.expert_packing", "with lora experts have one replica: 1");
  }
  if (spec.offload == OffloadPolicy::kAlways) {
    problems->Add("offload",
                  "always, but with lora nothing is offloaded: masters and moments of adapters stay in memory");
  }
}

void CheckDpo(const JobSpec& spec, Problems* problems) {
  const DpoSpec& dpo = spec.dpo;
  if (!spec.has_pairs()) {
    if (dpo.label_smoothing != 0) {
      problems->Add("dpo.label_smoothing",
                    absl::StrCat(dpo.label_smoothing, ", but dpo.beta is 0, so the job has no preferences"));
    }
    return;
  }
  problems->CheckReal("dpo.beta", dpo.beta, kDpoBetas);
  problems->CheckReal("dpo.label_smoothing", dpo.label_smoothing, kLabelSmoothings);
  if (spec.base_checkpoint.empty()) problems->Add("dpo", "wants a base_checkpoint, which is the reference");
  if (!spec.document_mask) problems->Add("document_mask", "off, but with dpo each answer is a text of its own");
  if (spec.packing != WindowPacking::kBestFit) {
    problems->Add("packing", "concatenate, but with dpo both answers of a pair are in one sequence: best_fit");
  }
}

void CheckNoise(const JobSpec& spec, Problems* problems) {
  problems->CheckReal("dropout.embedding", spec.dropout.embedding.value_or(0), kNoiseRates);
  problems->CheckReal("dropout.hidden", spec.dropout.hidden.value_or(0), kNoiseRates);
  problems->CheckReal("dropout.attention", spec.dropout.attention.value_or(0), kNoiseRates);
  problems->CheckReal("router_jitter", spec.router_jitter.value_or(0), kNoiseRates);
}

}  // namespace

absl::Status CheckRelativePath(absl::string_view path, absl::string_view root) {
  const auto wrong = [&](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat(Shown(path), ": path must be under ", root, ": ", why));
  };
  if (path.empty()) return wrong("it is empty");
  if (path.size() > kMaxPathBytes) return wrong(absl::StrCat(path.size(), " bytes, at most ", kMaxPathBytes));
  if (absl::StrContains(path, '\0')) return wrong("it has a NUL");
  if (absl::StrContains(path, "://")) return wrong("it is a URL");
  if (path.front() == '/') return wrong("it is absolute");
  if (path.front() == '~') return wrong("it begins with ~");
  for (const absl::string_view part : absl::StrSplit(path, '/')) {
    if (part.empty() || part == "." || part == "..") return wrong("it has an empty part, . or ..");
  }
  return absl::OkStatus();
}

std::vector<EvaluationSet> EvaluationSetsOf(const JobSpec& spec) {
  std::vector<EvaluationSet> sets;
  for (size_t i = 0; i < spec.evaluation.size(); ++i) {
    const std::string name = i < spec.evaluation_names.size() ? spec.evaluation_names[i] : "";
    const auto found =
        std::find_if(sets.begin(), sets.end(), [&](const EvaluationSet& set) { return set.name == name; });
    (found == sets.end() ? sets.emplace_back(EvaluationSet{.name = name}) : *found).files.push_back(i);
  }
  return sets;
}

std::vector<std::string> DefaultSetNames(const std::vector<std::string>& evaluation) {
  std::vector<std::string> names;
  for (const std::string& path : evaluation) {
    names.push_back(path.substr(0, path.rfind('.')));
    std::string& name = names.back();
    if (name.empty()) name = path;
    if (HasControl(name)) name = absl::CHexEscape(name);
    name.resize(std::min(name.size(), kMaxPathBytes));  // a longer path is refused
  }
  std::vector<std::string> different = names;
  std::sort(different.begin(), different.end());
  different.erase(std::unique(different.begin(), different.end()), different.end());
  if (different.size() > kMaxEvaluationSets) names.assign(names.size(), kOneSet);
  return names;
}

absl::Status Validate(const JobSpec& spec) {
  Problems problems;
  CheckModel(spec, &problems);
  if (spec.datasets.empty()) problems.Add("datasets", "none");
  CheckFiles("datasets", spec.datasets, &problems);
  CheckWeights(spec, &problems);
  CheckFiles("evaluation", spec.evaluation, &problems);
  CheckSetNames(spec, &problems);
  CheckShape(spec, &problems);
  CheckOptimizer(spec.optimizer, spec.epochs == 0 ? spec.steps : kMaxTrainSteps, &problems);
  CheckRules(spec, &problems);
  CheckLora(spec, &problems);
  CheckDpo(spec, &problems);
  CheckNoise(spec, &problems);
  problems.CheckReal("balance_weight", spec.balance_weight.value_or(kDefaultBalanceWeight), kRouterLossWeights);
  problems.CheckReal("z_weight", spec.z_weight, kRouterLossWeights);
  if (spec.capacity_factor != 0) {  // (NaN is not)
    problems.CheckReal("capacity_factor (0 = no row is dropped)", spec.capacity_factor,
                       {kMinCapacityFactor, kCapacityFactorLimit});
  }
  problems.CheckReal("balance_bias_rate", spec.balance_bias_rate, kBalanceBiasRates);
  problems.CheckIn("evaluate_every_steps", spec.evaluate_every_steps, 0, kMaxTrainSteps);
  CheckDecisions(spec, &problems);
  problems.CheckIn("checkpoints.every_steps", spec.checkpoints.every_steps, 1, kMaxTrainSteps);
  problems.CheckIn("checkpoints.keep_last", spec.checkpoints.keep_last, 1, 1'000'000);
  problems.CheckIn("checkpoints.keep_every_steps", spec.checkpoints.keep_every_steps, 0, kMaxTrainSteps);
  problems.CheckIn("max_runtime_seconds", spec.max_runtime_seconds, 0, int64_t{100} * 366 * 86400);
  problems.CheckIn("zero", spec.zero, 0, 1);
  if (spec.zero == 1 && spec.lora.rank > 0) {
    problems.Add(
        "zero",
        "1, but with lora nothing is sharded: every worker has the state of attention's adapters, and of experts' "
        "those of its own experts");
  }
  if (spec.recompute && !spec.restore.keeps_all()) {
    problems.Add("restore_input, restore_hidden", "with recompute layers keep nothing that could be restored");
  }
  if (spec.communication.piece_bytes != kPiecesByLink) {
    problems.CheckIn("communication.piece_bytes", spec.communication.piece_bytes, 1024, int64_t{1} << 40);
  }
  problems.Add("communication.expert_packing", CheckPackingChoice(spec.communication, spec.workers));
  problems.Add("communication.granularity", CheckGranularity(spec.communication));
  CheckLabels(spec, &problems);
  return problems.Status();
}

}  // namespace switchyard::jobs
