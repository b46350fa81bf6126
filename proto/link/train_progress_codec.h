// How far a training job is as messages, of the worker link and of the API, and back.
#pragma once

#include "scheduler/jobs/train_progress.h"
#include "switchyard/v1/training.pb.h"

namespace switchyard {

v1::TrainProgress ToProto(const TrainProgress& progress);
TrainProgress FromProto(const v1::TrainProgress& message);

v1::EvaluationResult ToProto(const EvaluationResult& result);
EvaluationResult FromProto(const v1::EvaluationResult& message);

v1::SavedCheckpoint ToProto(const SavedCheckpoint& checkpoint);
SavedCheckpoint FromProto(const v1::SavedCheckpoint& message);

}  // namespace switchyard
