// The link's messages as plain values, and back.  The mirror of server/fleet/worker_convert.h.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "scheduler/batching/step.h"
#include "switchyard/v1/worker.pb.h"
#include "workers/serving/worker.h"

namespace switchyard {

// InvalidArgument: a placement that this worker does not know.
absl::StatusOr<EngineSettings> FromProto(const v1::EngineOptions& message);
// InvalidArgument: no seat of a group, or places of another group's shape.
absl::StatusOr<Seat> FromProto(const v1::JoinGroup& message);
// The step's head in *head (its `ranks` stays empty) and this rank's part.
RankPlan FromProto(const v1::StepPlan& message, StepPlan* head);
v1::StepResult ToProto(const StepPlan& head, const RankResult& result);
// Takes out of a result that has more than `budget` entries (of a token and its logprob, or of eight experts) the
// logprobs and expert paths of all its items, as messages that go before it: at most about 20 B x budget each, so that
// no result is too long a message.
inline constexpr size_t kEntriesPerMessage = 32768;
std::vector<v1::StepPart> CutIntoParts(const StepPlan& head, RankResult* result, size_t budget = kEntriesPerMessage);
v1::ModelFacts FactsToProto(const Worker& worker);

}  // namespace switchyard
