#include "proto/link/job_spec_codec.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/link/field_table.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::link {
namespace {

template <class Proto, class Ours>
struct EnumPair {
  Proto proto;
  Ours ours;
};

// ToProto uses the first pair of a value of ours.
constexpr EnumPair<v1::TrainPrecision, jobs::TrainDType> kPrecisions[] = {
    {v1::TRAIN_PRECISION_FP32, jobs::TrainDType::kF32},
    {v1::TRAIN_PRECISION_BF16, jobs::TrainDType::kBf16},
    {v1::TRAIN_PRECISION_FP64, jobs::TrainDType::kF64},
    {v1::TRAIN_PRECISION_UNSPECIFIED, jobs::JobSpec().dtype},
};
constexpr EnumPair<v1::LrShape, jobs::LrShape> kShapes[] = {
    {v1::LR_SHAPE_COSINE, jobs::LrShape::kCosine},      {v1::LR_SHAPE_LINEAR, jobs::LrShape::kLinear},
    {v1::LR_SHAPE_CONSTANT, jobs::LrShape::kConstant},  {v1::LR_SHAPE_WSD, jobs::LrShape::kWsd},
    {v1::LR_SHAPE_UNSPECIFIED, jobs::LrShape::kCosine},
};
constexpr EnumPair<v1::BalanceLoss, jobs::BalanceLoss> kBalances[] = {
    {v1::BALANCE_LOSS_NONE, jobs::BalanceLoss::kNone},
    {v1::BALANCE_LOSS_ALL_LAYERS, jobs::BalanceLoss::kAllLayers},
    {v1::BALANCE_LOSS_PER_LAYER, jobs::BalanceLoss::kPerLayer},
    {v1::BALANCE_LOSS_UNSPECIFIED, jobs::BalanceLoss::kAllLayers},
};

constexpr EnumPair<v1::DocumentMask, bool> kDocumentMasks[] = {
    {v1::DOCUMENT_MASK_ON, true},
    {v1::DOCUMENT_MASK_OFF, false},
    {v1::DOCUMENT_MASK_UNSPECIFIED, jobs::JobSpec().document_mask},
};

constexpr EnumPair<v1::WindowPacking, jobs::WindowPacking> kWindowPackings[] = {
    {v1::WINDOW_PACKING_CONCATENATE, jobs::WindowPacking::kConcatenate},
    {v1::WINDOW_PACKING_BEST_FIT, jobs::WindowPacking::kBestFit},
    {v1::WINDOW_PACKING_UNSPECIFIED, jobs::JobSpec().packing},
};

constexpr EnumPair<v1::OffloadPolicy, jobs::OffloadPolicy> kOffloads[] = {
    {v1::OFFLOAD_POLICY_NEVER, jobs::OffloadPolicy::kNever},
    {v1::OFFLOAD_POLICY_AUTO, jobs::OffloadPolicy::kAuto},
    {v1::OFFLOAD_POLICY_ALWAYS, jobs::OffloadPolicy::kAlways},
    {v1::OFFLOAD_POLICY_UNSPECIFIED, jobs::JobSpec().offload},
};

constexpr EnumPair<v1::InputRestore, pipeline::InputRestore> kInputRestores[] = {
    {v1::INPUT_RESTORE_KEEP, pipeline::InputRestore::kKeep},
    {v1::INPUT_RESTORE_OFFLOAD, pipeline::InputRestore::kOffload},
    {v1::INPUT_RESTORE_RESEND, pipeline::InputRestore::kResend},
    {v1::INPUT_RESTORE_UNSPECIFIED, pipeline::InputRestore::kKeep},
};
constexpr EnumPair<v1::HiddenRestore, pipeline::HiddenRestore> kHiddenRestores[] = {
    {v1::HIDDEN_RESTORE_KEEP, pipeline::HiddenRestore::kKeep},
    {v1::HIDDEN_RESTORE_OFFLOAD, pipeline::HiddenRestore::kOffload},
    {v1::HIDDEN_RESTORE_RECOMPUTE, pipeline::HiddenRestore::kRecompute},
    {v1::HIDDEN_RESTORE_UNSPECIFIED, pipeline::HiddenRestore::kKeep},
};

template <class Proto, class Ours, size_t N>
absl::Status TakeEnum(const SpecReader& reader, const EnumPair<Proto, Ours> (&pairs)[N], const char* field, Proto value,
                      Ours* out) {
  for (const auto& pair : pairs) {
    if (pair.proto != value) continue;
    *out = pair.ours;
    return absl::OkStatus();
  }
  const auto number = static_cast<int>(value);
  return reader.error({.field = field,
                       .text = absl::StrCat("value ", number, " is not known to this ", reader.name),
                       .limit = absl::StrCat("[0, ", N - 1, "]"),
                       .actual = absl::StrCat(number)});
}

template <class Proto, class Ours, size_t N>
Proto PutEnum(const EnumPair<Proto, Ours> (&pairs)[N], Ours value) {
  for (const auto& pair : pairs) {
    if (pair.ours == value) return pair.proto;
  }
  return Proto{};
}

constexpr auto ScheduleFields() {
  using M = v1::OptimizerSpec;
  using S = jobs::LrSchedule;
  return FieldTable(Field(&M::has_learning_rate, &M::learning_rate, &M::set_learning_rate, &S::peak),
                    Field(&M::has_final_fraction, &M::final_fraction, &M::set_final_fraction, &S::final_fraction),
                    Field(&M::warmup_steps, &M::set_warmup_steps, &S::warmup_steps),
                    Field(&M::has_decay_fraction, &M::decay_fraction, &M::set_decay_fraction, &S::decay_fraction));
}

constexpr auto OptimizerFields() {
  using M = v1::OptimizerSpec;
  using S = jobs::OptimizerSpec;
  return FieldTable(Field(&M::has_beta1, &M::beta1, &M::set_beta1, &S::beta1),
                    Field(&M::has_beta2, &M::beta2, &M::set_beta2, &S::beta2),
                    Field(&M::has_epsilon, &M::epsilon, &M::set_epsilon, &S::epsilon),
                    Field(&M::has_weight_decay, &M::weight_decay, &M::set_weight_decay, &S::weight_decay),
                    Field(&M::has_clip_norm, &M::clip_norm, &M::set_clip_norm, &S::clip_norm));
}

constexpr auto CheckpointSpecFields() {
  using M = v1::CheckpointSpec;
  using S = jobs::CheckpointSpec;
  return FieldTable(Field(&M::has_every_steps, &M::every_steps, &M::set_every_steps, &S::every_steps),
                    Field(&M::has_keep_last, &M::keep_last, &M::set_keep_last, &S::keep_last),
                    Field(&M::keep_every_steps, &M::set_keep_every_steps, &S::keep_every_steps),
                    Field(&M::keep_best, &M::set_keep_best, &S::keep_best));
}

constexpr auto EarlyStopFields() {
  using M = v1::EarlyStopSpec;
  using S = jobs::EarlyStopSpec;
  return FieldTable(Field(&M::patience, &M::set_patience, &S::patience),
                    Field(&M::min_improvement, &M::set_min_improvement, &S::min_improvement));
}

constexpr auto SpecFields() {
  using M = v1::JobSpec;
  using S = jobs::JobSpec;
  return FieldTable(Field(&M::base_checkpoint, &M::mutable_base_checkpoint, &S::base_checkpoint),
                    Field(&M::architecture, &M::mutable_architecture, &S::architecture),
                    Field(&M::datasets, &M::mutable_datasets, &S::datasets),
                    Field(&M::dataset_weights, &M::mutable_dataset_weights, &S::dataset_weights),
                    Field(&M::evaluation, &M::mutable_evaluation, &S::evaluation),
                    Field(&M::evaluation_names, &M::mutable_evaluation_names, &S::evaluation_names),
                    Field(&M::steps, &M::set_steps, &S::steps), Field(&M::epochs, &M::set_epochs, &S::epochs),
                    Field(&M::sequence_length, &M::set_sequence_length, &S::sequence_length),
                    Field(&M::batch_sequences, &M::set_batch_sequences, &S::batch_sequences),
                    Field(&M::micro_batch_sequences, &M::set_micro_batch_sequences, &S::micro_batch_sequences),
                    Field(&M::on_serving_workers, &M::set_on_serving_workers, &S::on_serving_workers),
                    Field(&M::z_weight, &M::set_z_weight, &S::z_weight),
                    Field(&M::capacity_factor, &M::set_capacity_factor, &S::capacity_factor),
                    Field(&M::balance_bias_rate, &M::set_balance_bias_rate, &S::balance_bias_rate),
                    Field(&M::recompute, &M::set_recompute, &S::recompute), Field(&M::zero, &M::set_zero, &S::zero),
                    Field(&M::seed, &M::set_seed, &S::seed),
                    Field(&M::evaluate_every_steps, &M::set_evaluate_every_steps, &S::evaluate_every_steps),
                    Field(&M::max_runtime_seconds, &M::set_max_runtime_seconds, &S::max_runtime_seconds));
}

// A field whose text `parse` reads; empty: as it is.  limit: what may be there.
template <class Value>
absl::Status TakeNamed(const SpecReader& reader, const char* field, const std::string& text, const char* limit,
                       absl::StatusOr<Value> (*parse)(absl::string_view), Value* out) {
  if (text.empty()) return absl::OkStatus();
  absl::StatusOr<Value> value = parse(text);
  if (!value.ok()) {
    return reader.error({.field = absl::StrCat("spec.communication.", field),
                         .text = std::string(value.status().message()),
                         .limit = limit,
                         .actual = text,
                         .is_text = true});
  }
  *out = *std::move(value);
  return absl::OkStatus();
}

absl::Status TakeCommunication(const SpecReader& reader, const v1::CommunicationSpec& message,
                               jobs::CommunicationSpec* out) {
  if (message.piece_bytes() != 0) out->piece_bytes = message.piece_bytes();
  RETURN_IF_ERROR(TakeNamed(reader, "granularity", message.granularity(), "auto or a number of chunks",
                            &jobs::ParseGranularity, &out->granularity));
  return TakeNamed(reader, "expert_packing", message.expert_packing(), "trials or a number of replicas",
                   &jobs::ParsePackingChoice, &out->packing);
}

constexpr auto LoraFields() {
  using M = v1::LoraSpec;
  using S = jobs::LoraSpec;
  return FieldTable(Field(&M::rank, &M::set_rank, &S::rank), Field(&M::alpha, &M::set_alpha, &S::alpha),
                    Field(&M::targets, &M::mutable_targets, &S::targets),
                    Field(&M::dropout, &M::set_dropout, &S::dropout));
}

jobs::DropoutSpec DropoutFromProto(const v1::DropoutSpec& message) {
  jobs::DropoutSpec dropout;
  if (message.has_embedding()) dropout.embedding = message.embedding();
  if (message.has_hidden()) dropout.hidden = message.hidden();
  if (message.has_attention()) dropout.attention = message.attention();
  return dropout;
}

void PutDropout(const jobs::DropoutSpec& dropout, v1::DropoutSpec* message) {
  if (dropout.embedding.has_value()) message->set_embedding(*dropout.embedding);
  if (dropout.hidden.has_value()) message->set_hidden(*dropout.hidden);
  if (dropout.attention.has_value()) message->set_attention(*dropout.attention);
}

constexpr auto DpoFields() {
  using M = v1::DpoSpec;
  using S = jobs::DpoSpec;
  return FieldTable(Field(&M::beta, &M::set_beta, &S::beta),
                    Field(&M::label_smoothing, &M::set_label_smoothing, &S::label_smoothing));
}

jobs::ParameterRule RuleFromProto(const v1::ParameterRule& message) {
  jobs::ParameterRule rule = {.pattern = message.pattern(), .frozen = message.frozen()};
  if (message.has_rate()) rule.rate = message.rate();
  if (message.has_weight_decay()) rule.weight_decay = message.weight_decay();
  return rule;
}

void PutRule(const jobs::ParameterRule& rule, v1::ParameterRule* message) {
  message->set_pattern(rule.pattern);
  message->set_frozen(rule.frozen);
  if (rule.rate.has_value()) message->set_rate(*rule.rate);
  if (rule.weight_decay.has_value()) message->set_weight_decay(*rule.weight_decay);
}

}  // namespace

absl::StatusOr<jobs::JobSpec> FromProto(const v1::JobSpec& message, const SpecReader& reader) {
  jobs::JobSpec spec = SpecFields().FromProto(message);
  RETURN_IF_ERROR(TakeEnum(reader, kPrecisions, "spec.precision", message.precision(), &spec.dtype));
  if (message.workers() != 0) spec.workers = message.workers();
  jobs::LrSchedule& schedule = spec.optimizer.schedule;
  RETURN_IF_ERROR(
      TakeEnum(reader, kShapes, "spec.optimizer.schedule", message.optimizer().schedule(), &schedule.shape));
  ScheduleFields().Take(message.optimizer(), &schedule);
  schedule.total_steps = spec.steps;
  OptimizerFields().Take(message.optimizer(), &spec.optimizer);
  RETURN_IF_ERROR(TakeEnum(reader, kBalances, "spec.balance", message.balance(), &spec.balance));
  if (message.has_balance_weight()) spec.balance_weight = message.balance_weight();
  RETURN_IF_ERROR(TakeCommunication(reader, message.communication(), &spec.communication));
  RETURN_IF_ERROR(TakeEnum(reader, kDocumentMasks, "spec.document_mask", message.document_mask(), &spec.document_mask));
  RETURN_IF_ERROR(TakeEnum(reader, kWindowPackings, "spec.packing", message.packing(), &spec.packing));
  RETURN_IF_ERROR(TakeEnum(reader, kOffloads, "spec.offload", message.offload(), &spec.offload));
  RETURN_IF_ERROR(TakeEnum(reader, kInputRestores, "spec.restore_input", message.restore_input(), &spec.restore.input));
  RETURN_IF_ERROR(
      TakeEnum(reader, kHiddenRestores, "spec.restore_hidden", message.restore_hidden(), &spec.restore.hidden));
  for (const v1::ParameterRule& rule : message.parameters()) spec.parameters.push_back(RuleFromProto(rule));
  LoraFields().Take(message.lora(), &spec.lora);
  DpoFields().Take(message.dpo(), &spec.dpo);
  spec.dropout = DropoutFromProto(message.dropout());
  if (message.has_router_jitter()) spec.router_jitter = message.router_jitter();
  CheckpointSpecFields().Take(message.checkpoints(), &spec.checkpoints);
  EarlyStopFields().Take(message.early_stop(), &spec.early_stop);
  spec.labels.assign(message.labels().begin(), message.labels().end());
  std::sort(spec.labels.begin(), spec.labels.end());
  return spec;
}

v1::JobSpec ToProto(const jobs::JobSpec& spec) {
  v1::JobSpec message = SpecFields().ToProto(spec);
  message.set_precision(PutEnum(kPrecisions, spec.dtype));
  message.set_workers(spec.workers);
  ScheduleFields().Put(spec.optimizer.schedule, message.mutable_optimizer());
  message.mutable_optimizer()->set_schedule(PutEnum(kShapes, spec.optimizer.schedule.shape));
  OptimizerFields().Put(spec.optimizer, message.mutable_optimizer());
  message.set_balance(PutEnum(kBalances, spec.balance));
  if (spec.balance_weight.has_value()) message.set_balance_weight(*spec.balance_weight);
  message.mutable_communication()->set_piece_bytes(spec.communication.piece_bytes);
  message.mutable_communication()->set_granularity(jobs::GranularityName(spec.communication.granularity));
  message.mutable_communication()->set_expert_packing(jobs::PackingChoiceName(spec.communication.packing));
  message.set_document_mask(PutEnum(kDocumentMasks, spec.document_mask));
  message.set_packing(PutEnum(kWindowPackings, spec.packing));
  message.set_offload(PutEnum(kOffloads, spec.offload));
  message.set_restore_input(PutEnum(kInputRestores, spec.restore.input));
  message.set_restore_hidden(PutEnum(kHiddenRestores, spec.restore.hidden));
  for (const jobs::ParameterRule& rule : spec.parameters) PutRule(rule, message.add_parameters());
  if (spec.lora != jobs::LoraSpec()) LoraFields().Put(spec.lora, message.mutable_lora());
  if (spec.dpo != jobs::DpoSpec()) DpoFields().Put(spec.dpo, message.mutable_dpo());
  if (spec.dropout != jobs::DropoutSpec()) PutDropout(spec.dropout, message.mutable_dropout());
  if (spec.router_jitter.has_value()) message.set_router_jitter(*spec.router_jitter);
  CheckpointSpecFields().Put(spec.checkpoints, message.mutable_checkpoints());
  EarlyStopFields().Put(spec.early_stop, message.mutable_early_stop());
  for (const auto& [name, value] : spec.labels) (*message.mutable_labels())[name] = value;
  return message;
}

}  // namespace switchyard::link
