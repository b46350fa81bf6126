#include "scheduler/batching/step_committer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::batching {

void StepCommitter::Expect(int64_t step, std::vector<std::vector<PlannedItem>> items) {
  const auto has_masked = [](const std::vector<PlannedItem>& rank) {
    return std::any_of(rank.begin(), rank.end(), [](const PlannedItem& item) { return item.masked; });
  };
  const bool lacks_masks = std::any_of(items.begin(), items.end(), has_masked);
  in_flight_.push_back({step, std::move(items), lacks_masks});
}

// A sequence that has ended needs none.
bool StepCommitter::KnowsMasks(const InFlight& step) {
  for (const std::vector<PlannedItem>& rank : step.ranks) {
    for (const PlannedItem& item : rank) {
      if (!item.masked || item.sequence->state() == SequenceState::kFinished) continue;
      if (item.sequence->num_outputs() != item.output || item.sequence->mask() == nullptr) return false;
    }
  }
  return true;
}

std::optional<StepMasks> StepCommitter::NextMasks() {
  const auto step = std::find_if(in_flight_.begin(), in_flight_.end(),
                                 [](const InFlight& s) { return s.lacks_masks && KnowsMasks(s); });
  if (step == in_flight_.end()) return std::nullopt;
  step->lacks_masks = false;
  StepMasks masks{.step = step->step, .group_epoch = running_->group().epoch, .ranks = {}};
  for (const std::vector<PlannedItem>& rank : step->ranks) {
    RankMasks& of_rank = masks.ranks.emplace_back();
    for (size_t i = 0; i < rank.size(); ++i) {
      if (!rank[i].masked) continue;
      ItemMask& mask = of_rank.items.emplace_back(ItemMask{.item = static_cast<int32_t>(i), .mask = {}});
      if (rank[i].sequence->state() != SequenceState::kFinished) mask.mask = *rank[i].sequence->mask();
    }
  }
  return masks;
}

absl::Status StepCommitter::Commit(const StepResult& result, absl::Time now, std::vector<Event>* events) {
  RETURN_IF_ERROR(CheckResult(result));
  const InFlight planned = std::move(in_flight_.front());
  in_flight_.pop_front();
  mask_work_ = policy_.mask_work_at_once;
  for (size_t r = 0; r < planned.ranks.size(); ++r) {
    for (size_t i = 0; i < planned.ranks[r].size(); ++i) {
      CommitItem(planned.ranks[r][i], result.ranks[r].items[i], now, events);
    }
  }
  return absl::OkStatus();
}

absl::Status StepCommitter::CheckResult(const StepResult& result) const {
  if (result.group_epoch != running_->group().epoch || in_flight_.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("result of step ", result.step, " epoch ", result.group_epoch,
                                                      ": the epoch is ", running_->group().epoch, " with ",
                                                      in_flight_.size(), " plans in flight"));
  }
  const InFlight& planned = in_flight_.front();
  const auto misfit = [&result](const auto&... what) {
    return absl::InternalError(absl::StrCat("result of step ", result.step, " does not fit its plan: ", what...));
  };
  if (result.step != planned.step) return misfit("the oldest in flight is step ", planned.step);
  if (result.ranks.size() != planned.ranks.size()) {
    return misfit(result.ranks.size(), " ranks, expected ", planned.ranks.size());
  }
  for (size_t r = 0; r < planned.ranks.size(); ++r) {
    const std::vector<ItemResult>& items = result.ranks[r].items;
    if (items.size() != planned.ranks[r].size()) {
      return misfit("rank ", r, " has ", items.size(), " items, expected ", planned.ranks[r].size());
    }
    for (size_t i = 0; i < items.size(); ++i) {
      if (const absl::Status fits = CheckItem(planned.ranks[r][i], items[i]); !fits.ok()) {
        return misfit("rank ", r, " item ", i, " has ", fits.message());
      }
    }
  }
  return absl::OkStatus();
}

// Errors: InvalidArgument, "3 tokens, expected 1".
absl::Status StepCommitter::CheckItem(const PlannedItem& planned, const ItemResult& item) const {
  if (item.status != ItemStatus::kOk) return absl::OkStatus();
  const size_t num_tokens = planned.sample ? 1 : 0;
  const size_t num_rows = static_cast<size_t>(planned.start_pos + planned.num_query - planned.first_path);
  const struct {
    size_t actual, wanted;
    const char* what;
  } counts[] = {
      {item.tokens.size(), num_tokens, "tokens"},
      {item.logprobs.size(), planned.sequence->sampling().num_logprobs >= 0 ? num_tokens : 0, "logprobs"},
      {item.prompt_logprobs.size(), static_cast<size_t>(planned.num_prompt_logprobs), "prompt logprobs"},
      {item.expert_paths.size(), num_rows * static_cast<size_t>(running_->group().expert_path_ids), "experts"},
  };
  for (const auto& count : counts) {
    if (count.actual == count.wanted) continue;
    return absl::InvalidArgumentError(absl::StrCat(count.actual, " ", count.what, ", expected ", count.wanted));
  }
  return absl::OkStatus();
}

void StepCommitter::CommitItem(const PlannedItem& planned, const ItemResult& result, absl::Time now,
                               std::vector<Event>* events) {
  Sequence* sequence = planned.sequence;
  sequence->CommitItem(planned.sample);
  running_->suspect_items -= planned.suspect ? 1 : 0;
  if (sequence->state() == SequenceState::kFinished) {  // ended while this was in flight: the result is dropped
    running_->ReleaseIfIdle(sequence);
    return;
  }
  if (result.status != ItemStatus::kOk) {
    // Its keys and values may not be finite: no other sequence may find them.
    for (const BlockId block : sequence->block_table) running_->ranks()[sequence->rank].pool.Forget(block);
    running_->Finish(sequence, FinishReason::kError, now, events);
    return;
  }
  EmitPromptLogprobs(planned, result, events);
  EmitExpertPaths(planned, result, events);
  if (!planned.sample || CommitToken(planned, result, now, events)) running_->ReleaseIfIdle(sequence);
}

// False: it was the last, and the sequence may be gone.
bool StepCommitter::CommitToken(const PlannedItem& planned, const ItemResult& result, absl::Time now,
                                std::vector<Event>* events) {
  Sequence* sequence = planned.sequence;
  TokenEvent token{.index = sequence->num_outputs(), .token = result.tokens[0]};
  if (!result.logprobs.empty()) token.logprobs = result.logprobs[0];
  if (token.index == 0) token.scheduled = sequence->timings().first_scheduled;
  const FinishReason reason = sequence->Append(token.token, running_->max_context(), now);
  events->push_back({.request = sequence->request(), .choice = sequence->choice(), .what = std::move(token)});
  ++generated_tokens_;
  running_->PublishComputed(sequence);
  if (reason != FinishReason::kNone) {
    running_->Finish(sequence, reason, now, events);
    return false;
  }
  if (sequence->constrained()) running_->FindMask(sequence, &mask_work_);
  return true;
}

void StepCommitter::EmitPromptLogprobs(const PlannedItem& planned, const ItemResult& result,
                                       std::vector<Event>* events) {
  Sequence* sequence = planned.sequence;
  const int32_t end = planned.start_pos + 1 + planned.num_prompt_logprobs;
  const int32_t first = sequence->next_prompt_logprob();  // those before were delivered before a preemption
  if (planned.num_prompt_logprobs == 0 || first >= end) return;
  PromptLogprobsEvent event{.first_position = first};
  event.positions.assign(result.prompt_logprobs.end() - (end - first), result.prompt_logprobs.end());
  sequence->DeliverPromptLogprobs(end);
  events->push_back({.request = sequence->request(), .choice = sequence->choice(), .what = std::move(event)});
}

// Paths below paths_at_start were delivered before a preemption, so none is delivered twice.
void StepCommitter::EmitExpertPaths(const PlannedItem& planned, const ItemResult& result, std::vector<Event>* events) {
  if (result.expert_paths.empty()) return;
  Sequence* sequence = planned.sequence;
  sequence->DeliverExpertPaths(planned.start_pos + planned.num_query);
  events->push_back({.request = sequence->request(),
                     .choice = sequence->choice(),
                     .what = ExpertPathsEvent{.first_position = planned.first_path, .experts = result.expert_paths}});
}

}  // namespace switchyard::batching
