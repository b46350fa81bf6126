// One rank's result of a step as messages of the worker link, and back.
//
// Logprobs and expert paths may be too long for the message of the result: they then precede it in parts.
#pragma once

#include <cstddef>
#include <vector>

#include "scheduler/batching/step.h"
#include "switchyard/v1/worker.pb.h"

namespace switchyard::link {

// `head` is that of the step.
v1::StepResult ToProto(const batching::StepPlan& head, const batching::RankResult& result);
batching::RankResult FromProto(const v1::StepResult& message);

// Moves logprobs and expert paths of all items out of a result that has more than `budget` entries (a token with its
// logprob, or eight experts) into messages that precede it, of at most about 20 B x budget each.
inline constexpr size_t kEntriesPerMessage = 32768;
std::vector<v1::StepPart> CutIntoParts(const batching::StepPlan& head, batching::RankResult* result,
                                       size_t budget = kEntriesPerMessage);
// Appends the part to its item.  Returns false if the result has no such item.
bool AddPart(const v1::StepPart& message, batching::RankResult* result);

}  // namespace switchyard::link
