// Codec of the worker link for one rank's result of a step.
//
// Logprobs and expert paths that are too long for the result's message precede it in parts.
#pragma once

#include <cstddef>
#include <vector>

#include "scheduler/batching/step.h"
#include "switchyard/v1/worker.pb.h"

namespace switchyard::link {

// `head`: the step's plan; its ranks are not read.
v1::StepResult ToProto(const batching::StepPlan& head, const batching::RankResult& result);
batching::RankResult FromProto(const v1::StepResult& message);

// If the result has more than `budget` entries (a token with its logprob, or eight experts), moves the logprobs and
// expert paths of all items into messages that precede it, each of at most about 20 B x budget.
inline constexpr size_t kEntriesPerMessage = 32768;
std::vector<v1::StepPart> CutIntoParts(const batching::StepPlan& head, batching::RankResult* result,
                                       size_t budget = kEntriesPerMessage);
// Appends the part to its item.  Returns false if the result has no such item.
bool AddPart(const v1::StepPart& message, batching::RankResult* result);

}  // namespace switchyard::link
