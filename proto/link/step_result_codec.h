// One rank's result of a step as a message of the worker link, and back.
#pragma once

#include "scheduler/batching/step.h"
#include "switchyard/v1/worker.pb.h"

namespace switchyard::link {

// `head` is that of the step.
v1::StepResult ToProto(const batching::StepPlan& head, const batching::RankResult& result);
batching::RankResult FromProto(const v1::StepResult& message);

}  // namespace switchyard::link
