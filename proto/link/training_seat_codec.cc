#include "proto/link/training_seat_codec.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/link/job_spec_codec.h"
#include "scheduler/base/io/model_dir.h"
#include "scheduler/base/status_macros.h"

namespace switchyard {
namespace {

// The enums' order is the same; the message's has one before.
constexpr int kFirstOutcome = v1::TRAINING_OUTCOME_FINISHED;
static_assert(v1::TRAINING_OUTCOME_STOPPED - kFirstOutcome == static_cast<int>(TrainOutcome::kStopped));
static_assert(v1::TRAINING_OUTCOME_LOST - kFirstOutcome == static_cast<int>(TrainOutcome::kLost));
static_assert(v1::TRAINING_OUTCOME_FAILED - kFirstOutcome == static_cast<int>(TrainOutcome::kFailed));
static_assert(v1::TRAINING_OUTCOME_BLOCKED - kFirstOutcome == static_cast<int>(TrainOutcome::kBlocked));

absl::Status Unknown(absl::string_view field, int value) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": this worker does not know the value ", value));
}

using FileMessages = google::protobuf::RepeatedPtrField<v1::TrainDataFile>;

void PutFiles(const std::vector<TrainFile>& files, FileMessages* out) {
  for (const TrainFile& file : files) {
    v1::TrainDataFile* to = out->Add();
    to->set_root(file.of_job ? v1::TRAIN_DATA_ROOT_JOB : v1::TRAIN_DATA_ROOT_DATASETS);
    to->set_name(file.name);
  }
}

absl::StatusOr<std::vector<TrainFile>> TakeFiles(const FileMessages& messages) {
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

absl::StatusOr<JobSpec> TakeSpec(const v1::JobSpec& message) {
  const auto error = [](const SpecProblem& problem) {
    return absl::InvalidArgumentError(absl::StrCat(problem.field, ": ", problem.text));
  };
  ASSIGN_OR_RETURN(JobSpec spec, FromProto(message, {.name = "worker", .error = error}));
  RETURN_IF_ERROR(Validate(spec));
  return spec;
}

}  // namespace

v1::StartTraining ToProto(const TrainingSeat& seat) {
  v1::StartTraining message;
  message.set_epoch(seat.epoch);
  message.set_attempt(seat.attempt);
  message.set_job_id(seat.job_id);
  *message.mutable_spec() = ToProto(seat.spec);
  PutFiles(seat.data, message.mutable_data());
  PutFiles(seat.evaluation, message.mutable_evaluation());
  message.set_rank(seat.rank);
  message.set_world(seat.world);
  message.set_store_token(seat.store_token);
  message.set_form_deadline_ms(seat.form_deadline_ms);
  message.set_reach(seat.reach);
  return message;
}

absl::StatusOr<TrainingSeat> FromProto(const v1::StartTraining& message) {
  TrainingSeat seat;
  seat.epoch = message.epoch();
  seat.attempt = message.attempt();
  seat.rank = message.rank();
  seat.world = message.world();
  if (seat.world < 1 || seat.rank < 0 || seat.rank >= seat.world) {
    return absl::InvalidArgumentError(absl::StrCat("no seat: rank ", seat.rank, " of ", seat.world));
  }
  seat.store_token = message.store_token();
  seat.form_deadline_ms = message.form_deadline_ms();
  seat.reach = message.reach();
  ASSIGN_OR_RETURN(seat.spec, TakeSpec(message.spec()));
  RETURN_IF_ERROR(CheckPlainName(message.job_id()));
  seat.job_id = message.job_id();
  ASSIGN_OR_RETURN(seat.data, TakeFiles(message.data()));
  ASSIGN_OR_RETURN(seat.evaluation, TakeFiles(message.evaluation()));
  return seat;
}

v1::StopKind ToProto(StopKind kind) { return kind == StopKind::kSave ? v1::STOP_KIND_SAVE : v1::STOP_KIND_NOW; }

absl::StatusOr<StopKind> FromProto(v1::StopKind kind) {
  if (kind == v1::STOP_KIND_SAVE) return StopKind::kSave;
  if (kind == v1::STOP_KIND_NOW) return StopKind::kNow;
  return Unknown("kind", kind);
}

v1::TrainingEnded ToProto(const TrainEnd& end, int64_t epoch) {
  v1::TrainingEnded message;
  message.set_epoch(epoch);
  message.set_outcome(static_cast<v1::TrainingOutcome>(static_cast<int>(end.outcome) + kFirstOutcome));
  message.set_code(static_cast<int32_t>(end.status.code()));
  message.set_message(std::string(end.status.message()));
  return message;
}

TrainEnd FromProto(const v1::TrainingEnded& message) {
  const bool known = message.outcome() >= kFirstOutcome && v1::TrainingOutcome_IsValid(message.outcome());
  const TrainOutcome outcome =
      known ? static_cast<TrainOutcome>(message.outcome() - kFirstOutcome) : TrainOutcome::kLost;
  if (outcome == TrainOutcome::kFinished || outcome == TrainOutcome::kStopped) return {outcome, absl::OkStatus()};
  const auto code = message.code() == 0 ? absl::StatusCode::kUnknown : static_cast<absl::StatusCode>(message.code());
  return {outcome, absl::Status(code, message.message())};
}

}  // namespace switchyard
