// What the runner does with a step's logits, on the host: it samples, and scores prompts.
#include <algorithm>
#include <utility>

#include "scheduler/base/clock.h"
#include "scheduler/base/status_macros.h"
#include "workers/model/runner/model_runner.h"

namespace switchyard::model {

// Hands runs of rows with the same use to the sampler or to the prompt's logprobs.
absl::Status ModelRunner::TakeLogits(const batching::RankPlan& plan, int64_t first, const TensorView& logits,
                                     Started* step) {
  ASSIGN_OR_RETURN(const TensorView on_host, OnHost(&logits_on_host_, logits, step->deadline));
  const auto uses = absl::MakeConstSpan(uses_).subspan(first, logits.dim(0));
  for (size_t begin = 0; begin < uses.size();) {
    size_t end = begin + 1;
    while (end < uses.size() && uses[end].sample == uses[begin].sample) ++end;
    const auto run = uses.subspan(begin, end - begin);
    const TensorView rows = on_host.Rows(static_cast<int64_t>(begin), static_cast<int64_t>(run.size()));
    RETURN_IF_ERROR(run[0].sample ? Sample(plan, run, rows, step) : ScorePrompt(plan, run, rows, &step->result));
    begin = end;
  }
  return absl::OkStatus();
}

absl::Status ModelRunner::Sample(const batching::RankPlan& plan, absl::Span<const LogitUse> uses,
                                 const TensorView& logits, Started* step) {
  RETURN_IF_ERROR(AwaitMasks(plan, step));
  sample_requests_.clear();
  for (const LogitUse& use : uses) {
    const batching::StepItem& item = plan.items[use.item];
    const Slot& slot = slots_.slot(item.slot);
    sample_requests_.push_back(
        {.params = &slot.sampling, .history = &slot.history, .mask = item_masks_[static_cast<size_t>(use.item)]});
  }
  outcomes_.assign(uses.size(), ops::SampleOutcome());
  RETURN_IF_ERROR(ops::SampleTokens(stream_, logits, sample_requests_, absl::MakeSpan(outcomes_)));
  for (size_t i = 0; i < uses.size(); ++i) {
    batching::ItemResult& item = step->result.items[uses[i].item];
    ops::SampleOutcome& outcome = outcomes_[i];
    if (outcome.status != batching::ItemStatus::kOk) {
      item.status = outcome.status;
      continue;
    }
    item.tokens.push_back(outcome.token);
    if (sample_requests_[i].params->num_logprobs >= 0) item.logprobs.push_back(std::move(outcome.logprobs));
  }
  return absl::OkStatus();
}

absl::Status ModelRunner::AwaitMasks(const batching::RankPlan& plan, Started* step) {
  if (!item_masks_.empty()) return absl::OkStatus();
  item_masks_.assign(plan.items.size(), nullptr);
  const auto is_masked = [](const batching::StepItem& item) { return item.masked; };
  if (std::none_of(plan.items.begin(), plan.items.end(), is_masked)) return absl::OkStatus();
  const absl::Time begin = MonotonicNow();
  ASSIGN_OR_RETURN(step_masks_, masks_->Await(step->epoch, step->number, step->deadline));
  step->result.timings.mask_seconds = absl::ToDoubleSeconds(MonotonicNow() - begin);
  RETURN_IF_ERROR(slots_.ValidateMasks(plan, step_masks_));
  for (const batching::ItemMask& mask : step_masks_.items) {
    if (!mask.mask.empty()) item_masks_[static_cast<size_t>(mask.item)] = &mask.mask;
  }
  return absl::OkStatus();
}

absl::Status ModelRunner::ScorePrompt(const batching::RankPlan& plan, absl::Span<const LogitUse> uses,
                                      const TensorView& logits, batching::RankResult* result) {
  logprob_requests_.clear();
  for (const LogitUse& use : uses) {
    const Slot& slot = slots_.slot(plan.items[use.item].slot);
    logprob_requests_.push_back({.token = use.next_token, .num_top = slot.sampling.num_prompt_logprobs});
  }
  logprobs_.assign(uses.size(), batching::PositionLogprobs());
  statuses_.assign(uses.size(), batching::ItemStatus::kOk);
  RETURN_IF_ERROR(
      ops::TokenLogprobs(stream_, logits, logprob_requests_, absl::MakeSpan(logprobs_), absl::MakeSpan(statuses_)));
  for (size_t i = 0; i < uses.size(); ++i) {
    batching::ItemResult& item = result->items[uses[i].item];
    if (statuses_[i] != batching::ItemStatus::kOk) item.status = statuses_[i];
    item.prompt_logprobs.push_back(std::move(logprobs_[i]));
  }
  return absl::OkStatus();
}

}  // namespace switchyard::model
