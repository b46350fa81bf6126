#include "server/jobs/trainer_convert.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/link/training_seat_codec.h"
#include "scheduler/base/text/utf8.h"

namespace switchyard::server {
namespace {

// What a worker tells goes into journal and answers: no more of it than anybody reads.
constexpr size_t kMostTextBytes = 2048;
constexpr int kMostWarnings = 16;

jobs::TrainEnd TakeEnd(const v1::TrainingEnded& message) {
  jobs::TrainEnd end = link::FromProto(message);
  if (!end.status.ok()) end.status = absl::Status(end.status.code(), CutText(end.status.message(), kMostTextBytes));
  return end;
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

absl::Status ReportTraining(WorkerId id, v1::LinkRequest* message, TrainerEvents* events) {
  switch (message->message_case()) {
    case v1::LinkRequest::kHeartbeat:
      events->OnTrainerHeartbeat(id);
      break;
    case v1::LinkRequest::kTrainingStarted:
      events->OnTrainingStarted(id, message->training_started().epoch(), message->training_started().step(),
                                TakeWarnings(message->training_started()));
      break;
    case v1::LinkRequest::kTrainingStep:
      events->OnTrainingStep(id, message->training_step().epoch(),
                             link::FromProto(message->training_step().progress()));
      break;
    case v1::LinkRequest::kTrainingEvaluated:
      events->OnTrainingEvaluated(id, message->training_evaluated().epoch(),
                                  link::FromProto(message->training_evaluated().result()));
      break;
    case v1::LinkRequest::kTrainingSaved:
      events->OnTrainingSaved(id, message->training_saved().epoch(),
                              link::FromProto(message->training_saved().checkpoint()));
      break;
    case v1::LinkRequest::kTrainingNote:
      events->OnTrainingNote(id, message->training_note().epoch(),
                             std::string(CutText(message->training_note().text(), kMostTextBytes)));
      break;
    case v1::LinkRequest::kTrainingEnded:
      events->OnTrainingEnded(id, message->training_ended().epoch(), TakeEnd(message->training_ended()));
      break;
    case v1::LinkRequest::MESSAGE_NOT_SET:
      break;  // a newer worker's message
    default:
      return absl::InvalidArgumentError(absl::StrCat("a training worker says ", NameOf(*message)));
  }
  return absl::OkStatus();
}

}  // namespace switchyard::server
