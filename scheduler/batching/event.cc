#include "scheduler/batching/event.h"

#include "absl/strings/str_cat.h"

namespace switchyard {

std::string Event::DebugString() const {
  std::string out = absl::StrCat(request, ".", choice, " ");
  if (const auto* token = std::get_if<TokenEvent>(&what)) {
    absl::StrAppend(&out, "token ", token->index, " = ", token->token);
  } else if (const auto* prompt = std::get_if<PromptLogprobsEvent>(&what)) {
    absl::StrAppend(&out, "prompt_logprobs ", prompt->first_position, "..",
                    prompt->first_position + static_cast<int32_t>(prompt->positions.size()) - 1);
  } else if (const auto* paths = std::get_if<ExpertPathsEvent>(&what)) {
    absl::StrAppend(&out, "expert_paths ", paths->first_position, ".. (", paths->experts.size(), " experts)");
  } else if (const auto* finished = std::get_if<FinishedEvent>(&what)) {
    const SequenceUsage& usage = finished->usage;
    absl::StrAppend(&out, "finished ", FinishReasonName(finished->reason), " prompt ", usage.prompt_tokens, " cached ",
                    usage.cached_tokens, " output ", usage.completion_tokens, " preemptions ", usage.preemptions);
  }
  return out;
}

}  // namespace switchyard
