// Training on the link, as plain values, and back (train_link.proto).  The mirror of the server's.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "switchyard/v1/worker.pb.h"
#include "workers/train/job/train_job.h"

namespace switchyard {

// InvalidArgument: all that is wrong with it, also values of enums that this program does not know.  Unset fields have
// the defaults of scheduler/jobs/job_spec.h.
absl::StatusOr<JobSpec> JobSpecFromProto(const v1::JobSpec& message);  // (the server has a FromProto of it)

// A rank's attempt.
struct TrainSeat {
  int64_t epoch = 0;
  int rank = 0;
  int world = 1;
  std::string token = {};  // the group's secret
  std::string reach = {};
  absl::Duration form_timeout = absl::Seconds(30);
  TrainJobInput job = {};  // without roots, memory and version, which are the process's
};
absl::StatusOr<TrainSeat> FromProto(const v1::StartTraining& message);
// InvalidArgument for a kind that this program does not know.
absl::StatusOr<StopKind> FromProto(v1::StopKind kind);

v1::LinkRequest StartedMessage(int64_t epoch, int64_t step, const std::vector<std::string>& warnings);
v1::LinkRequest StepMessage(int64_t epoch, const StepProgress& progress);
v1::LinkRequest EvaluatedMessage(int64_t epoch, int64_t step, double loss, int64_t tokens);
v1::LinkRequest SavedMessage(int64_t epoch, const std::string& job_id, const SavedStep& saved, absl::Time now);
v1::LinkRequest NoteMessage(int64_t epoch, const std::string& text);
v1::LinkRequest EndedMessage(int64_t epoch, const TrainEnd& end);

}  // namespace switchyard
