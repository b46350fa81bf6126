// The flags of `switchyard train submit`: a row for each field of JobSpec.
#include <cstddef>

#include "clients/cli/json.h"
#include "clients/cli/message_json.h"
#include "clients/cli/request_fields.h"
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

using enum FieldKind;
constexpr RequestField<v1::JobSpec> kFields[] = {
    {"base_checkpoint", kText,
     "go on from this checkpoint: config, tokenizer and weights, in the server's checkpoint root",
     Set<"base_checkpoint">, "Job"},
    {"architecture", kText, "or draw the weights anew, for the config and tokenizer of this folder there",
     Set<"architecture">},
    {"dataset", kTexts, "train on this .jsonl or .bin of the server's dataset root; may be repeated", Set<"datasets">},
    {"evaluation", kTexts, "evaluate on this file; likewise", Set<"evaluation">},
    {"precision", kText, "fp32, bf16 (masters, moments and sums fp32) or fp64", Set<"precision">},
    {"steps", kNumber, "number of optimizer steps", Set<"steps">},
    {"sequence_length", kNumber, "tokens of a sequence", Set<"sequence_length">},
    {"document_mask", kText,
     "on (default): attention ends at a document's border and positions begin anew there; off: a sequence is one text",
     Set<"document_mask">},
    {"batch_sequences", kNumber, "sequences of a step, on all workers", Set<"batch_sequences">},
    {"micro_batch_sequences", kNumber, "sequences of a worker at a time; 0 = all of its share",
     Set<"micro_batch_sequences">},
    {"workers", kNumber, "number of workers; default 1", Set<"workers">},
    {"on_serving_workers", kBool,
     "train on serving workers while they have nothing to serve (default: on training workers)",
     Set<"on_serving_workers">},
    {"learning_rate", kNumber, "the peak learning rate", Set<"optimizer.learning_rate">, "Optimizer"},
    {"schedule", kText, "cosine (default), linear, constant or wsd (warm-up, stable, decay)",
     Set<"optimizer.schedule">},
    {"final_fraction", kNumber, "learning rate at the last step, as a part of the peak",
     Set<"optimizer.final_fraction">},
    {"warmup_steps", kNumber, "steps until the learning rate reaches its peak", Set<"optimizer.warmup_steps">},
    {"decay_fraction", kNumber, "with wsd: the part of the steps in which the rate decays",
     Set<"optimizer.decay_fraction">},
    {"beta1", kNumber, "AdamW's beta1; default 0.9", Set<"optimizer.beta1">},
    {"beta2", kNumber, "AdamW's beta2; default 0.95", Set<"optimizer.beta2">},
    {"epsilon", kNumber, "AdamW's epsilon; default 1e-8", Set<"optimizer.epsilon">},
    {"weight_decay", kNumber, "weight decay of matrices; default 0.1", Set<"optimizer.weight_decay">},
    {"clip_norm", kNumber, "largest norm of all gradients; 0 = no clipping; default 1", Set<"optimizer.clip_norm">},
    {"balance", kText, "load-balancing loss: all_layers (default), per_layer or none", Set<"balance">,
     "Losses and routing"},
    {"balance_weight", kNumber,
     "weight of the load-balancing loss; default: router_aux_loss_coef of the model's config.json, else 0.01",
     Set<"balance_weight">},
    {"z_weight", kNumber, "weight of the routers' z-loss; default 0", Set<"z_weight">},
    {"capacity_factor", kNumber,
     "an expert's capacity as a multiple of its even share of a micro-batch; further rows are dropped; 0 = no limit "
     "(default)",
     Set<"capacity_factor">},
    {"balance_bias_rate", kNumber,
     "change of the routers' biases after each step, for a model with such biases; 0 = none (default)",
     Set<"balance_bias_rate">},
    {"offload", kText,
     "put masters and moments of experts into a file of the workers: auto (default: if memory does not suffice), "
     "never, always",
     Set<"offload">, "Memory and network"},
    {"recompute", kBool, "activation checkpointing: keep less for backward and compute it again, layer by layer",
     Set<"recompute">},
    {"restore_input", kText,
     "how backward gets the rows that came to experts: keep (default), offload (to a file of the workers), resend",
     Set<"restore_input">},
    {"restore_hidden", kText,
     "how backward gets the rows inside experts: keep (default), offload (to a file of the workers), recompute",
     Set<"restore_hidden">},
    {"seed", kNumber, "seed of drawn weights and of the order of data", Set<"seed">},
    {"evaluate_every_steps", kNumber, "steps between evaluations; 0 = only at the end, if there is evaluation data",
     Set<"evaluate_every_steps">},
    {"checkpoint_every_steps", kNumber, "steps between checkpoints; default 1000", Set<"checkpoints.every_steps">,
     "Checkpoints and evaluation"},
    {"keep_last", kNumber, "number of newest checkpoints to keep; default 3", Set<"checkpoints.keep_last">},
    {"keep_every_steps", kNumber, "also keep all checkpoints at multiples of this; 0 = none",
     Set<"checkpoints.keep_every_steps">},
    {"max_runtime_seconds", kNumber, "stop the job with an error after this running time; 0 = no limit",
     Set<"max_runtime_seconds">},
    {"label", kTexts, "KEY=TEXT, to find the job by; may be repeated", Set<"labels">},
    {"communication", kText, "mode in which gradient sums and all-to-alls share the network (default preempt)",
     Set<"communication.mode">},
    {"piece_bytes", kNumber, "bytes of the network's micro-ops; 0 = the default", Set<"communication.piece_bytes">},
    {"granularity", kText,
     "into how many chunks each MoE layer's rows are cut: mode (default: as --communication says), model (by measured "
     "times), profile (by trying) or a number",
     Set<"communication.granularity">},
};

}  // namespace

template <>
absl::Span<const RequestField<v1::JobSpec>> RequestFields() {
  return kFields;
}

}  // namespace switchyard::cli
