// The worker link's messages as plain values, and back.  The mirror of workers/process/convert.h.
#pragma once

#include "absl/status/statusor.h"
#include "scheduler/batching/step.h"
#include "server/fleet/worker_client.h"
#include "switchyard/v1/worker.pb.h"

namespace switchyard {

WorkerInfo FromProto(const v1::Register& message);
v1::JoinGroup ToProto(const GroupSeat& seat);
// One rank's part of a plan.
v1::StepPlan ToProto(const StepPlan& plan, int rank, absl::Duration limit);
RankResult FromProto(const v1::StepResult& message);
// Adds what came before `message` to its result.  False: an item that it does not have.
bool AddPart(const v1::StepPart& message, RankResult* result);

}  // namespace switchyard
