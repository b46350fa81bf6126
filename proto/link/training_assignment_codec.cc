#include "proto/link/training_assignment_codec.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/link/field_table.h"
#include "proto/link/fleet_codec.h"
#include "proto/link/job_spec_codec.h"
#include "scheduler/base/io/model_dir.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::link {
namespace {

// Both enums have the same order; the message's begins with UNSPECIFIED.
constexpr int kFirstOutcome = v1::TRAINING_OUTCOME_FINISHED;
static_assert(v1::TRAINING_OUTCOME_STOPPED - kFirstOutcome == static_cast<int>(jobs::TrainOutcome::kStopped));
static_assert(v1::TRAINING_OUTCOME_LOST - kFirstOutcome == static_cast<int>(jobs::TrainOutcome::kLost));
static_assert(v1::TRAINING_OUTCOME_FAILED - kFirstOutcome == static_cast<int>(jobs::TrainOutcome::kFailed));
static_assert(v1::TRAINING_OUTCOME_BLOCKED - kFirstOutcome == static_cast<int>(jobs::TrainOutcome::kBlocked));

constexpr auto AttemptFields() {
  using M = v1::StartTraining;
  using S = jobs::TrainingAssignment;
  return FieldTable(Field(&M::epoch, &M::set_epoch, &S::epoch), Field(&M::attempt, &M::set_attempt, &S::attempt),
                    Field(&M::job_id, &M::mutable_job_id, &S::job_id), Field(&M::rank, &M::set_rank, &S::rank),
                    Field(&M::world, &M::set_world, &S::world),
                    Field(&M::store_token, &M::mutable_store_token, &S::store_token),
                    Field(&M::form_deadline_ms, &M::set_form_deadline_ms, &S::form_deadline_ms),
                    Field(&M::reach, &M::mutable_reach, &S::reach),
                    Field(&M::encrypt_links, &M::set_encrypt_links, &S::encrypt_links));
}

constexpr auto OriginFields() {
  using M = v1::ForkOrigin;
  using S = jobs::ForkOrigin;
  return FieldTable(Field(&M::job, &M::mutable_job, &S::job), Field(&M::step, &M::set_step, &S::step),
                    Field(&M::attempts, &M::set_attempts, &S::attempts),
                    Field(&M::other_data, &M::set_other_data, &S::other_data),
                    Field(&M::skipped_sequences, &M::set_skipped_sequences, &S::skipped_sequences));
}

absl::Status Unknown(absl::string_view field, int value) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": this worker does not know the value ", value));
}

using FileMessages = google::protobuf::RepeatedPtrField<v1::TrainDataFile>;

void PutFiles(const std::vector<jobs::TrainFile>& files, FileMessages* out) {
  for (const jobs::TrainFile& file : files) {
    v1::TrainDataFile* to = out->Add();
    to->set_root(file.of_job ? v1::TRAIN_DATA_ROOT_JOB : v1::TRAIN_DATA_ROOT_DATASETS);
    to->set_name(file.name);
    to->set_set(file.set);
  }
}

absl::StatusOr<std::vector<jobs::TrainFile>> TakeFiles(const FileMessages& messages) {
  std::vector<jobs::TrainFile> files;
  for (const v1::TrainDataFile& message : messages) {
    if (message.root() != v1::TRAIN_DATA_ROOT_DATASETS && message.root() != v1::TRAIN_DATA_ROOT_JOB) {
      return Unknown("data.root", message.root());
    }
    RETURN_IF_ERROR(jobs::CheckRelativePath(message.name(), "the dataset root"));
    files.push_back(
        {.of_job = message.root() == v1::TRAIN_DATA_ROOT_JOB, .name = message.name(), .set = message.set()});
  }
  return files;
}

absl::StatusOr<jobs::JobSpec> TakeSpec(const v1::JobSpec& message) {
  const auto error = [](const SpecProblem& problem) {
    return absl::InvalidArgumentError(absl::StrCat(problem.field, ": ", problem.text));
  };
  ASSIGN_OR_RETURN(jobs::JobSpec spec, FromProto(message, {.name = "worker", .error = error}));
  RETURN_IF_ERROR(jobs::Validate(spec));
  return spec;
}

// The files' sets are among those of the spec.
absl::Status CheckSets(const jobs::TrainingAssignment& assignment) {
  const auto sets = static_cast<int32_t>(jobs::EvaluationSetsOf(assignment.spec).size());
  for (const jobs::TrainFile& file : assignment.evaluation) {
    if (file.set >= 0 && file.set < std::max(sets, 1)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("evaluation.set: ", file.set, " of ", file.name, " is none of the spec's ", sets));
  }
  return absl::OkStatus();
}

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
      Field(&M::chunks, &M::set_chunks, &S::chunks), Field(&M::skipped, &M::set_skipped, &S::skipped),
      Field(&M::skipped_steps, &M::set_skipped_steps, &S::skipped_steps),
      Field(&M::padding, &M::set_padding, &S::padding), Field(&M::total_steps, &M::set_total_steps, &S::total_steps));
}

constexpr auto EvaluationFields() {
  using M = v1::EvaluationResult;
  using S = jobs::EvaluationResult;
  return FieldTable(Field(&M::step, &M::set_step, &S::step), Field(&M::loss, &M::set_loss, &S::loss),
                    Field(&M::tokens, &M::set_tokens, &S::tokens));
}

constexpr auto SetFields() {
  using M = v1::SetResult;
  using S = jobs::SetResult;
  return FieldTable(Field(&M::name, &M::mutable_name, &S::name), Field(&M::loss, &M::set_loss, &S::loss),
                    Field(&M::tokens, &M::set_tokens, &S::tokens));
}

constexpr auto PreferenceFields() {
  using M = v1::PreferenceFigures;
  using S = jobs::PreferenceFigures;
  return FieldTable(Field(&M::margin, &M::set_margin, &S::margin), Field(&M::accuracy, &M::set_accuracy, &S::accuracy),
                    Field(&M::pairs, &M::set_pairs, &S::pairs));
}

// Of a message and a struct that may have preferences.
template <class Struct, class Message>
void PutPreferences(const Struct& from, Message* to) {
  if (from.preferences.has_value()) PreferenceFields().Put(*from.preferences, to->mutable_preferences());
}
template <class Struct, class Message>
void TakePreferences(const Message& from, Struct* to) {
  if (from.has_preferences()) to->preferences = PreferenceFields().FromProto(from.preferences());
}

constexpr auto CheckpointFields() {
  using M = v1::SavedCheckpoint;
  using S = jobs::SavedCheckpoint;
  return FieldTable(Field(&M::step, &M::set_step, &S::step), Field(&M::folder, &M::mutable_folder, &S::folder),
                    Field(&M::bytes, &M::set_bytes, &S::bytes), Field(&M::seconds, &M::set_seconds, &S::seconds),
                    Field(&M::saved_unix_ms, &M::set_saved_unix_ms, &S::saved_unix_ms));
}

}  // namespace

v1::StartTraining ToProto(const jobs::TrainingAssignment& assignment) {
  v1::StartTraining message = AttemptFields().ToProto(assignment);
  *message.mutable_spec() = ToProto(assignment.spec);
  PutFiles(assignment.data, message.mutable_data());
  PutFiles(assignment.evaluation, message.mutable_evaluation());
  if (assignment.origin.has_value()) *message.mutable_origin() = ToProto(*assignment.origin);
  return message;
}

absl::StatusOr<jobs::TrainingAssignment> FromProto(const v1::StartTraining& message) {
  jobs::TrainingAssignment assignment = AttemptFields().FromProto(message);
  RETURN_IF_ERROR(CheckRank(assignment.rank, assignment.world));
  ASSIGN_OR_RETURN(assignment.spec, TakeSpec(message.spec()));
  RETURN_IF_ERROR(CheckPlainName(assignment.job_id));
  ASSIGN_OR_RETURN(assignment.data, TakeFiles(message.data()));
  ASSIGN_OR_RETURN(assignment.evaluation, TakeFiles(message.evaluation()));
  RETURN_IF_ERROR(CheckSets(assignment));
  if (message.has_origin()) assignment.origin = FromProto(message.origin());
  return assignment;
}

v1::StopKind ToProto(jobs::StopKind kind) {
  return kind == jobs::StopKind::kSave ? v1::STOP_KIND_SAVE : v1::STOP_KIND_NOW;
}

absl::StatusOr<jobs::StopKind> FromProto(v1::StopKind kind) {
  if (kind == v1::STOP_KIND_SAVE) return jobs::StopKind::kSave;
  if (kind == v1::STOP_KIND_NOW) return jobs::StopKind::kNow;
  return Unknown("kind", kind);
}

v1::TrainingEnded ToProto(const jobs::TrainEnd& end, int64_t epoch) {
  v1::TrainingEnded message;
  message.set_epoch(epoch);
  message.set_outcome(static_cast<v1::TrainingOutcome>(static_cast<int>(end.outcome) + kFirstOutcome));
  message.set_code(static_cast<int32_t>(end.status.code()));
  message.set_message(end.status.ok() ? end.note : std::string(end.status.message()));
  return message;
}

jobs::TrainEnd FromProto(const v1::TrainingEnded& message) {
  const bool known = message.outcome() >= kFirstOutcome && v1::TrainingOutcome_IsValid(message.outcome());
  const jobs::TrainOutcome outcome =
      known ? static_cast<jobs::TrainOutcome>(message.outcome() - kFirstOutcome) : jobs::TrainOutcome::kLost;
  if (outcome == jobs::TrainOutcome::kFinished) return {outcome, absl::OkStatus(), message.message()};
  if (outcome == jobs::TrainOutcome::kStopped) return {outcome, absl::OkStatus()};
  const auto code = message.code() == 0 ? absl::StatusCode::kUnknown : static_cast<absl::StatusCode>(message.code());
  return {outcome, absl::Status(code, message.message())};
}

v1::TrainProgress ToProto(const jobs::TrainProgress& progress) {
  v1::TrainProgress message = ProgressFields().ToProto(progress);
  SecondsFields().Put(progress.seconds, message.mutable_seconds());
  PutPreferences(progress, &message);
  return message;
}

jobs::TrainProgress FromProto(const v1::TrainProgress& message) {
  jobs::TrainProgress progress = ProgressFields().FromProto(message);
  SecondsFields().Take(message.seconds(), &progress.seconds);
  TakePreferences(message, &progress);
  return progress;
}

v1::ForkOrigin ToProto(const jobs::ForkOrigin& origin) { return OriginFields().ToProto(origin); }
jobs::ForkOrigin FromProto(const v1::ForkOrigin& message) { return OriginFields().FromProto(message); }

v1::EvaluationResult ToProto(const jobs::EvaluationResult& result) {
  v1::EvaluationResult message = EvaluationFields().ToProto(result);
  PutPreferences(result, &message);
  for (const jobs::SetResult& set : result.sets) {
    v1::SetResult* const to = message.add_sets();
    SetFields().Put(set, to);
    PutPreferences(set, to);
  }
  return message;
}

jobs::EvaluationResult FromProto(const v1::EvaluationResult& message) {
  jobs::EvaluationResult result = EvaluationFields().FromProto(message);
  TakePreferences(message, &result);
  for (const v1::SetResult& set : message.sets()) {
    TakePreferences(set, &result.sets.emplace_back(SetFields().FromProto(set)));
  }
  return result;
}

v1::TrainingEvaluated ToProto(const jobs::EvaluationReport& report, int64_t epoch) {
  v1::TrainingEvaluated message;
  message.set_epoch(epoch);
  *message.mutable_result() = ToProto(report.result);
  message.set_best_step(report.best_step);
  message.set_best_loss(report.best_loss);
  return message;
}

jobs::EvaluationReport FromProto(const v1::TrainingEvaluated& message) {
  return {.result = FromProto(message.result()), .best_step = message.best_step(), .best_loss = message.best_loss()};
}

v1::SavedCheckpoint ToProto(const jobs::SavedCheckpoint& checkpoint) { return CheckpointFields().ToProto(checkpoint); }
jobs::SavedCheckpoint FromProto(const v1::SavedCheckpoint& message) { return CheckpointFields().FromProto(message); }

}  // namespace switchyard::link
