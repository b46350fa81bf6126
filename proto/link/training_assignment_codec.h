// Codec of the worker link for attempts at training jobs: assignments, progress, stops and ends.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "scheduler/jobs/train_progress.h"
#include "scheduler/jobs/training_assignment.h"
#include "switchyard/v1/training.pb.h"
#include "switchyard/v1/worker.pb.h"

namespace switchyard::link {

v1::StartTraining ToProto(const jobs::TrainingAssignment& assignment);
// InvalidArgument lists all problems (job_spec.h), including enum values that this program does not know.
absl::StatusOr<jobs::TrainingAssignment> FromProto(const v1::StartTraining& message);

v1::ForkOrigin ToProto(const jobs::ForkOrigin& origin);
jobs::ForkOrigin FromProto(const v1::ForkOrigin& message);

// REQUIRES: not kNone.
v1::StopKind ToProto(jobs::StopKind kind);
// InvalidArgument for a kind that this program does not know.
absl::StatusOr<jobs::StopKind> FromProto(v1::StopKind kind);

v1::TrainingEnded ToProto(const jobs::TrainEnd& end, int64_t epoch);
// An outcome that this program does not know counts as lost.
jobs::TrainEnd FromProto(const v1::TrainingEnded& message);

v1::TrainProgress ToProto(const jobs::TrainProgress& progress);
jobs::TrainProgress FromProto(const v1::TrainProgress& message);

// An attempt's report of an evaluation.
v1::TrainingEvaluated ToProto(const jobs::EvaluationReport& report, int64_t epoch);
jobs::EvaluationReport FromProto(const v1::TrainingEvaluated& message);

v1::EvaluationResult ToProto(const jobs::EvaluationResult& result);
jobs::EvaluationResult FromProto(const v1::EvaluationResult& message);

v1::SavedCheckpoint ToProto(const jobs::SavedCheckpoint& checkpoint);
jobs::SavedCheckpoint FromProto(const v1::SavedCheckpoint& message);

}  // namespace switchyard::link
