#include "workers/session/service_job.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/io/model_dir.h"
#include "scheduler/base/status_macros.h"

namespace switchyard {
namespace {

absl::Status Unknown(absl::string_view field, int value) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": this worker does not know the value ", value));
}

absl::StatusOr<TrainDType> DTypeFromProto(v1::TrainPrecision precision) {
  switch (precision) {
    case v1::TRAIN_PRECISION_UNSPECIFIED:
    case v1::TRAIN_PRECISION_FP32:
      return TrainDType::kF32;
    case v1::TRAIN_PRECISION_BF16:
      return TrainDType::kBf16;
    case v1::TRAIN_PRECISION_FP64:
      return TrainDType::kF64;
    default:
      return Unknown("precision", precision);
  }
}

absl::StatusOr<LrShape> ShapeFromProto(v1::LrShape shape) {
  switch (shape) {
    case v1::LR_SHAPE_UNSPECIFIED:
    case v1::LR_SHAPE_COSINE:
      return LrShape::kCosine;
    case v1::LR_SHAPE_LINEAR:
      return LrShape::kLinear;
    case v1::LR_SHAPE_CONSTANT:
      return LrShape::kConstant;
    case v1::LR_SHAPE_WSD:
      return LrShape::kWsd;
    default:
      return Unknown("optimizer.schedule", shape);
  }
}

absl::StatusOr<BalanceLoss> BalanceFromProto(v1::BalanceLoss balance) {
  switch (balance) {
    case v1::BALANCE_LOSS_UNSPECIFIED:
    case v1::BALANCE_LOSS_ALL_LAYERS:
      return BalanceLoss::kAllLayers;
    case v1::BALANCE_LOSS_NONE:
      return BalanceLoss::kNone;
    case v1::BALANCE_LOSS_PER_LAYER:
      return BalanceLoss::kPerLayer;
    default:
      return Unknown("balance", balance);
  }
}

absl::StatusOr<OffloadPolicy> OffloadFromProto(v1::OffloadPolicy offload) {
  switch (offload) {
    case v1::OFFLOAD_POLICY_NEVER:
      return OffloadPolicy::kNever;
    case v1::OFFLOAD_POLICY_UNSPECIFIED:
    case v1::OFFLOAD_POLICY_AUTO:
      return OffloadPolicy::kAuto;
    case v1::OFFLOAD_POLICY_ALWAYS:
      return OffloadPolicy::kAlways;
    default:
      return Unknown("offload", offload);
  }
}

absl::StatusOr<OptimizerSpec> OptimizerFromProto(const v1::OptimizerSpec& message) {
  OptimizerSpec optimizer;
  LrSchedule& schedule = optimizer.schedule;
  ASSIGN_OR_RETURN(schedule.shape, ShapeFromProto(message.schedule()));
  if (message.has_learning_rate()) schedule.peak = message.learning_rate();
  if (message.has_final_fraction()) schedule.final_fraction = message.final_fraction();
  schedule.warmup_steps = message.warmup_steps();
  if (message.has_decay_fraction()) schedule.decay_fraction = message.decay_fraction();
  if (message.has_beta1()) optimizer.beta1 = message.beta1();
  if (message.has_beta2()) optimizer.beta2 = message.beta2();
  if (message.has_epsilon()) optimizer.epsilon = message.epsilon();
  if (message.has_weight_decay()) optimizer.weight_decay = message.weight_decay();
  if (message.has_clip_norm()) optimizer.clip_norm = message.clip_norm();
  return optimizer;
}

absl::StatusOr<std::vector<TrainFile>> FilesFromProto(
    const google::protobuf::RepeatedPtrField<v1::TrainDataFile>& messages) {
  std::vector<TrainFile> files;
  for (const v1::TrainDataFile& message : messages) {
    if (message.root() != v1::TRAIN_DATA_ROOT_DATASETS && message.root() != v1::TRAIN_DATA_ROOT_JOB) {
      return Unknown("data.root", message.root());
    }
    RETURN_IF_ERROR(CheckRelativePath(message.name(), "the dataset root"));
    files.push_back({.of_job = message.root() == v1::TRAIN_DATA_ROOT_JOB, .name = message.name()});
  }
  return files;
}

}  // namespace

absl::StatusOr<JobSpec> JobSpecFromProto(const v1::JobSpec& message) {
  JobSpec spec;
  spec.base_checkpoint = message.base_checkpoint();
  spec.architecture = message.architecture();
  spec.datasets.assign(message.datasets().begin(), message.datasets().end());
  spec.evaluation.assign(message.evaluation().begin(), message.evaluation().end());
  ASSIGN_OR_RETURN(spec.dtype, DTypeFromProto(message.precision()));
  spec.steps = message.steps();
  spec.sequence_length = message.sequence_length();
  spec.batch_sequences = message.batch_sequences();
  spec.micro_batch_sequences = message.micro_batch_sequences();
  if (message.workers() != 0) spec.workers = message.workers();
  spec.on_serving_workers = message.on_serving_workers();
  ASSIGN_OR_RETURN(spec.optimizer, OptimizerFromProto(message.optimizer()));
  spec.optimizer.schedule.total_steps = spec.steps;
  ASSIGN_OR_RETURN(spec.balance, BalanceFromProto(message.balance()));
  if (message.has_balance_weight()) spec.balance_weight = message.balance_weight();
  spec.z_weight = message.z_weight();
  spec.capacity_factor = message.capacity_factor();
  spec.balance_bias_rate = message.balance_bias_rate();
  spec.recompute = message.recompute();
  spec.seed = message.seed();
  spec.evaluate_every_steps = message.evaluate_every_steps();
  const v1::CheckpointSpec& checkpoints = message.checkpoints();
  if (checkpoints.has_every_steps()) spec.checkpoints.every_steps = checkpoints.every_steps();
  if (checkpoints.has_keep_last()) spec.checkpoints.keep_last = checkpoints.keep_last();
  spec.checkpoints.keep_every_steps = checkpoints.keep_every_steps();
  spec.max_runtime_seconds = message.max_runtime_seconds();
  for (const auto& [name, value] : message.labels()) spec.labels.emplace_back(name, value);
  const v1::CommunicationSpec& communication = message.communication();
  if (!communication.mode().empty()) {
    ASSIGN_OR_RETURN(spec.communication.mode, ParseCommMode(communication.mode()));
  }
  if (communication.piece_bytes() != 0) spec.communication.piece_bytes = communication.piece_bytes();
  ASSIGN_OR_RETURN(spec.offload, OffloadFromProto(message.offload()));
  RETURN_IF_ERROR(Validate(spec));
  return spec;
}

absl::StatusOr<TrainSeat> FromProto(const v1::StartTraining& message) {
  TrainSeat seat;
  seat.epoch = message.epoch();
  seat.rank = message.rank();
  seat.world = message.world();
  if (seat.world < 1 || seat.rank < 0 || seat.rank >= seat.world) {
    return absl::InvalidArgumentError(absl::StrCat("no seat: rank ", seat.rank, " of ", seat.world));
  }
  seat.token = message.store_token();
  seat.reach = message.reach();
  seat.form_timeout = absl::Milliseconds(message.form_deadline_ms());
  ASSIGN_OR_RETURN(seat.job.spec, JobSpecFromProto(message.spec()));
  RETURN_IF_ERROR(CheckPlainName(message.job_id()));
  seat.job.job_id = message.job_id();
  seat.job.attempt = message.attempt();
  ASSIGN_OR_RETURN(seat.job.data, FilesFromProto(message.data()));
  ASSIGN_OR_RETURN(seat.job.evaluation, FilesFromProto(message.evaluation()));
  return seat;
}

absl::StatusOr<StopKind> FromProto(v1::StopKind kind) {
  if (kind == v1::STOP_KIND_SAVE) return StopKind::kSave;
  if (kind == v1::STOP_KIND_NOW) return StopKind::kNow;
  return Unknown("kind", kind);
}

v1::LinkRequest StartedMessage(int64_t epoch, int64_t step, const std::vector<std::string>& warnings) {
  v1::LinkRequest message;
  message.mutable_training_started()->set_epoch(epoch);
  message.mutable_training_started()->set_step(step);
  for (const std::string& warning : warnings) message.mutable_training_started()->add_warnings(warning);
  return message;
}

v1::LinkRequest StepMessage(int64_t epoch, const StepProgress& progress) {
  v1::LinkRequest message;
  message.mutable_training_step()->set_epoch(epoch);
  v1::TrainProgress* const out = message.mutable_training_step()->mutable_progress();
  out->set_step(progress.step);
  out->set_loss(progress.report.loss);
  out->set_balance_loss(progress.report.balance_loss);
  out->set_z_loss(progress.report.z_loss);
  out->set_learning_rate(progress.learning_rate);
  out->set_gradient_norm(progress.report.gradient_norm);
  out->set_tokens(progress.tokens);
  out->set_tokens_per_second(progress.tokens_per_second);
  out->set_dropped_rows(progress.report.dropped_rows);
  out->set_dead_experts(progress.report.dead_experts);
  out->set_packing(progress.packing);
  out->set_skipped(progress.report.skipped);
  out->set_skipped_steps(progress.skipped_steps);
  v1::StepSeconds* const seconds = out->mutable_seconds();
  seconds->set_total(progress.total_seconds);
  seconds->set_forward(progress.report.seconds.forward);
  seconds->set_backward(progress.report.seconds.backward);
  seconds->set_all_to_all(progress.report.seconds.all_to_all);
  seconds->set_all_reduce(progress.report.seconds.all_reduce);
  seconds->set_optimizer(progress.report.seconds.optimizer);
  seconds->set_data(progress.data_seconds);
  seconds->set_experts(progress.report.seconds.experts + progress.report.seconds.backward_experts);
  return message;
}

v1::LinkRequest EvaluatedMessage(int64_t epoch, int64_t step, double loss, int64_t tokens) {
  v1::LinkRequest message;
  message.mutable_training_evaluated()->set_epoch(epoch);
  v1::EvaluationResult* const out = message.mutable_training_evaluated()->mutable_result();
  out->set_step(step);
  out->set_loss(loss);
  out->set_tokens(tokens);
  return message;
}

v1::LinkRequest SavedMessage(int64_t epoch, const std::string& job_id, const SavedStep& saved, absl::Time now) {
  v1::LinkRequest message;
  message.mutable_training_saved()->set_epoch(epoch);
  v1::SavedCheckpoint* const out = message.mutable_training_saved()->mutable_checkpoint();
  out->set_step(saved.step);
  out->set_folder(absl::StrCat(job_id, "/", saved.folder));
  out->set_bytes(saved.bytes);
  out->set_seconds(saved.seconds);
  out->set_saved_unix_ms(absl::ToUnixMillis(now));
  return message;
}

v1::LinkRequest NoteMessage(int64_t epoch, const std::string& text) {
  v1::LinkRequest message;
  message.mutable_training_note()->set_epoch(epoch);
  message.mutable_training_note()->set_text(text);
  return message;
}

v1::LinkRequest EndedMessage(int64_t epoch, const TrainEnd& end) {
  constexpr v1::TrainingOutcome kOutcomes[] = {v1::TRAINING_OUTCOME_FINISHED, v1::TRAINING_OUTCOME_STOPPED,
                                               v1::TRAINING_OUTCOME_LOST, v1::TRAINING_OUTCOME_FAILED,
                                               v1::TRAINING_OUTCOME_BLOCKED};
  v1::LinkRequest message;
  v1::TrainingEnded* const out = message.mutable_training_ended();
  out->set_epoch(epoch);
  out->set_outcome(kOutcomes[static_cast<int>(end.outcome)]);
  out->set_code(static_cast<int32_t>(end.status.code()));
  out->set_message(std::string(end.status.message()));
  return message;
}

}  // namespace switchyard
