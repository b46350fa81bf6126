#include "proto/link/train_progress_codec.h"

namespace switchyard::link {
namespace {

v1::StepSeconds ToProto(const jobs::StepSeconds& seconds) {
  v1::StepSeconds message;
  message.set_total(seconds.total);
  message.set_forward(seconds.forward);
  message.set_backward(seconds.backward);
  message.set_all_to_all(seconds.all_to_all);
  message.set_all_reduce(seconds.all_reduce);
  message.set_optimizer(seconds.optimizer);
  message.set_data(seconds.data);
  message.set_experts(seconds.experts);
  return message;
}

jobs::StepSeconds FromProto(const v1::StepSeconds& message) {
  return {.total = message.total(),
          .forward = message.forward(),
          .backward = message.backward(),
          .experts = message.experts(),
          .all_to_all = message.all_to_all(),
          .all_reduce = message.all_reduce(),
          .optimizer = message.optimizer(),
          .data = message.data()};
}

}  // namespace

v1::TrainProgress ToProto(const jobs::TrainProgress& progress) {
  v1::TrainProgress message;
  message.set_step(progress.step);
  message.set_loss(progress.loss);
  message.set_balance_loss(progress.balance_loss);
  message.set_z_loss(progress.z_loss);
  message.set_learning_rate(progress.learning_rate);
  message.set_gradient_norm(progress.gradient_norm);
  message.set_tokens(progress.tokens);
  message.set_tokens_per_second(progress.tokens_per_second);
  *message.mutable_seconds() = ToProto(progress.seconds);
  message.set_dropped_rows(progress.dropped_rows);
  message.set_dead_experts(progress.dead_experts);
  message.set_packing(progress.packing);
  message.set_skipped(progress.skipped);
  message.set_skipped_steps(progress.skipped_steps);
  return message;
}

jobs::TrainProgress FromProto(const v1::TrainProgress& message) {
  jobs::TrainProgress progress;
  progress.step = message.step();
  progress.loss = message.loss();
  progress.balance_loss = message.balance_loss();
  progress.z_loss = message.z_loss();
  progress.learning_rate = message.learning_rate();
  progress.gradient_norm = message.gradient_norm();
  progress.tokens = message.tokens();
  progress.tokens_per_second = message.tokens_per_second();
  progress.seconds = FromProto(message.seconds());
  progress.dropped_rows = message.dropped_rows();
  progress.dead_experts = message.dead_experts();
  progress.packing = message.packing();
  progress.skipped = message.skipped();
  progress.skipped_steps = message.skipped_steps();
  return progress;
}

v1::EvaluationResult ToProto(const jobs::EvaluationResult& result) {
  v1::EvaluationResult message;
  message.set_step(result.step);
  message.set_loss(result.loss);
  message.set_tokens(result.tokens);
  return message;
}

jobs::EvaluationResult FromProto(const v1::EvaluationResult& message) {
  return {.step = message.step(), .loss = message.loss(), .tokens = message.tokens()};
}

v1::SavedCheckpoint ToProto(const jobs::SavedCheckpoint& checkpoint) {
  v1::SavedCheckpoint message;
  message.set_step(checkpoint.step);
  message.set_folder(checkpoint.folder);
  message.set_bytes(checkpoint.bytes);
  message.set_seconds(checkpoint.seconds);
  message.set_saved_unix_ms(checkpoint.saved_unix_ms);
  return message;
}

jobs::SavedCheckpoint FromProto(const v1::SavedCheckpoint& message) {
  return {.step = message.step(),
          .folder = message.folder(),
          .bytes = message.bytes(),
          .seconds = message.seconds(),
          .saved_unix_ms = message.saved_unix_ms()};
}

}  // namespace switchyard::link
