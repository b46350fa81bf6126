#include "proto/link/job_spec_codec.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::link {
namespace {

template <class Proto, class Ours>
struct EnumPair {
  Proto proto;
  Ours ours;
};

// The first pair of a value of ours is the one that ToProto takes.
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

constexpr EnumPair<v1::OffloadPolicy, jobs::OffloadPolicy> kOffloads[] = {
    {v1::OFFLOAD_POLICY_NEVER, jobs::OffloadPolicy::kNever},
    {v1::OFFLOAD_POLICY_AUTO, jobs::OffloadPolicy::kAuto},
    {v1::OFFLOAD_POLICY_ALWAYS, jobs::OffloadPolicy::kAlways},
    {v1::OFFLOAD_POLICY_UNSPECIFIED, jobs::JobSpec().offload},
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

absl::Status TakeOptimizer(const SpecReader& reader, const v1::OptimizerSpec& message, jobs::OptimizerSpec* out) {
  RETURN_IF_ERROR(TakeEnum(reader, kShapes, "spec.optimizer.schedule", message.schedule(), &out->schedule.shape));
  if (message.has_learning_rate()) out->schedule.peak = message.learning_rate();
  if (message.has_final_fraction()) out->schedule.final_fraction = message.final_fraction();
  out->schedule.warmup_steps = message.warmup_steps();
  if (message.has_decay_fraction()) out->schedule.decay_fraction = message.decay_fraction();
  if (message.has_beta1()) out->beta1 = message.beta1();
  if (message.has_beta2()) out->beta2 = message.beta2();
  if (message.has_epsilon()) out->epsilon = message.epsilon();
  if (message.has_weight_decay()) out->weight_decay = message.weight_decay();
  if (message.has_clip_norm()) out->clip_norm = message.clip_norm();
  return absl::OkStatus();
}

absl::Status TakeCommunication(const SpecReader& reader, const v1::CommunicationSpec& message,
                               jobs::CommunicationSpec* out) {
  if (!message.mode().empty()) {
    const absl::StatusOr<jobs::CommMode> mode = jobs::ParseCommMode(message.mode());
    if (!mode.ok()) {
      return reader.error({.field = "spec.communication.mode",
                           .text = std::string(mode.status().message()),
                           .limit = "a known mode",
                           .actual = message.mode(),
                           .is_text = true});
    }
    out->mode = *mode;
  }
  if (message.piece_bytes() != 0) out->piece_bytes = message.piece_bytes();
  return absl::OkStatus();
}

void PutOptimizer(const jobs::OptimizerSpec& spec, v1::OptimizerSpec* out) {
  out->set_schedule(PutEnum(kShapes, spec.schedule.shape));
  out->set_learning_rate(spec.schedule.peak);
  out->set_final_fraction(spec.schedule.final_fraction);
  out->set_warmup_steps(spec.schedule.warmup_steps);
  out->set_decay_fraction(spec.schedule.decay_fraction);
  out->set_beta1(spec.beta1);
  out->set_beta2(spec.beta2);
  out->set_epsilon(spec.epsilon);
  out->set_weight_decay(spec.weight_decay);
  out->set_clip_norm(spec.clip_norm);
}

}  // namespace

absl::StatusOr<jobs::JobSpec> FromProto(const v1::JobSpec& message, const SpecReader& reader) {
  jobs::JobSpec spec;
  spec.base_checkpoint = message.base_checkpoint();
  spec.architecture = message.architecture();
  spec.datasets.assign(message.datasets().begin(), message.datasets().end());
  spec.evaluation.assign(message.evaluation().begin(), message.evaluation().end());
  RETURN_IF_ERROR(TakeEnum(reader, kPrecisions, "spec.precision", message.precision(), &spec.dtype));
  spec.steps = message.steps();
  spec.sequence_length = message.sequence_length();
  spec.batch_sequences = message.batch_sequences();
  spec.micro_batch_sequences = message.micro_batch_sequences();
  if (message.workers() != 0) spec.workers = message.workers();
  spec.on_serving_workers = message.on_serving_workers();
  RETURN_IF_ERROR(TakeOptimizer(reader, message.optimizer(), &spec.optimizer));
  spec.optimizer.schedule.total_steps = spec.steps;
  RETURN_IF_ERROR(TakeEnum(reader, kBalances, "spec.balance", message.balance(), &spec.balance));
  if (message.has_balance_weight()) spec.balance_weight = message.balance_weight();
  spec.z_weight = message.z_weight();
  spec.capacity_factor = message.capacity_factor();
  spec.balance_bias_rate = message.balance_bias_rate();
  spec.recompute = message.recompute();
  RETURN_IF_ERROR(TakeCommunication(reader, message.communication(), &spec.communication));
  RETURN_IF_ERROR(TakeEnum(reader, kOffloads, "spec.offload", message.offload(), &spec.offload));
  spec.seed = message.seed();
  spec.evaluate_every_steps = message.evaluate_every_steps();
  const v1::CheckpointSpec& checkpoints = message.checkpoints();
  if (checkpoints.has_every_steps()) spec.checkpoints.every_steps = checkpoints.every_steps();
  if (checkpoints.has_keep_last()) spec.checkpoints.keep_last = checkpoints.keep_last();
  spec.checkpoints.keep_every_steps = checkpoints.keep_every_steps();
  spec.max_runtime_seconds = message.max_runtime_seconds();
  spec.labels.assign(message.labels().begin(), message.labels().end());
  std::sort(spec.labels.begin(), spec.labels.end());
  return spec;
}

v1::JobSpec ToProto(const jobs::JobSpec& spec) {
  v1::JobSpec message;
  message.set_base_checkpoint(spec.base_checkpoint);
  message.set_architecture(spec.architecture);
  message.mutable_datasets()->Add(spec.datasets.begin(), spec.datasets.end());
  message.mutable_evaluation()->Add(spec.evaluation.begin(), spec.evaluation.end());
  message.set_precision(PutEnum(kPrecisions, spec.dtype));
  message.set_steps(spec.steps);
  message.set_sequence_length(spec.sequence_length);
  message.set_batch_sequences(spec.batch_sequences);
  message.set_micro_batch_sequences(spec.micro_batch_sequences);
  message.set_workers(spec.workers);
  message.set_on_serving_workers(spec.on_serving_workers);
  PutOptimizer(spec.optimizer, message.mutable_optimizer());
  message.set_balance(PutEnum(kBalances, spec.balance));
  if (spec.balance_weight.has_value()) message.set_balance_weight(*spec.balance_weight);
  message.set_z_weight(spec.z_weight);
  message.set_capacity_factor(spec.capacity_factor);
  message.set_balance_bias_rate(spec.balance_bias_rate);
  message.set_recompute(spec.recompute);
  message.mutable_communication()->set_mode(std::string(jobs::CommModeName(spec.communication.mode)));
  message.mutable_communication()->set_piece_bytes(spec.communication.piece_bytes);
  message.set_offload(PutEnum(kOffloads, spec.offload));
  message.set_seed(spec.seed);
  message.set_evaluate_every_steps(spec.evaluate_every_steps);
  message.mutable_checkpoints()->set_every_steps(spec.checkpoints.every_steps);
  message.mutable_checkpoints()->set_keep_last(spec.checkpoints.keep_last);
  message.mutable_checkpoints()->set_keep_every_steps(spec.checkpoints.keep_every_steps);
  message.set_max_runtime_seconds(spec.max_runtime_seconds);
  for (const auto& [name, value] : spec.labels) (*message.mutable_labels())[name] = value;
  return message;
}

}  // namespace switchyard::link
