// An attempt at a training job, how it is stopped and how it ends, as messages of the worker link, and back.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "scheduler/jobs/training_seat.h"
#include "switchyard/v1/worker.pb.h"

namespace switchyard::link {

v1::StartTraining ToProto(const jobs::TrainingAssignment& assignment);
// InvalidArgument: all that is wrong with it (job_spec.h), also values of enums that this program does not know.
absl::StatusOr<jobs::TrainingAssignment> FromProto(const v1::StartTraining& message);

// REQUIRES: not kNone.
v1::StopKind ToProto(jobs::StopKind kind);
// InvalidArgument for a kind that this program does not know.
absl::StatusOr<jobs::StopKind> FromProto(v1::StopKind kind);

v1::TrainingEnded ToProto(const jobs::TrainEnd& end, int64_t epoch);
// An outcome that this program does not know counts as lost.
jobs::TrainEnd FromProto(const v1::TrainingEnded& message);

}  // namespace switchyard::link
