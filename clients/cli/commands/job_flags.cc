// The flags of `switchyard train submit` and `train fork`: a row for each field of JobSpec.
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "clients/cli/json.h"
#include "clients/cli/message_json.h"
#include "clients/cli/request_fields.h"
#include "scheduler/base/status_macros.h"
#include "switchyard/v1/training.pb.h"

namespace switchyard::cli {
namespace {

// A text as a template's argument: the path of the field in JobSpec that a flag sets.
template <size_t kSize>
struct Path {
  char text[kSize];
  consteval Path(const char (&from)[kSize]) {  // NOLINT: a literal is one
    for (size_t i = 0; i < kSize; ++i) text[i] = from[i];
  }
};

template <Path kPath>
absl::Status Set(const Json& value, v1::JobSpec* spec) {
  return MergeField(kPath.text, value, spec);
}

template <Path kPath>
constexpr RequestField<v1::JobSpec> Row(const char* name, FieldKind kind, const char* help,
                                        const char* group = nullptr) {
  return {name, kind, help, Set<kPath>, group, kPath.text};
}

bool IsData(absl::string_view path) { return absl::EndsWith(path, ".jsonl") || absl::EndsWith(path, ".bin"); }

// The datasets, each with the weight behind its last colon; without any there is none, with some 1 for the others.
absl::Status SetDatasets(const Json& value, v1::JobSpec* spec) {
  std::vector<std::string> texts, paths;
  RETURN_IF_ERROR(Read(value, &texts));
  std::vector<double> weights;
  bool weighted = false;
  for (const std::string& text : texts) {
    const size_t colon = text.rfind(':');
    const absl::string_view path = absl::string_view(text).substr(0, colon);
    // (A path may have colons itself.)
    if (colon == std::string::npos || !IsData(path)) {
      paths.push_back(text);
      weights.push_back(1);
      continue;
    }
    double weight = 0;
    if (!absl::SimpleAtod(absl::string_view(text).substr(colon + 1), &weight) || !(weight > 0)) {
      return absl::InvalidArgumentError(
          absl::StrCat("must be PATH or PATH:WEIGHT with a positive weight, is \"", text, "\""));
    }
    paths.emplace_back(path);
    weights.push_back(weight);
    weighted = true;
  }
  spec->mutable_datasets()->Assign(paths.begin(), paths.end());
  spec->clear_dataset_weights();
  if (weighted) spec->mutable_dataset_weights()->Add(weights.begin(), weights.end());
  return absl::OkStatus();
}

// The files of evaluation, each with the name of its set behind its last colon; without any there is none, with some a
// file without one is a set of its path without the extension.
absl::Status SetEvaluation(const Json& value, v1::JobSpec* spec) {
  std::vector<std::string> texts;
  RETURN_IF_ERROR(Read(value, &texts));
  spec->clear_evaluation();
  spec->clear_evaluation_names();
  bool named = false;
  for (const std::string& text : texts) {
    const size_t colon = text.rfind(':');
    absl::string_view path = absl::string_view(text).substr(0, colon);
    // (A path may have colons itself.)
    const bool has_name = colon != std::string::npos && IsData(path);
    if (!has_name) path = text;
    const absl::string_view name =
        has_name ? absl::string_view(text).substr(colon + 1) : path.substr(0, path.rfind('.'));
    if (name.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("must be PATH or PATH:NAME with a name, is \"", text, "\""));
    }
    spec->add_evaluation(std::string(path));
    spec->add_evaluation_names(std::string(name));
    named = named || has_name;
  }
  if (!named) spec->clear_evaluation_names();
  return absl::OkStatus();
}

// Puts rules of a flag before those that are there already, of a file or of a flag in an earlier row of the table.
void AddRules(std::vector<v1::ParameterRule> added, v1::JobSpec* spec) {
  added.insert(added.end(), spec->parameters().begin(), spec->parameters().end());
  spec->mutable_parameters()->Assign(added.begin(), added.end());
}

absl::Status SetFrozen(const Json& value, v1::JobSpec* spec) {
  std::vector<std::string> patterns;
  RETURN_IF_ERROR(Read(value, &patterns));
  std::vector<v1::ParameterRule> rules;
  for (const std::string& pattern : patterns) {
    v1::ParameterRule& rule = rules.emplace_back();
    rule.set_pattern(pattern);
    rule.set_frozen(true);
  }
  AddRules(std::move(rules), spec);
  return absl::OkStatus();
}

absl::Status SetRates(const Json& value, v1::JobSpec* spec) {
  std::vector<std::string> texts;
  RETURN_IF_ERROR(Read(value, &texts));
  std::vector<v1::ParameterRule> rules;
  for (const std::string& text : texts) {
    const size_t colon = text.rfind(':');
    double factor = 0;
    if (colon == std::string::npos || colon == 0 ||
        !absl::SimpleAtod(absl::string_view(text).substr(colon + 1), &factor) || !(factor > 0)) {
      return absl::InvalidArgumentError(
          absl::StrCat("must be PATTERN:FACTOR with a positive factor, is \"", text, "\""));
    }
    v1::ParameterRule& rule = rules.emplace_back();
    rule.set_pattern(text.substr(0, colon));
    rule.set_rate(factor);
  }
  AddRules(std::move(rules), spec);
  return absl::OkStatus();
}

using enum FieldKind;
constexpr RequestField<v1::JobSpec> kFields[] = {
    Row<"base_checkpoint">("base_checkpoint", kText,
                           "go on from this checkpoint: config, tokenizer and weights, in the server's checkpoint root",
                           "Job"),
    Row<"architecture">("architecture", kText,
                        "or draw the weights anew, for the config and tokenizer of this folder there"),
    {"dataset", kTexts,
     "train on this .jsonl or .bin of the server's dataset root; may be repeated; PATH:WEIGHT: its sequences are this "
     "weight over the sum of weights (1 where none is given) of the job's",
     SetDatasets, nullptr, "datasets,dataset_weights"},
    {"evaluation", kTexts,
     "evaluate on this file; likewise; PATH:NAME: as a part of the set NAME, which has a loss of its own (default: a "
     "set "
     "of each file, its name the path without the extension)",
     SetEvaluation, nullptr, "evaluation,evaluation_names"},
    Row<"precision">("precision", kText, "fp32, bf16 (masters, moments and sums fp32) or fp64"),
    Row<"steps">("steps", kNumber, "number of optimizer steps"),
    Row<"epochs">("epochs", kNumber, "instead of --steps: so many times as many sequences as the datasets have"),
    Row<"sequence_length">("sequence_length", kNumber, "tokens of a sequence"),
    Row<"document_mask">("document_mask", kText,
                         "on (default): attention ends at a document's border and positions begin anew there; off: a "
                         "sequence is one text"),
    Row<"packing">("packing", kText,
                   "best_fit (default with document_mask on): a sequence has whole documents and may have room left; "
                   "concatenate: it is the next tokens of a file, whatever document they are of"),
    Row<"batch_sequences">("batch_sequences", kNumber, "sequences of a step, on all workers"),
    Row<"micro_batch_sequences">("micro_batch_sequences", kNumber,
                                 "sequences of a worker at a time; 0 = all of its share"),
    Row<"workers">("workers", kNumber, "number of workers; default 1"),
    Row<"on_serving_workers">(
        "on_serving_workers", kBool,
        "train on serving workers while they have nothing to serve (default: on training workers)"),
    Row<"optimizer.learning_rate">("learning_rate", kNumber, "the peak learning rate", "Optimizer"),
    Row<"optimizer.schedule">("schedule", kText, "cosine (default), linear, constant or wsd (warm-up, stable, decay)"),
    Row<"optimizer.final_fraction">("final_fraction", kNumber, "learning rate at the last step, as a part of the peak"),
    Row<"optimizer.warmup_steps">("warmup_steps", kNumber, "steps until the learning rate reaches its peak"),
    Row<"optimizer.decay_fraction">("decay_fraction", kNumber,
                                    "with wsd: the part of the steps in which the rate decays"),
    Row<"optimizer.beta1">("beta1", kNumber, "AdamW's beta1; default 0.9"),
    Row<"optimizer.beta2">("beta2", kNumber, "AdamW's beta2; default 0.95"),
    Row<"optimizer.epsilon">("epsilon", kNumber, "AdamW's epsilon; default 1e-8"),
    Row<"optimizer.weight_decay">("weight_decay", kNumber, "weight decay of matrices; default 0.1"),
    Row<"optimizer.clip_norm">("clip_norm", kNumber, "largest norm of all gradients; 0 = no clipping; default 1"),
    // (Before freeze, whose rules are the first.)
    {"rate", kTexts,
     "PATTERN:FACTOR: train the weights whose names fit this pattern, in which * is any characters, at so many times "
     "the learning rate; may be repeated; the first pattern that fits holds: those of --freeze, then these, then the "
     "spec file's",
     SetRates, nullptr, "parameters"},
    {"freeze", kTexts, "do not train the weights whose names fit this pattern: \"*.experts.*\"; may be repeated",
     SetFrozen, nullptr, "parameters"},
    Row<"lora.rank">("lora_rank", kNumber,
                     "train low-rank adapters of attention, or of experts, in place of the base's weights; the result "
                     "is a folder that PEFT loads; 0 = none (default)"),
    Row<"lora.alpha">("lora_alpha", kNumber, "adapters are added times this over their rank; default: the rank"),
    Row<"lora.targets">("lora_target", kTexts,
                        "an adapted matrix: q_proj, k_proj, v_proj or o_proj of attention, gate_up_proj or down_proj "
                        "of experts; may be repeated; default: all four of attention"),
    Row<"dpo.beta">("dpo_beta", kNumber,
                    "direct preference optimization with this beta, on lines of prompt, chosen and rejected; the "
                    "reference is the base checkpoint; 0 = none (default)"),
    Row<"dpo.label_smoothing">("dpo_label_smoothing", kNumber,
                               "with --dpo_beta: part of the pairs that may be the wrong way round; default 0"),
    Row<"lora.dropout">("lora_dropout", kNumber, "part of adapters' inputs that a step drops at random; default 0"),
    Row<"dropout.embedding">("dropout_embedding", kNumber,
                             "part of the first layer's rows that a step drops at random; default, as of the next "
                             "three: what the model's config.json says, else 0"),
    Row<"dropout.hidden">("dropout_hidden", kNumber,
                          "likewise of what each attention and each MLP or MoE layer adds to the residual"),
    Row<"dropout.attention">("dropout_attention", kNumber, "likewise of attention's probabilities"),
    Row<"router_jitter">("router_jitter", kNumber,
                         "a step multiplies the rows that MoE layers get by random numbers within 1 ± this"),
    Row<"balance">("balance", kText, "load-balancing loss: all_layers (default), per_layer or none",
                   "Losses and routing"),
    Row<"balance_weight">(
        "balance_weight", kNumber,
        "weight of the load-balancing loss; default: router_aux_loss_coef of the model's config.json, else 0.01"),
    Row<"z_weight">("z_weight", kNumber, "weight of the routers' z-loss; default 0"),
    Row<"capacity_factor">(
        "capacity_factor", kNumber,
        "an expert's capacity as a multiple of its even share of a micro-batch; further rows are dropped; 0 = no limit "
        "(default)"),
    Row<"balance_bias_rate">(
        "balance_bias_rate", kNumber,
        "change of the routers' biases after each step, for a model with such biases; 0 = none (default)"),
    Row<"offload">(
        "offload", kText,
        "put masters and moments of experts into a file of the workers: auto (default: if memory does not suffice), "
        "never, always",
        "Memory and network"),
    Row<"zero">(
        "zero", kNumber,
        "ZeRO-1; 1: shard masters and moments of what every worker has (all but experts) over the workers, so that "
        "each has a part; 0 (default): every worker has all"),
    Row<"recompute">("recompute", kBool,
                     "activation checkpointing: keep less for backward and compute it again, layer by layer"),
    Row<"restore_input">(
        "restore_input", kText,
        "how backward gets the rows that came to experts: keep (default), offload (to a file of the workers), resend"),
    Row<"restore_hidden">(
        "restore_hidden", kText,
        "how backward gets the rows inside experts: keep (default), offload (to a file of the workers), recompute"),
    Row<"seed">("seed", kNumber, "seed of drawn weights and of the order of data"),
    Row<"evaluate_every_steps">("evaluate_every_steps", kNumber,
                                "steps between evaluations; 0 = only at the end, if there is evaluation data"),
    Row<"checkpoints.every_steps">("checkpoint_every_steps", kNumber, "steps between checkpoints; default 1000",
                                   "Checkpoints and evaluation"),
    Row<"checkpoints.keep_last">("keep_last", kNumber, "number of newest checkpoints to keep; default 3"),
    Row<"checkpoints.keep_every_steps">("keep_every_steps", kNumber,
                                        "also keep all checkpoints at multiples of this; 0 = none"),
    Row<"checkpoints.keep_best">("keep_best", kBool,
                                 "save a checkpoint at each evaluation that is the best so far, and keep it until a "
                                 "better one is saved"),
    Row<"early_stop.patience">("early_stop_patience", kNumber,
                               "end the job after this many evaluations in a row without an improvement; 0 = do all "
                               "steps (default)"),
    Row<"early_stop.min_improvement">(
        "early_stop_min_improvement", kNumber,
        "by how much the loss has to fall to be an improvement: nats a token, with --dpo_beta the mean "
        "loss of pairs; default 0"),
    Row<"max_runtime_seconds">("max_runtime_seconds", kNumber,
                               "stop the job with an error after this running time; 0 = no limit"),
    Row<"labels">("label", kTexts, "KEY=TEXT, to find the job by; may be repeated"),
    Row<"communication.piece_bytes">("piece_bytes", kNumber,
                                     "bytes of sums of gradients, between which all-to-alls go; 0 = as many as pass in "
                                     "5 ms"),
    Row<"communication.granularity">("granularity", kText,
                                     "into how many chunks each MoE layer's rows are cut: auto (default: measured "
                                     "before the first step) or a number"),
    Row<"communication.expert_packing">("expert_packing", kText,
                                        "replicas of each expert, on groups of workers that send rows only among "
                                        "themselves: a number that divides the workers (default 1), or trials (doubled "
                                        "while steps become shorter)"),
};

}  // namespace

template <>
absl::Span<const RequestField<v1::JobSpec>> RequestFields() {
  return kFields;
}

}  // namespace switchyard::cli
