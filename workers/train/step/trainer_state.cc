#include "workers/train/step/trainer_state.h"

#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"
#include "scheduler/base/io/fnv1a.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/base/text/json_value.h"
#include "scheduler/base/text/quote.h"
#include "scheduler/base/text/strict_json.h"
#include "workers/train/parameters/parameter_rules.h"

namespace switchyard::train {
namespace {

constexpr char kFormat[] = "switchyard-trainer";
constexpr int kVersion = 1;

std::string Hex(uint64_t value) { return absl::StrCat(absl::Hex(value, absl::kZeroPad16)); }
std::string Exact(double value) { return absl::StrFormat("%.17g", value); }

std::string OptimizerText(const jobs::OptimizerSpec& optimizer) {
  const jobs::LrSchedule& lr = optimizer.schedule;
  return absl::StrJoin(
      {absl::StrCat("shape ", static_cast<int>(lr.shape)), absl::StrCat("peak ", Exact(lr.peak)),
       absl::StrCat("final_fraction ", Exact(lr.final_fraction)), absl::StrCat("warmup_steps ", lr.warmup_steps),
       absl::StrCat("decay_fraction ", Exact(lr.decay_fraction)), absl::StrCat("beta1 ", Exact(optimizer.beta1)),
       absl::StrCat("beta2 ", Exact(optimizer.beta2)), absl::StrCat("epsilon ", Exact(optimizer.epsilon)),
       absl::StrCat("weight_decay ", Exact(optimizer.weight_decay)),
       absl::StrCat("clip_norm ", Exact(optimizer.clip_norm))},
      ", ");
}

// Patterns, and which are frozen.
std::string RulesText(const std::vector<jobs::ParameterRule>& rules) {
  return absl::StrJoin(rules, "; ", [](std::string* out, const jobs::ParameterRule& rule) {
    absl::StrAppend(out, rule.pattern, rule.frozen ? " frozen" : "");
  });
}

// Rates and decays of patterns; empty: the optimizer's for all.
std::string RatesText(const std::vector<jobs::ParameterRule>& rules) {
  std::vector<std::string> texts;
  for (const jobs::ParameterRule& rule : rules) {
    std::string text = rule.pattern;
    if (rule.rate.has_value()) absl::StrAppend(&text, " rate ", Exact(*rule.rate));
    if (rule.weight_decay.has_value()) absl::StrAppend(&text, " weight_decay ", Exact(*rule.weight_decay));
    if (rule.rate.has_value() || rule.weight_decay.has_value()) texts.push_back(std::move(text));
  }
  return absl::StrJoin(texts, "; ");
}

// Rates of dropout and jitter that are not 0; empty: none.
std::string NoiseText(const jobs::JobSpec& spec) {
  std::vector<std::string> texts;
  for (const auto& [name, rate] :
       {std::pair("embedding", spec.dropout.embedding.value_or(0)),
        std::pair("hidden", spec.dropout.hidden.value_or(0)),
        std::pair("attention", spec.dropout.attention.value_or(0)),
        std::pair("router_jitter", spec.router_jitter.value_or(0)), std::pair("lora", spec.lora.dropout)}) {
    if (rate != 0) texts.push_back(absl::StrCat(name, " ", Exact(rate)));
  }
  return absl::StrJoin(texts, ", ");
}

absl::StatusOr<int64_t> Count(const nlohmann::json& json, const char* key) {
  const std::optional<int64_t> count = CountAt(json, key);
  if (!count) return absl::InvalidArgumentError(absl::StrCat(kTrainerStateName, ": ", key, " is missing or no count"));
  return *count;
}

absl::StatusOr<double> Number(const nlohmann::json& json, const char* key) {
  if (json.contains(key) && json[key].is_number()) return json[key].get<double>();
  return absl::InvalidArgumentError(absl::StrCat(kTrainerStateName, ": ", key, " is missing or no number"));
}

nlohmann::ordered_json ToJson(const EvaluationRecord& record) {
  return {{"best_step", record.best_step},
          {"best_loss", record.best_loss},
          {"counted_loss", record.counted_loss},
          {"stale", record.stale}};
}

// step: of the checkpoint.
absl::StatusOr<EvaluationRecord> DecodeEvaluations(const nlohmann::json& json, int64_t step) {
  if (!json.is_object()) return absl::InvalidArgumentError(absl::StrCat(kTrainerStateName, ": evaluations: no object"));
  EvaluationRecord record;
  ASSIGN_OR_RETURN(record.best_step, Count(json, "best_step"));
  ASSIGN_OR_RETURN(record.best_loss, Number(json, "best_loss"));
  ASSIGN_OR_RETURN(record.counted_loss, Number(json, "counted_loss"));
  ASSIGN_OR_RETURN(record.stale, Count(json, "stale"));
  if (record.best_step >= 1 && record.best_step < step) return record;
  return absl::InvalidArgumentError(
      absl::StrCat(kTrainerStateName, ": evaluations: best_step ", record.best_step, " is outside [1, ", step, ")"));
}

}  // namespace

JobShape ShapeOf(const jobs::JobSpec& spec, absl::string_view config_text, absl::Span<const NamedTokens> data) {
  constexpr const char* kDTypes[] = {"fp32", "bf16", "fp64"};
  constexpr const char* kBalance[] = {"none", "all_layers", "per_layer"};
  JobShape shape = {
      {"config.json", Hex(Fnv1a(config_text))},
      {"dtype", kDTypes[static_cast<int>(spec.dtype)]},
      {"steps", absl::StrCat(spec.steps)},
      {"sequence_length", absl::StrCat(spec.sequence_length)},
      {"batch_sequences", absl::StrCat(spec.batch_sequences)},
      {"optimizer", OptimizerText(spec.optimizer)},
      {"balance", kBalance[static_cast<int>(spec.balance)]},
      {"balance_weight", Exact(spec.balance_weight.value_or(jobs::kDefaultBalanceWeight))},
      {"z_weight", Exact(spec.z_weight)},
      {"seed", absl::StrCat(spec.seed)},
      {"datasets", absl::StrCat(data.size(), " files")},
  };
  // (Zeros are left out, as older checkpoints do not have these settings.)
  if (spec.capacity_factor != 0) {
    // The rows that share a capacity also decide what is trained.
    const int64_t share = spec.batch_sequences / spec.workers;
    const int64_t micro = spec.micro_batch_sequences > 0 ? spec.micro_batch_sequences : share;
    shape["capacity"] =
        absl::StrCat("factor ", Exact(spec.capacity_factor), " of ", micro * spec.workers, " sequences");
  }
  if (spec.document_mask) shape["document_mask"] = "on";
  if (spec.packing == jobs::WindowPacking::kBestFit) shape["packing"] = "best_fit";
  if (!spec.dataset_weights.empty()) {
    shape["dataset_weights"] = absl::StrJoin(
        spec.dataset_weights, " ", [](std::string* out, double weight) { absl::StrAppend(out, Exact(weight)); });
  }
  if (!spec.parameters.empty()) shape["parameters"] = RulesText(spec.parameters);
  if (const std::string rates = RatesText(spec.parameters); !rates.empty()) shape["rates"] = rates;
  if (spec.lora.rank > 0) {
    shape["lora"] = absl::StrCat("rank ", spec.lora.rank, ", alpha ", Exact(spec.lora.Alpha()), ", targets ",
                                 absl::StrJoin(AdaptersOf(spec.lora).targets, " "));
  }
  if (spec.has_pairs()) {
    shape["dpo"] = absl::StrCat("beta ", Exact(spec.dpo.beta), ", label_smoothing ", Exact(spec.dpo.label_smoothing));
  }
  if (const std::string noise = NoiseText(spec); !noise.empty()) shape["dropout"] = noise;
  if (spec.balance_bias_rate != 0) shape["balance_bias_rate"] = Exact(spec.balance_bias_rate);
  for (size_t i = 0; i < data.size(); ++i) {
    shape[absl::StrCat("datasets[", i, "]")] =
        absl::StrCat(data[i].name, ", ", data[i].header.num_tokens, " tokens, ", Hex(data[i].header.contents));
  }
  return shape;
}

absl::Status CompareShapes(const JobShape& was, const JobShape& is) {
  const auto value = [](const JobShape& shape, const std::string& key) {
    const auto found = shape.find(key);
    return found == shape.end() ? "not there" : found->second;
  };
  JobShape all = was;
  all.insert(is.begin(), is.end());
  std::vector<std::string> differing;
  for (const auto& [key, text] : all) {
    if (value(was, key) == value(is, key)) continue;
    differing.push_back(absl::StrCat(key, ": was ", value(was, key), ", is ", value(is, key)));
  }
  if (differing.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the checkpoint is of another job than this: ", absl::StrJoin(differing, "; ")));
}

JobShape FixedByFork(const JobShape& shape, bool other_data) {
  JobShape fixed;
  for (const auto& [key, text] : shape) {
    const bool of_form =
        key == "config.json" || key == "dtype" || key == "parameters" || key == "lora" || key == kBaseWeights;
    const bool of_place = key == "sequence_length" || key == "seed" || absl::StartsWith(key, "datasets");
    if (of_form || (of_place && !other_data)) fixed[key] = text;
  }
  return fixed;
}

std::string EncodeTrainerState(const TrainerState& state) {
  nlohmann::ordered_json json = {{"format", kFormat},      {"version", kVersion},         {"global_step", state.step},
                                 {"tokens", state.tokens}, {"next_sample", state.sample}, {"packing", state.packing}};
  // (Left out if 0, as older checkpoints do not have it.)
  if (state.skipped != 0) json["skipped_steps"] = state.skipped;
  if (state.evaluations.best_step != 0) json["evaluations"] = ToJson(state.evaluations);
  json["shape"] = state.shape;
  return json.dump(1) + "\n";
}

absl::StatusOr<TrainerState> DecodeTrainerState(absl::string_view text) {
  ASSIGN_OR_RETURN(nlohmann::json json, ParseStrictJson(kTrainerStateName, text, {.max_depth = 3}));
  if (!json.is_object() || json.value("format", nlohmann::json()) != kFormat || !json.contains("shape") ||
      !json["shape"].is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(kTrainerStateName, ": is no ", kFormat));
  }
  ASSIGN_OR_RETURN(const int64_t version, Count(json, "version"));
  if (version != kVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat(kTrainerStateName, ": version ", version, ", this program reads ", kVersion));
  }
  TrainerState state;
  ASSIGN_OR_RETURN(state.step, Count(json, "global_step"));
  ASSIGN_OR_RETURN(state.tokens, Count(json, "tokens"));
  ASSIGN_OR_RETURN(state.sample, Count(json, "next_sample"));
  if (json.contains("packing")) {  // older ones lack it
    ASSIGN_OR_RETURN(const int64_t packing, Count(json, "packing"));
    if (packing < 1 || packing > jobs::kMaxTrainWorkers) {
      return absl::InvalidArgumentError(
          absl::StrCat(kTrainerStateName, ": packing ", packing, " is outside [1, ", jobs::kMaxTrainWorkers, "]"));
    }
    state.packing = static_cast<int32_t>(packing);
  }
  if (json.contains("skipped_steps")) {
    ASSIGN_OR_RETURN(state.skipped, Count(json, "skipped_steps"));
    if (state.skipped > state.step) {
      return absl::InvalidArgumentError(
          absl::StrCat(kTrainerStateName, ": skipped_steps ", state.skipped, " of ", state.step, " steps"));
    }
  }
  if (json.contains("evaluations")) {
    ASSIGN_OR_RETURN(state.evaluations, DecodeEvaluations(json["evaluations"], state.step));
  }
  for (const auto& [key, value] : json["shape"].items()) {
    if (!value.is_string()) {
      return absl::InvalidArgumentError(absl::StrCat(kTrainerStateName, ": shape.", Excerpt(key), " is no text"));
    }
    state.shape[key] = value.get<std::string>();
  }
  return state;
}

}  // namespace switchyard::train
