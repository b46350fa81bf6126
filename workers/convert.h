// The link's messages as plain values, and back.  The mirror of server/worker_convert.h.
#pragma once

#include <string>

#include "scheduler/batching/step.h"
#include "switchyard/v1/worker.pb.h"
#include "workers/worker.h"

namespace switchyard {

EngineSettings FromProto(const v1::EngineOptions& message);
Seat FromProto(const v1::JoinGroup& message);
// The step's head in *head (its `ranks` stays empty) and this rank's part.
RankPlan FromProto(const v1::StepPlan& message, StepPlan* head);
v1::StepResult ToProto(const StepPlan& head, const RankResult& result);
v1::ModelFacts FactsToProto(const Worker& worker);

}  // namespace switchyard
