// A sequence: one choice of one request, from its arrival to its end.
//
// The scheduler owns and changes it; the server sees the value types of this header (FinishReason, SequenceTimings,
// SequenceUsage) inside events.  Thread-compatible.  Counts its own tokens and says what it still has to compute.
//
// Positions.  A sequence has `tokens()` (prompt, then the committed outputs) and `num_pending()` outputs that steps in
// flight sample: their values are unknown here, the rank's slot feeds them.  `num_planned()` is the number of
// positions, from 0, whose keys and values exist once all planned steps have run.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "scheduler/batching/prefix_chain.h"
#include "scheduler/batching/step.h"
#include "scheduler/grammar/matcher.h"

namespace switchyard::batching {

// Chosen by the server, unique among the requests that have not finished.
using RequestId = uint64_t;

enum class SequenceState : uint8_t { kWaiting, kRunning, kFinished };

enum class FinishReason : uint8_t {
  kNone,         // not finished
  kStop,         // a stop id, or a stop string (the server's Cancel)
  kLength,       // max_tokens or the context is used up
  kAbort,        // cancelled by the client
  kDeadline,     // the request's deadline passed, queued or running
  kError,        // a logit was NaN or Inf
  kUnavailable,  // the group of workers that ran it was lost
  kPoisoned,     // the group was lost again and again when it ran this one, at last this one alone
  kConstraint,   // no token fits its constraint, or finding those that do takes too long
};
inline constexpr int kNumFinishReasons = 9;

// "stop", "length", "abort", "deadline", "error", "unavailable", "poisoned", "constraint"; "none".
absl::string_view FinishReasonName(FinishReason reason);

// Moments of a sequence's life, by the clock that the scheduler's callers pass; InfinitePast = has not happened.
struct SequenceTimings {
  absl::Time queued = absl::InfinitePast();
  absl::Time first_scheduled = absl::InfinitePast();  // a preemption does not move it
  absl::Time first_token = absl::InfinitePast();
  absl::Time last_token = absl::InfinitePast();
  absl::Time finished = absl::InfinitePast();

  // Intervals; zero where an end has not happened.
  absl::Duration Queue() const;    // queued → first_scheduled (→ finished if it was never scheduled)
  absl::Duration Prefill() const;  // first_scheduled → first_token
  absl::Duration Decode() const;   // first_token → last_token
};

struct SequenceUsage {
  int32_t prompt_tokens = 0;
  int32_t cached_tokens = 0;  // of the prompt, taken from the prefix cache when it was first scheduled
  int32_t completion_tokens = 0;
  int32_t preemptions = 0;
  int32_t prefill_rank = -1;  // where the first output was computed; -1: there is none
  int32_t last_rank = -1;     // where it ran last; -1: it never did
};

// The parameters of a sequence; constant.
struct SequenceSpec {
  RequestId request = 0;
  int32_t choice = 0;
  uint64_t arrival = 0;         // unique, grows with arrival: the order of scheduling, and (reversed) of preemption
  std::vector<int32_t> prompt;  // not empty
  SamplingParams sampling;
  int32_t max_tokens = 1;                          // outputs, >= 1
  PrefixChain chain;                               // of the prompt
  std::shared_ptr<grammar::Automaton> constraint;  // shared: by all that it constrains; null: none
  std::vector<int32_t> end_ids;                    // see Request
};

class Sequence {
 public:
  // Losses of its group in a row from which on it runs apart from other suspects, so that the next shows who was to
  // blame.  In a row: with no more than one output after a start, which the prefill gives; it may be the first decode
  // that crashes.
  static constexpr int32_t kSuspectAfter = 2;

  Sequence(SequenceSpec spec, absl::Time queued);
  Sequence(const Sequence&) = delete;
  Sequence& operator=(const Sequence&) = delete;

  RequestId request() const { return spec_.request; }
  int32_t choice() const { return spec_.choice; }
  uint64_t arrival() const { return spec_.arrival; }
  SequenceState state() const { return state_; }
  const std::vector<int32_t>& tokens() const { return tokens_; }
  int32_t num_tokens() const { return static_cast<int32_t>(tokens_.size()); }
  int32_t num_prompt_tokens() const { return static_cast<int32_t>(num_prompt_tokens_); }
  int32_t num_outputs() const { return num_tokens() - num_prompt_tokens(); }
  int32_t num_pending() const { return num_pending_; }
  int32_t num_planned() const { return num_planned_; }
  // Items of plans that were not committed yet.  Slot and blocks stay while it is not zero.
  int32_t num_in_flight() const { return num_in_flight_; }
  // Positions left to compute before the next sample: 1 for a decode, more for a prefill.
  int32_t num_to_compute() const { return num_tokens() + num_pending_ - num_planned_; }
  // Whether another sample may be planned without exceeding max_tokens and `max_context` tokens in all.
  bool WantsMore(int32_t max_context) const;
  // Whether it has to compute prompt positions whose logprobs were not delivered yet: no prefix reuse then.
  bool NeedsPromptLogprobs() const;
  // Prompt logprobs delivered so far are of positions below this one.
  int32_t next_prompt_logprob() const { return next_prompt_logprob_; }
  // Whether positions may come from the prefix cache: not if something of every one is still to be reported.
  bool MayBeCached() const { return !NeedsPromptLogprobs() && next_expert_path_ != 0; }
  // How many positions, from 0, may: not the last, whose logits are wanted, nor those of unreported experts.
  int32_t MostCached() const {
    return next_expert_path_ < 0 ? num_tokens() - 1 : std::min(num_tokens() - 1, next_expert_path_);
  }
  // Whether the client has something that was computed.
  bool has_delivered() const {
    return num_outputs() > 0 || next_prompt_logprob_ > 1 || next_expert_path_ > spec_.sampling.expert_paths_from;
  }
  const PrefixChain& chain() const { return chain_; }
  const SamplingParams& sampling() const { return spec_.sampling; }
  bool constrained() const { return matcher_ != nullptr; }
  // Of the output behind those that there are; null: it is not made yet.  REQUIRES: constrained.
  const grammar::MaskPtr& mask() const { return mask_; }
  const SequenceTimings& timings() const { return timings_; }
  SequenceUsage Usage() const;
  // Makes what a rank needs to hold this sequence in an empty slot.  REQUIRES: no pending outputs.
  SlotInit MakeSlotInit() const;

  // --- for the scheduler ---
  // Sets the part of its blocks' names that depends on the group that will run it (PrefixRoot).  REQUIRES: Waiting.
  void SetGroup(uint64_t weights_version, bool long_rope);
  // Waiting → Running at `rank`, `slot`, with `num_cached` positions taken from the prefix cache.
  void Start(int32_t rank, SlotId slot, int32_t num_cached, absl::Time now);
  // An item [num_planned, num_planned + num_query) was planned.
  void PlanItem(int32_t num_query, bool sample);
  // An item came back (whatever became of the sequence meanwhile).
  void CommitItem(bool sample);
  // Running → Waiting; everything planned is forgotten.  REQUIRES: nothing in flight; blocks and slot released.
  void Preempt();
  // Makes the next output's mask, if *mask_work, which is reduced by what is used, suffices; else mask() stays null,
  // and TaskOfMask says what it takes.  REQUIRES: constrained, not finished.
  void FindMask(int64_t* mask_work);
  grammar::MaskTask TaskOfMask() { return matcher_->TaskOfMask(); }
  // Expires when the sequence ends.
  std::weak_ptr<const bool> mask_wanted() const { return mask_wanted_; }
  // The mask was made elsewhere, or cannot be.  Returns why the sequence is over, or kNone.
  FinishReason SetMask(absl::StatusOr<grammar::MaskPtr> mask, int64_t work_left);
  // Appends an output; returns why the sequence is over with it, or kNone.  If it is constrained FindMask follows.
  FinishReason Append(int32_t token, int32_t max_context, absl::Time now);
  void DeliverPromptLogprobs(int32_t end_position) { next_prompt_logprob_ = end_position; }
  void DeliverExpertPaths(int32_t end_position) { next_expert_path_ = end_position; }
  // Its rank is gone: slot, blocks and everything in flight are forgotten.  Requeue or Finish follows.
  void LoseRank();
  // Running → Waiting after LoseRank: it will be computed again, outputs and all.
  void Requeue();
  int32_t num_losses() const { return num_losses_; }
  // Of these, since it made progress, those that met it in a plan and did not come from outside: it may be to blame.
  int32_t losses_in_a_row() const { return losses_in_a_row_; }
  bool is_suspect() const { return losses_in_a_row_ >= kSuspectAfter; }
  // The last loss is judged: `from_outside` takes it back.
  void JudgeLoss(bool from_outside);
  void Finish(FinishReason reason, absl::Time now);

  // Where it runs; meaningful while it holds a slot (Running, or Finished with items in flight).
  int32_t rank = -1;
  SlotId slot = -1;
  std::vector<BlockId> block_table;
  int32_t num_published = 0;       // leading blocks of the table that were published or found
  uint64_t published_content = 0;  // BlockPool's content id of the last of them
  bool draining = false;           // to be preempted as soon as nothing is in flight
  int32_t outputs_at_start = 0;    // num_outputs() when it was last started
  int32_t paths_at_start = -1;     // next_expert_path_ then, as it was sent to the rank's slot
  int32_t sent_blocks = 0;         // leading blocks of the table that the rank's slot already has

 private:
  void MoveTo(SequenceState next);
  // Goes on behind `token`; kNone: there is no constraint, or more may come.
  FinishReason AdvanceConstraint(int32_t token);
  void KeepMask(grammar::MaskPtr mask);

  SequenceSpec spec_;
  SequenceState state_ = SequenceState::kWaiting;
  std::vector<int32_t> tokens_;
  size_t num_prompt_tokens_ = 0;
  int32_t num_pending_ = 0;
  int32_t num_planned_ = 0;
  int32_t num_in_flight_ = 0;
  int32_t next_prompt_logprob_ = 1;  // position 0 has none
  int32_t next_expert_path_ = -1;    // experts of positions below this one were reported; -1: nobody asks for them
  int32_t num_cached_ = 0;
  int32_t num_preemptions_ = 0;
  int32_t prefill_rank_ = -1, last_rank_ = -1;  // as in SequenceUsage
  int32_t num_losses_ = 0, losses_in_a_row_ = 0;
  bool met_loss_ = false;  // the last one, which is not judged yet
  PrefixChain chain_;
  SequenceTimings timings_;
  std::unique_ptr<grammar::Matcher> matcher_;  // null: it has no constraint
  grammar::MaskPtr mask_;
  bool may_end_ = false;                     // where mask_ is of, the text is whole
  std::shared_ptr<const bool> mask_wanted_;  // this sequence's alone; others look whether it is still there
};

}  // namespace switchyard::batching
