// Scheduler::Commit: what came back of the oldest plan.
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/batching/scheduler.h"

namespace switchyard {

absl::Status Scheduler::Commit(const StepResult& result, absl::Time now, std::vector<Event>* events) {
  RETURN_IF_ERROR(CheckResult(result));
  const InFlight refs = std::move(in_flight_.front());
  in_flight_.pop_front();
  for (size_t r = 0; r < refs.ranks.size(); ++r) {
    for (size_t i = 0; i < refs.ranks[r].size(); ++i) {
      CommitItem(refs.ranks[r][i], result.ranks[r].items[i], now, events);
    }
  }
  return absl::OkStatus();
}

absl::Status Scheduler::CheckResult(const StepResult& result) const {
  if (result.group_epoch != group_epoch_ || in_flight_.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("result of step ", result.step, " epoch ", result.group_epoch,
                                                      ": the epoch is ", group_epoch_, " with ", in_flight_.size(),
                                                      " plans in flight"));
  }
  const InFlight& refs = in_flight_.front();
  const auto misfit = [&result](const auto&... what) {
    return absl::InternalError(absl::StrCat("result of step ", result.step, " does not fit its plan: ", what...));
  };
  if (result.step != refs.step) return misfit("the oldest in flight is step ", refs.step);
  if (result.ranks.size() != refs.ranks.size()) {
    return misfit(result.ranks.size(), " ranks, expected ", refs.ranks.size());
  }
  for (size_t r = 0; r < refs.ranks.size(); ++r) {
    const std::vector<ItemResult>& items = result.ranks[r].items;
    if (items.size() != refs.ranks[r].size()) {
      return misfit("rank ", r, " has ", items.size(), " items, expected ", refs.ranks[r].size());
    }
    for (size_t i = 0; i < items.size(); ++i) {
      if (const absl::Status fits = CheckItem(refs.ranks[r][i], items[i]); !fits.ok()) {
        return misfit("rank ", r, " item ", i, " has ", fits.message());
      }
    }
  }
  return absl::OkStatus();
}

// Errors: InvalidArgument, "3 tokens, expected 1".
absl::Status Scheduler::CheckItem(const ItemRef& ref, const ItemResult& item) const {
  if (item.status != ItemStatus::kOk) return absl::OkStatus();
  const size_t num_tokens = ref.sample ? 1 : 0;
  const size_t num_rows = static_cast<size_t>(ref.start_pos + ref.num_query - ref.first_path);
  const struct {
    size_t actual, wanted;
    const char* what;
  } counts[] = {
      {item.tokens.size(), num_tokens, "tokens"},
      {item.logprobs.size(), ref.sequence->sampling().num_logprobs >= 0 ? num_tokens : 0, "logprobs"},
      {item.prompt_logprobs.size(), static_cast<size_t>(ref.num_prompt_logprobs), "prompt logprobs"},
      {item.expert_paths.size(), num_rows * static_cast<size_t>(expert_path_ids_), "experts"},
  };
  for (const auto& count : counts) {
    if (count.actual == count.wanted) continue;
    return absl::InvalidArgumentError(absl::StrCat(count.actual, " ", count.what, ", expected ", count.wanted));
  }
  return absl::OkStatus();
}

void Scheduler::CommitItem(const ItemRef& ref, const ItemResult& result, absl::Time now, std::vector<Event>* events) {
  Sequence* sequence = ref.sequence;
  sequence->CommitItem(ref.sample);
  if (sequence->state() == SequenceState::kFinished) {  // ended while this was in flight: the result is dropped
    ReleaseIfIdle(sequence);
    return;
  }
  if (result.status != ItemStatus::kOk) {
    // Its keys and values may be what is not finite: nobody else shall find them.
    for (const BlockId block : sequence->block_table) ranks_[sequence->rank].pool.Forget(block);
    FinishSequence(sequence, FinishReason::kError, now, events);
    return;
  }
  EmitPromptLogprobs(ref, result, events);
  EmitExpertPaths(ref, result, events);
  if (ref.sample) {
    TokenEvent token{.index = sequence->num_outputs(), .token = result.tokens[0]};
    if (!result.logprobs.empty()) token.logprobs = result.logprobs[0];
    const FinishReason reason = sequence->Append(token.token, max_context_, now);
    events->push_back({.request = sequence->request(), .choice = sequence->choice(), .what = std::move(token)});
    ++totals_.generated_tokens;
    PublishComputed(sequence);
    if (reason != FinishReason::kNone) {
      FinishSequence(sequence, reason, now, events);
      return;
    }
  }
  ReleaseIfIdle(sequence);
}

void Scheduler::EmitPromptLogprobs(const ItemRef& ref, const ItemResult& result, std::vector<Event>* events) {
  Sequence* sequence = ref.sequence;
  const int32_t end = ref.start_pos + 1 + ref.num_prompt_logprobs;
  const int32_t first = sequence->next_prompt_logprob();  // those before were delivered before a preemption
  if (ref.num_prompt_logprobs == 0 || first >= end) return;
  PromptLogprobsEvent event{.first_position = first};
  event.positions.assign(result.prompt_logprobs.end() - (end - first), result.prompt_logprobs.end());
  sequence->DeliverPromptLogprobs(end);
  events->push_back({.request = sequence->request(), .choice = sequence->choice(), .what = std::move(event)});
}

// Before a preemption were delivered those below paths_at_start, so none comes twice.
void Scheduler::EmitExpertPaths(const ItemRef& ref, const ItemResult& result, std::vector<Event>* events) {
  if (result.expert_paths.empty()) return;
  Sequence* sequence = ref.sequence;
  sequence->DeliverExpertPaths(ref.start_pos + ref.num_query);
  events->push_back({.request = sequence->request(),
                     .choice = sequence->choice(),
                     .what = ExpertPathsEvent{.first_position = ref.first_path, .experts = result.expert_paths}});
}

void Scheduler::ReleaseIfIdle(Sequence* sequence) {
  if (sequence->num_in_flight() > 0) return;
  RankState& rank = ranks_[sequence->rank];
  if (sequence->state() == SequenceState::kFinished) {
    --rank.num_leaving;
    rank.Release(sequence);
    sequences_.erase(sequence);
  } else if (sequence->draining) {
    --rank.num_leaving;
    PreemptNow(sequence);
  }
}

}  // namespace switchyard
