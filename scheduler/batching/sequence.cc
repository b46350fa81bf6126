#include "scheduler/batching/sequence.h"

#include <algorithm>
#include <utility>

#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::batching {
namespace {

//                              Waiting Running Finished
constexpr bool kMay[3][3] = {{false, true, true},     // Waiting
                             {true, false, true},     // Running (→ Waiting = preempted)
                             {false, false, false}};  // Finished is terminal

constexpr bool May(SequenceState from, SequenceState to) { return kMay[static_cast<int>(from)][static_cast<int>(to)]; }
static_assert(May(SequenceState::kRunning, SequenceState::kWaiting), "preemption");
static_assert(May(SequenceState::kWaiting, SequenceState::kFinished), "cancelled while queued");
static_assert(!May(SequenceState::kFinished, SequenceState::kWaiting) &&
                  !May(SequenceState::kFinished, SequenceState::kRunning),
              "Finished is terminal");

absl::Duration Between(absl::Time from, absl::Time to) {
  if (from == absl::InfinitePast() || to == absl::InfinitePast()) return absl::ZeroDuration();
  return to - from;
}

}  // namespace

absl::string_view FinishReasonName(FinishReason reason) {
  static constexpr absl::string_view kNames[kNumFinishReasons] = {
      "none", "stop", "length", "abort", "deadline", "error", "unavailable", "poisoned", "constraint"};
  return kNames[static_cast<int>(reason)];
}

absl::Duration SequenceTimings::Queue() const {
  return Between(queued, first_scheduled == absl::InfinitePast() ? finished : first_scheduled);
}
absl::Duration SequenceTimings::Prefill() const { return Between(first_scheduled, first_token); }
absl::Duration SequenceTimings::Decode() const { return Between(first_token, last_token); }

Sequence::Sequence(SequenceSpec spec, absl::Time queued) : spec_(std::move(spec)), chain_(std::move(spec_.chain)) {
  SY_CHECK(!spec_.prompt.empty());
  SY_CHECK_GE(spec_.max_tokens, 1);
  tokens_ = std::move(spec_.prompt);
  num_prompt_tokens_ = tokens_.size();
  next_expert_path_ = spec_.sampling.expert_paths_from;
  timings_.queued = queued;
  if (spec_.constraint != nullptr) {
    matcher_ = std::make_unique<grammar::Matcher>(std::move(spec_.constraint));
    mask_wanted_ = std::make_shared<const bool>(true);
  }
}

bool Sequence::WantsMore(int32_t max_context) const {
  const int64_t total = int64_t{num_tokens()} + num_pending_;
  return total - num_prompt_tokens() < spec_.max_tokens && total < max_context;
}

bool Sequence::NeedsPromptLogprobs() const {
  return spec_.sampling.num_prompt_logprobs >= 0 && next_prompt_logprob_ < num_prompt_tokens();
}

SequenceUsage Sequence::Usage() const {
  return {.prompt_tokens = num_prompt_tokens(),
          .cached_tokens = num_cached_,
          .completion_tokens = num_outputs(),
          .preemptions = num_preemptions_,
          .prefill_rank = prefill_rank_,
          .last_rank = last_rank_};
}

SlotInit Sequence::MakeSlotInit() const {
  SY_CHECK_EQ(num_pending_, 0);
  SlotInit init{.tokens = tokens_,
                .num_prompt_tokens = num_prompt_tokens(),
                .sampling = spec_.sampling,
                .adapter = chain_.root().adapter};
  if (!NeedsPromptLogprobs()) init.sampling.num_prompt_logprobs = -1;  // delivered before a preemption
  init.sampling.expert_paths_from = next_expert_path_;
  return init;
}

void Sequence::SetGroup(uint64_t weights_version, bool long_rope) {
  SY_CHECK(state_ == SequenceState::kWaiting);
  PrefixRoot root = chain_.root();
  root.weights_version = weights_version;
  root.long_rope = long_rope;
  chain_ = PrefixChain(std::move(root), chain_.block_size());
  chain_.Extend(tokens_);
}

void Sequence::Start(int32_t to_rank, SlotId to_slot, int32_t num_cached, absl::Time now) {
  MoveTo(SequenceState::kRunning);
  rank = last_rank_ = to_rank;
  slot = to_slot;
  num_planned_ = num_cached;
  outputs_at_start = num_outputs();
  paths_at_start = next_expert_path_;
  if (timings_.first_scheduled == absl::InfinitePast()) {
    timings_.first_scheduled = now;
    num_cached_ = std::min(num_cached, num_prompt_tokens());
  }
}

void Sequence::PlanItem(int32_t num_query, bool sample) {
  SY_CHECK(state_ == SequenceState::kRunning);
  SY_CHECK_GE(num_query, 1);
  SY_CHECK_LE(num_query, num_to_compute());
  num_planned_ += num_query;
  ++num_in_flight_;
  if (sample) ++num_pending_;
}

void Sequence::CommitItem(bool sample) {
  SY_CHECK_GE(num_in_flight_, 1);
  --num_in_flight_;
  if (sample) --num_pending_;
}

void Sequence::Preempt() {
  SY_CHECK_EQ(num_in_flight_, 0);
  SY_CHECK_EQ(num_pending_, 0);
  SY_CHECK(block_table.empty());
  MoveTo(SequenceState::kWaiting);
  num_planned_ = 0;
  draining = false;
  ++num_preemptions_;
}

FinishReason Sequence::Append(int32_t token, int32_t max_context, absl::Time now) {
  const int32_t index = num_outputs();
  tokens_.push_back(token);
  if (num_outputs() > outputs_at_start + 1) losses_in_a_row_ = 0;
  chain_.Extend(tokens_);
  if (index == 0) {
    timings_.first_token = now;
    prefill_rank_ = rank;
  }
  timings_.last_token = now;
  const std::vector<int32_t>& stop_ids = spec_.sampling.stop_ids;
  // Under a constraint a stop token comes before min_tokens only where no other one fits (workers' sampling.h).
  const bool may_stop = constrained() || index >= spec_.sampling.min_tokens;
  if (may_stop && std::find(stop_ids.begin(), stop_ids.end(), token) != stop_ids.end()) return FinishReason::kStop;
  const FinishReason by_constraint = AdvanceConstraint(token);
  if (by_constraint == FinishReason::kStop) return by_constraint;
  if (num_outputs() >= spec_.max_tokens || num_tokens() >= max_context) return FinishReason::kLength;
  return by_constraint;
}

FinishReason Sequence::AdvanceConstraint(int32_t token) {
  if (matcher_ == nullptr) return FinishReason::kNone;
  mask_ = nullptr;
  if (!matcher_->Accept(token).ok()) return FinishReason::kConstraint;
  const absl::StatusOr<bool> any = matcher_->AnyFits();
  if (!any.ok()) return FinishReason::kConstraint;
  if (*any) return FinishReason::kNone;
  return matcher_->accepts() ? FinishReason::kStop : FinishReason::kConstraint;
}

void Sequence::FindMask(int64_t* mask_work) {
  absl::StatusOr<grammar::MaskPtr> mask = matcher_->NextMaskWithin(mask_work);
  if (!mask.ok()) return;
  may_end_ = matcher_->accepts();
  if (*mask != nullptr) KeepMask(*std::move(mask));
}

FinishReason Sequence::SetMask(absl::StatusOr<grammar::MaskPtr> mask, int64_t work_left) {
  if (!mask.ok()) return FinishReason::kConstraint;
  matcher_->KeepMask(*mask, work_left);
  KeepMask(*std::move(mask));
  return FinishReason::kNone;
}

// Where the text is whole the end fits, too.
void Sequence::KeepMask(grammar::MaskPtr mask) {
  mask_ = std::move(mask);
  if (!may_end_) return;
  grammar::TokenMask with_ends = *mask_;
  for (const int32_t id : spec_.end_ids) {
    const auto byte = static_cast<size_t>(id / 8);
    if (byte < with_ends.bits.size()) with_ends.bits[byte] = static_cast<char>(with_ends.bits[byte] | (1 << (id % 8)));
    if (!with_ends.bits.empty()) continue;
    const auto at = std::lower_bound(with_ends.ids.begin(), with_ends.ids.end(), id);
    if (at == with_ends.ids.end() || *at != id) with_ends.ids.insert(at, id);
  }
  mask_ = std::make_shared<const grammar::TokenMask>(std::move(with_ends));
}

void Sequence::LoseRank() {
  ++num_losses_;
  met_loss_ = num_in_flight_ > 0;
  losses_in_a_row_ += met_loss_ ? 1 : 0;
  rank = -1;
  slot = -1;
  block_table.clear();
  num_published = 0;
  published_content = 0;
  sent_blocks = 0;
  draining = false;
  num_in_flight_ = 0;
  num_pending_ = 0;
}

void Sequence::JudgeLoss(bool from_outside) {
  if (met_loss_ && from_outside) --losses_in_a_row_;
  met_loss_ = false;
}

void Sequence::Requeue() {
  SY_CHECK_EQ(rank, -1);
  MoveTo(SequenceState::kWaiting);
  num_planned_ = 0;
}

void Sequence::Finish(FinishReason reason, absl::Time now) {
  SY_CHECK(reason != FinishReason::kNone);
  MoveTo(SequenceState::kFinished);
  draining = false;
  mask_wanted_ = nullptr;
  timings_.finished = now;
}

void Sequence::MoveTo(SequenceState next) {
  SY_CHECK(May(state_, next));
  state_ = next;
}

}  // namespace switchyard::batching
