// Logprobs and expert paths of a step's items: what may be too long for the message of its result, and then goes before
// it in parts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "scheduler/batching/step.h"
#include "switchyard/v1/worker.pb.h"

namespace switchyard::link {

using PositionMessages = google::protobuf::RepeatedPtrField<v1::StepPositionLogprobs>;

void AppendPositions(const std::vector<batching::PositionLogprobs>& from, PositionMessages* to);
void AppendPositions(const PositionMessages& from, std::vector<batching::PositionLogprobs>* to);
std::string BytesOfPaths(absl::Span<const int16_t> paths);
void AppendPaths(absl::string_view bytes, std::vector<int16_t>* to);

// Takes out of a result that has more than `budget` entries (of a token and its logprob, or of eight experts) the
// logprobs and expert paths of all its items, as messages that go before it: at most about 20 B x budget each, so that
// no result is too long a message.
inline constexpr size_t kEntriesPerMessage = 32768;
std::vector<v1::StepPart> CutIntoParts(const batching::StepPlan& head, batching::RankResult* result,
                                       size_t budget = kEntriesPerMessage);
// Adds what came before `message` to its result.  False: an item that it does not have.
bool AddPart(const v1::StepPart& message, batching::RankResult* result);

}  // namespace switchyard::link
