#include "server/jobs/trainer_convert.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/link/training_assignment_codec.h"
#include "scheduler/base/text/utf8.h"

namespace switchyard::server {
namespace {

// A worker's texts go into the journal and into answers, so they are cut to this length.
constexpr size_t kMostTextBytes = 2048;
constexpr int kMostWarnings = 16;

jobs::TrainEnd TakeEnd(const v1::TrainingEnded& message) {
  jobs::TrainEnd end = link::FromProto(message);
  if (!end.status.ok()) end.status = absl::Status(end.status.code(), CutText(end.status.message(), kMostTextBytes));
  end.note = std::string(CutText(end.note, kMostTextBytes));
  return end;
}

// The names of sets are those of the spec; no more of them go into the journal than a spec may have.
jobs::EvaluationReport TakeEvaluation(const v1::TrainingEvaluated& message) {
  jobs::EvaluationReport report = link::FromProto(message);
  std::vector<jobs::SetResult>& sets = report.result.sets;
  if (sets.size() > jobs::kMaxEvaluationSets) sets.resize(jobs::kMaxEvaluationSets);
  for (jobs::SetResult& set : sets) set.name = std::string(CutText(set.name, jobs::kMaxPathBytes));
  return report;
}

std::vector<std::string> TakeWarnings(const v1::TrainingStarted& message) {
  std::vector<std::string> warnings;
  for (const std::string& warning : message.warnings()) {
    if (static_cast<int>(warnings.size()) == kMostWarnings) break;
    warnings.emplace_back(CutText(warning, kMostTextBytes));
  }
  return warnings;
}

}  // namespace

std::optional<AttemptReport> ReportOf(const v1::LinkRequest& message) {
  switch (message.message_case()) {
    case v1::LinkRequest::kTrainingStarted: {
      const v1::TrainingStarted& started = message.training_started();
      return AttemptReport{started.epoch(), TrainingStarted{started.step(), TakeWarnings(started)}};
    }
    case v1::LinkRequest::kTrainingStep:
      return AttemptReport{message.training_step().epoch(), link::FromProto(message.training_step().progress())};
    case v1::LinkRequest::kTrainingEvaluated:
      return AttemptReport{message.training_evaluated().epoch(), TakeEvaluation(message.training_evaluated())};
    case v1::LinkRequest::kTrainingSaved:
      return AttemptReport{message.training_saved().epoch(), link::FromProto(message.training_saved().checkpoint())};
    case v1::LinkRequest::kTrainingNote:
      return AttemptReport{message.training_note().epoch(),
                           std::string(CutText(message.training_note().text(), kMostTextBytes))};
    case v1::LinkRequest::kTrainingEnded:
      return AttemptReport{message.training_ended().epoch(), TakeEnd(message.training_ended())};
    default:
      return std::nullopt;
  }
}

}  // namespace switchyard::server
