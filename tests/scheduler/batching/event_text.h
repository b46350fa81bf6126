// An event as transcripts and failed drills show it.
#pragma once

#include <string>

#include "absl/strings/str_cat.h"
#include "scheduler/batching/event.h"

namespace switchyard::testing_batching {

// "7.0 token 3 = 42", "7.0 prompt_logprobs 1..8", "7.0 expert_paths 0.. (24 experts)", "7.0 finished stop prompt 9
// cached 0 output 4"
inline std::string ToText(const batching::Event& event) {
  std::string out = absl::StrCat(event.request, ".", event.choice, " ");
  if (const auto* token = std::get_if<batching::TokenEvent>(&event.what)) {
    absl::StrAppend(&out, "token ", token->index, " = ", token->token);
  } else if (const auto* prompt = std::get_if<batching::PromptLogprobsEvent>(&event.what)) {
    absl::StrAppend(&out, "prompt_logprobs ", prompt->first_position, "..",
                    prompt->first_position + static_cast<int32_t>(prompt->positions.size()) - 1);
  } else if (const auto* paths = std::get_if<batching::ExpertPathsEvent>(&event.what)) {
    absl::StrAppend(&out, "expert_paths ", paths->first_position, ".. (", paths->experts.size(), " experts)");
  } else if (const auto* finished = std::get_if<batching::FinishedEvent>(&event.what)) {
    const batching::SequenceUsage& usage = finished->usage;
    absl::StrAppend(&out, "finished ", batching::FinishReasonName(finished->reason), " prompt ", usage.prompt_tokens,
                    " cached ", usage.cached_tokens, " output ", usage.completion_tokens, " preemptions ",
                    usage.preemptions);
  }
  return out;
}

}  // namespace switchyard::testing_batching
