// Codec of the worker link for one rank's part of a StepPlan, and of the StepMasks that follow it.
#pragma once

#include "absl/time/time.h"
#include "scheduler/batching/step.h"
#include "switchyard/v1/worker.pb.h"

namespace switchyard::link {

v1::SamplingPlan ToProto(const batching::SamplingParams& params);
batching::SamplingParams FromProto(const v1::SamplingPlan& message);

// `limit`: how long the rank may wait for the others in this step.
v1::StepPlan ToProto(const batching::StepPlan& plan, int rank, absl::Duration limit);
// Returns this rank's part; writes the step's head to *head, whose `ranks` stays empty.
batching::RankPlan FromProto(const v1::StepPlan& message, batching::StepPlan* head, absl::Duration* limit);

v1::StepMasks ToProto(const batching::StepMasks& masks, int rank);
// Returns this rank's part; writes step and epoch to *head, whose `ranks` stays empty.
batching::RankMasks FromProto(const v1::StepMasks& message, batching::StepMasks* head);

}  // namespace switchyard::link
