#include "server/jobs/api/job_convert.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/support/errors.h"
#include "scheduler/base/status_macros.h"
#include "server/jobs/api/spec_convert.h"

namespace switchyard {
namespace {

// The enums' order is the same; the message's has one before.
constexpr int kFirstState = v1::JOB_STATE_PENDING;
static_assert(v1::JOB_STATE_RUNNING - kFirstState == static_cast<int>(JobState::kRunning));
static_assert(v1::JOB_STATE_CANCELLED - kFirstState == static_cast<int>(JobState::kCancelled));
static_assert(v1::JOB_STATE_CANCELLED - kFirstState == kNumJobStates - 1);

v1::TrainProgress ToProto(const TrainProgress& progress) {
  v1::TrainProgress message;
  message.set_step(progress.step);
  message.set_loss(progress.loss);
  message.set_balance_loss(progress.balance_loss);
  message.set_z_loss(progress.z_loss);
  message.set_learning_rate(progress.learning_rate);
  message.set_gradient_norm(progress.gradient_norm);
  message.set_tokens(progress.tokens);
  message.set_tokens_per_second(progress.tokens_per_second);
  v1::StepSeconds* seconds = message.mutable_seconds();
  seconds->set_total(progress.seconds.total);
  seconds->set_forward(progress.seconds.forward);
  seconds->set_backward(progress.seconds.backward);
  seconds->set_all_to_all(progress.seconds.all_to_all);
  seconds->set_all_reduce(progress.seconds.all_reduce);
  seconds->set_optimizer(progress.seconds.optimizer);
  seconds->set_data(progress.seconds.data);
  seconds->set_experts(progress.seconds.experts);
  message.set_dropped_rows(progress.dropped_rows);
  message.set_dead_experts(progress.dead_experts);
  message.set_packing(progress.packing);
  message.set_skipped(progress.skipped);
  message.set_skipped_steps(progress.skipped_steps);
  return message;
}

v1::EvaluationResult ToProto(const EvaluationResult& result) {
  v1::EvaluationResult message;
  message.set_step(result.step);
  message.set_loss(result.loss);
  message.set_tokens(result.tokens);
  return message;
}

v1::SavedCheckpoint ToProto(const SavedCheckpoint& checkpoint) {
  v1::SavedCheckpoint message;
  message.set_step(checkpoint.step);
  message.set_folder(checkpoint.folder);
  message.set_bytes(checkpoint.bytes);
  message.set_seconds(checkpoint.seconds);
  message.set_saved_unix_ms(checkpoint.saved_unix_ms);
  return message;
}

}  // namespace

v1::JobState ToProto(JobState state) { return static_cast<v1::JobState>(static_cast<int>(state) + kFirstState); }

absl::StatusOr<JobState> FromProto(v1::JobState state, absl::string_view field) {
  const int index = static_cast<int>(state) - kFirstState;
  if (index >= 0 && index < kNumJobStates) return static_cast<JobState>(index);
  return BadField(field, absl::StrCat("value ", static_cast<int>(state), " is no state of a job"),
                  absl::StrCat("[", kFirstState, ", ", kFirstState + kNumJobStates - 1, "]"),
                  absl::StrCat(static_cast<int>(state)));
}

TrainProgress FromProto(const v1::TrainProgress& message) {
  TrainProgress progress;
  progress.step = message.step();
  progress.loss = message.loss();
  progress.balance_loss = message.balance_loss();
  progress.z_loss = message.z_loss();
  progress.learning_rate = message.learning_rate();
  progress.gradient_norm = message.gradient_norm();
  progress.tokens = message.tokens();
  progress.tokens_per_second = message.tokens_per_second();
  const v1::StepSeconds& seconds = message.seconds();
  progress.seconds = {.total = seconds.total(),
                      .forward = seconds.forward(),
                      .backward = seconds.backward(),
                      .experts = seconds.experts(),
                      .all_to_all = seconds.all_to_all(),
                      .all_reduce = seconds.all_reduce(),
                      .optimizer = seconds.optimizer(),
                      .data = seconds.data()};
  progress.dropped_rows = message.dropped_rows();
  progress.dead_experts = message.dead_experts();
  progress.packing = message.packing();
  progress.skipped = message.skipped();
  progress.skipped_steps = message.skipped_steps();
  return progress;
}

EvaluationResult FromProto(const v1::EvaluationResult& message) {
  return {.step = message.step(), .loss = message.loss(), .tokens = message.tokens()};
}

SavedCheckpoint FromProto(const v1::SavedCheckpoint& message) {
  return {.step = message.step(),
          .folder = message.folder(),
          .bytes = message.bytes(),
          .seconds = message.seconds(),
          .saved_unix_ms = message.saved_unix_ms()};
}

v1::Job ToProto(const Job& job) {
  v1::Job message;
  message.set_id(job.id);
  message.set_request_id(job.request_id);
  *message.mutable_spec() = ToProto(job.spec);
  message.set_submitted_workers(job.submitted_workers);
  message.set_state(ToProto(job.state));
  message.set_attempt(job.attempt);
  if (!job.error.ok()) *message.mutable_error() = ToRpcStatus(job.error);
  if (job.progress.has_value()) *message.mutable_progress() = ToProto(*job.progress);
  message.set_seconds_left(job.seconds_left);
  if (job.evaluation.has_value()) *message.mutable_evaluation() = ToProto(*job.evaluation);
  if (job.checkpoint.has_value()) *message.mutable_checkpoint() = ToProto(*job.checkpoint);
  for (const StateChange& change : job.changes) {
    v1::StateChange* out = message.add_changes();
    out->set_state(ToProto(change.state));
    out->set_unix_ms(change.unix_ms);
    out->set_reason(change.reason);
  }
  message.set_created_unix_ms(job.created_unix_ms);
  message.set_started_unix_ms(job.started_unix_ms);
  message.set_ended_unix_ms(job.ended_unix_ms);
  message.set_note(job.note);
  message.set_prepared_bytes(job.prepared_bytes);
  message.set_prepare_bytes(job.prepare_bytes);
  return message;
}

absl::StatusOr<Job> FromProto(const v1::Job& message) {
  Job job;
  job.id = message.id();
  job.request_id = message.request_id();
  ASSIGN_OR_RETURN(job.spec, FromProto(message.spec()));
  job.submitted_workers = message.submitted_workers();
  ASSIGN_OR_RETURN(job.state, FromProto(message.state(), "state"));
  job.attempt = message.attempt();
  if (message.has_error()) job.error = FromRpcStatus(message.error());
  if (message.has_progress()) job.progress = FromProto(message.progress());
  if (message.has_evaluation()) job.evaluation = FromProto(message.evaluation());
  if (message.has_checkpoint()) job.checkpoint = FromProto(message.checkpoint());
  for (const v1::StateChange& change : message.changes()) {
    JobState state;
    ASSIGN_OR_RETURN(state, FromProto(change.state(), "changes.state"));
    job.changes.push_back({state, change.unix_ms(), change.reason()});
  }
  job.created_unix_ms = message.created_unix_ms();
  job.started_unix_ms = message.started_unix_ms();
  job.ended_unix_ms = message.ended_unix_ms();
  return job;
}

}  // namespace switchyard
