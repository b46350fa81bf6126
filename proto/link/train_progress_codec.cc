#include "proto/link/train_progress_codec.h"

#include "proto/link/field_table.h"

namespace switchyard::link {
namespace {

constexpr auto SecondsFields() {
  using M = v1::StepSeconds;
  using S = jobs::StepSeconds;
  return FieldTable(
      Field(&M::total, &M::set_total, &S::total), Field(&M::forward, &M::set_forward, &S::forward),
      Field(&M::backward, &M::set_backward, &S::backward), Field(&M::all_to_all, &M::set_all_to_all, &S::all_to_all),
      Field(&M::all_reduce, &M::set_all_reduce, &S::all_reduce), Field(&M::optimizer, &M::set_optimizer, &S::optimizer),
      Field(&M::data, &M::set_data, &S::data), Field(&M::experts, &M::set_experts, &S::experts));
}

constexpr auto ProgressFields() {
  using M = v1::TrainProgress;
  using S = jobs::TrainProgress;
  return FieldTable(
      Field(&M::step, &M::set_step, &S::step), Field(&M::loss, &M::set_loss, &S::loss),
      Field(&M::balance_loss, &M::set_balance_loss, &S::balance_loss), Field(&M::z_loss, &M::set_z_loss, &S::z_loss),
      Field(&M::learning_rate, &M::set_learning_rate, &S::learning_rate),
      Field(&M::gradient_norm, &M::set_gradient_norm, &S::gradient_norm), Field(&M::tokens, &M::set_tokens, &S::tokens),
      Field(&M::tokens_per_second, &M::set_tokens_per_second, &S::tokens_per_second),
      Field(&M::dropped_rows, &M::set_dropped_rows, &S::dropped_rows),
      Field(&M::dead_experts, &M::set_dead_experts, &S::dead_experts), Field(&M::packing, &M::set_packing, &S::packing),
      Field(&M::skipped, &M::set_skipped, &S::skipped),
      Field(&M::skipped_steps, &M::set_skipped_steps, &S::skipped_steps));
}

constexpr auto EvaluationFields() {
  using M = v1::EvaluationResult;
  using S = jobs::EvaluationResult;
  return FieldTable(Field(&M::step, &M::set_step, &S::step), Field(&M::loss, &M::set_loss, &S::loss),
                    Field(&M::tokens, &M::set_tokens, &S::tokens));
}

constexpr auto CheckpointFields() {
  using M = v1::SavedCheckpoint;
  using S = jobs::SavedCheckpoint;
  return FieldTable(Field(&M::step, &M::set_step, &S::step), Field(&M::folder, &M::mutable_folder, &S::folder),
                    Field(&M::bytes, &M::set_bytes, &S::bytes), Field(&M::seconds, &M::set_seconds, &S::seconds),
                    Field(&M::saved_unix_ms, &M::set_saved_unix_ms, &S::saved_unix_ms));
}

}  // namespace

v1::TrainProgress ToProto(const jobs::TrainProgress& progress) {
  v1::TrainProgress message = ProgressFields().ToProto(progress);
  SecondsFields().Put(progress.seconds, message.mutable_seconds());
  return message;
}

jobs::TrainProgress FromProto(const v1::TrainProgress& message) {
  jobs::TrainProgress progress = ProgressFields().FromProto(message);
  SecondsFields().Take(message.seconds(), &progress.seconds);
  return progress;
}

v1::EvaluationResult ToProto(const jobs::EvaluationResult& result) { return EvaluationFields().ToProto(result); }
jobs::EvaluationResult FromProto(const v1::EvaluationResult& message) { return EvaluationFields().FromProto(message); }
v1::SavedCheckpoint ToProto(const jobs::SavedCheckpoint& checkpoint) { return CheckpointFields().ToProto(checkpoint); }
jobs::SavedCheckpoint FromProto(const v1::SavedCheckpoint& message) { return CheckpointFields().FromProto(message); }

}  // namespace switchyard::link
