#include "server/jobs/trainer_convert.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/cut_text.h"
#include "server/jobs/api/job_convert.h"
#include "server/jobs/api/spec_convert.h"

namespace switchyard {
namespace {

// What a worker tells goes into journal and answers: no more of it than anybody reads.
constexpr size_t kMostTextBytes = 2048;
constexpr int kMostWarnings = 16;

void PutData(const std::vector<TrainData>& data, google::protobuf::RepeatedPtrField<v1::TrainDataFile>* out) {
  for (const TrainData& file : data) {
    v1::TrainDataFile* to = out->Add();
    to->set_root(file.of_job ? v1::TRAIN_DATA_ROOT_JOB : v1::TRAIN_DATA_ROOT_DATASETS);
    to->set_name(file.name);
  }
}

std::vector<std::string> TakeWarnings(const v1::TrainingStarted& message) {
  std::vector<std::string> warnings;
  for (const std::string& warning : message.warnings()) {
    if (static_cast<int>(warnings.size()) == kMostWarnings) break;
    warnings.emplace_back(CutText(warning, kMostTextBytes));
  }
  return warnings;
}

absl::string_view NameOf(const v1::LinkRequest& message) {
  const google::protobuf::FieldDescriptor* field =
      message.GetReflection()->GetOneofFieldDescriptor(message, message.GetDescriptor()->oneof_decl(0));
  return field == nullptr ? absl::string_view("nothing") : absl::string_view(field->name());
}

}  // namespace

v1::StartTraining ToProto(const TrainingSeat& seat) {
  v1::StartTraining message;
  message.set_epoch(seat.epoch);
  message.set_attempt(seat.attempt);
  message.set_job_id(seat.job_id);
  *message.mutable_spec() = ToProto(seat.spec);
  PutData(seat.data, message.mutable_data());
  PutData(seat.evaluation, message.mutable_evaluation());
  message.set_rank(seat.rank);
  message.set_world(seat.world);
  message.set_store_token(seat.store_token);
  message.set_form_deadline_ms(seat.form_deadline_ms);
  message.set_reach(seat.reach);
  return message;
}

v1::StopTraining ToProto(int64_t epoch, StopMode kind) {
  v1::StopTraining message;
  message.set_epoch(epoch);
  message.set_kind(kind == StopMode::kSave ? v1::STOP_KIND_SAVE : v1::STOP_KIND_NOW);
  return message;
}

TrainingEnd FromProto(const v1::TrainingEnded& message) {
  switch (message.outcome()) {
    case v1::TRAINING_OUTCOME_FINISHED:
      return {TrainingOutcome::kFinished, absl::OkStatus()};
    case v1::TRAINING_OUTCOME_STOPPED:
      return {TrainingOutcome::kStopped, absl::OkStatus()};
    default:
      break;
  }
  const auto code = message.code() == 0 ? absl::StatusCode::kUnknown : static_cast<absl::StatusCode>(message.code());
  const TrainingOutcome outcome = message.outcome() == v1::TRAINING_OUTCOME_FAILED    ? TrainingOutcome::kFailed
                                  : message.outcome() == v1::TRAINING_OUTCOME_BLOCKED ? TrainingOutcome::kBlocked
                                                                                      : TrainingOutcome::kLost;
  return {outcome, absl::Status(code, CutText(message.message(), kMostTextBytes))};
}

bool IsOfTraining(const v1::LinkRequest& message) {
  switch (message.message_case()) {
    case v1::LinkRequest::kTrainingStarted:
    case v1::LinkRequest::kTrainingStep:
    case v1::LinkRequest::kTrainingEvaluated:
    case v1::LinkRequest::kTrainingSaved:
    case v1::LinkRequest::kTrainingNote:
    case v1::LinkRequest::kTrainingEnded:
      return true;
    default:
      return false;
  }
}

absl::Status TellTraining(WorkerId id, v1::LinkRequest* message, TrainerEvents* events) {
  switch (message->message_case()) {
    case v1::LinkRequest::kHeartbeat:
      events->OnTrainerHeartbeat(id);
      break;
    case v1::LinkRequest::kTrainingStarted:
      events->OnTrainingStarted(id, message->training_started().epoch(), message->training_started().step(),
                                TakeWarnings(message->training_started()));
      break;
    case v1::LinkRequest::kTrainingStep:
      events->OnTrainingStep(id, message->training_step().epoch(), FromProto(message->training_step().progress()));
      break;
    case v1::LinkRequest::kTrainingEvaluated:
      events->OnTrainingEvaluated(id, message->training_evaluated().epoch(),
                                  FromProto(message->training_evaluated().result()));
      break;
    case v1::LinkRequest::kTrainingSaved:
      events->OnTrainingSaved(id, message->training_saved().epoch(), FromProto(message->training_saved().checkpoint()));
      break;
    case v1::LinkRequest::kTrainingNote:
      events->OnTrainingNote(id, message->training_note().epoch(),
                             std::string(CutText(message->training_note().text(), kMostTextBytes)));
      break;
    case v1::LinkRequest::kTrainingEnded:
      events->OnTrainingEnded(id, message->training_ended().epoch(), FromProto(message->training_ended()));
      break;
    case v1::LinkRequest::MESSAGE_NOT_SET:
      break;  // a newer worker's message
    default:
      return absl::InvalidArgumentError(absl::StrCat("a training worker says ", NameOf(*message)));
  }
  return absl::OkStatus();
}

}  // namespace switchyard
