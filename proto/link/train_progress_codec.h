// How far a training job is as messages, of the worker link and of the API, and back.
#pragma once

#include "scheduler/jobs/train_progress.h"
#include "switchyard/v1/training.pb.h"

namespace switchyard::link {

v1::TrainProgress ToProto(const jobs::TrainProgress& progress);
jobs::TrainProgress FromProto(const v1::TrainProgress& message);

v1::EvaluationResult ToProto(const jobs::EvaluationResult& result);
jobs::EvaluationResult FromProto(const v1::EvaluationResult& message);

v1::SavedCheckpoint ToProto(const jobs::SavedCheckpoint& checkpoint);
jobs::SavedCheckpoint FromProto(const v1::SavedCheckpoint& message);

}  // namespace switchyard::link
