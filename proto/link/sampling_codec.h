// SamplingParams as a message of the worker link, and back.
#pragma once

#include "scheduler/batching/step.h"
#include "switchyard/v1/worker.pb.h"

namespace switchyard::link {

v1::SamplingPlan ToProto(const batching::SamplingParams& params);
batching::SamplingParams FromProto(const v1::SamplingPlan& message);

}  // namespace switchyard::link
