// How many replicas of every expert the ranks of a training job keep: the controller that doubles them while that
// helps.
//
// With packing p the experts of R ranks are on groups of R / p ranks, p times: rows travel within a group only, so
// all-to-alls send fewer bytes and an expert has more rows.  First after step 10, then every 4 steps, p doubles (within
// the powers of two that divide R) while an all-to-all micro-op takes longer than the experts' micro-op behind it. Once
// it does not, or a rank has no room for more, p stays.
//
// Source: Lina, section 4.4 (scheduler/PAPERS.md, item 4; LI-10, LI-13).  Times are integers summed over ranks, so that
// all ranks see the same numbers and decide alike; the paper does not say how its devices agree.
//
// Departure from Lina, whose rule ignores the cost of packing: gradients of experts are summed over replicas and AdamW
// updates p times as many experts.  (For the paper's Transformer-XL on 16 workers the rule ends at 4, which exposes 412
// ms of communication; 2 exposes 351.)  So a doubling is a trial: the next decision compares steps with it and before
// it, and takes it back, for good, unless its longest step was shorter than the shortest before, on average
// over ranks.  Were steps independent, chance alone would make this so in 1 of 35 first doublings (4 and 3 steps) and 1
// of 20 later ones (3 and 3).  The price: of steps that vary by 3 %, a gain of 5 % is kept in 2 of 5 cases.  Without
// times of steps (PackingTimes::steps of 0) the paper's rule decides alone.
//
//   after each step: if Decides(step): sum the ranks' times of the steps that it Measures, Propose, ask every rank for
//   room (else Refused), write the outcome into the journal, Adopt it.  A checkpoint of that step is saved afterwards.
//
// A journal makes a job go the same way again: Replay adopts what was decided up to its step; decisions after that step
// are repeated at the same steps (Predicts), whatever is measured.
// Pure; PackingController is thread-compatible.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace switchyard::jobs {

// Summed over steps and ranks.
struct PackingTimes {
  // In forward passes:
  int64_t experts_ns = 0;     // experts' products
  int64_t all_to_all_ns = 0;  // packing, unpacking rows and their way, experts' products beside it or not
  int64_t micro_ops = 0;      // of experts; each has an all-to-all before it and one behind it
  // In whole steps:
  int64_t step_ns = 0;
  int64_t sums_ns = 0;        // of that: waiting for sums of gradients when backward was done
  int64_t steps = 0;          // times ranks; 0 = not measured
  int64_t least_step_ns = 0;  // each rank's shortest, summed over ranks
  int64_t most_step_ns = 0;   // likewise the longest; 0 = neither is known

  // Of further steps of the same ranks.
  PackingTimes& operator+=(const PackingTimes& other);
};

enum class PackingReason : uint8_t {
  kGrows,    // all-to-alls take longer than experts
  kCovered,  // experts take as long as all-to-alls: it stays
  kRanks,    // twice as many replicas do not divide the ranks, or are more than allowed: it stays
  kRefused,  // a rank has no room for more experts: it stays
  kUndone,   // steps did not become clearly shorter by the last doubling: back to half as many, and it stays
};

// "grows", "covered", "ranks", "refused", "undone".
absl::string_view PackingReasonName(PackingReason reason);

struct PackingDecision {
  int64_t step = 0;   // steps done when it was made; it holds from the next one on
  int32_t world = 1;  // ranks that it was made for
  int32_t from = 1, to = 1;
  PackingReason reason = PackingReason::kGrows;
  PackingTimes times = {};
  std::string why = {};  // who refused, and why; what it was undone for; else empty

  // "after step 10: packing 1 -> 2 of 8 ranks, all-to-all 3.2 ms, experts 1.1 ms a micro-op, a step 90 ms, 12 ms of it
  // waiting for sums (grows)"
  std::string ToString() const;
  bool operator==(const PackingDecision& other) const;
};

// One line without its end, and back.  InvalidArgument for what Encode does not write.
std::string EncodePackingDecision(const PackingDecision& decision);
absl::StatusOr<PackingDecision> DecodePackingDecision(absl::string_view line);
// Lines, each ended.
std::string EncodePackingDecisions(absl::Span<const PackingDecision> decisions);
absl::StatusOr<std::vector<PackingDecision>> DecodePackingDecisions(absl::string_view lines);

// The most replicas that R ranks can have: the largest power of two that divides R.
int32_t MostPacking(int32_t world);

struct PackingOptions {
  int32_t world = 1;  // R
  int64_t first_step = 10;
  int64_t every_steps = 4;
  int32_t begin = 1;  // replicas
  int32_t most = INT32_MAX;
};

class PackingController {
 public:
  // REQUIRES: world, first_step, every_steps, begin, most >= 1.
  explicit PackingController(const PackingOptions& options);

  int32_t packing() const { return packing_; }
  // Whether packing stays as it is from now on.
  bool finalized() const { return finalized_; }
  // Adopted so far.
  const std::vector<PackingDecision>& decisions() const { return decisions_; }

  // Whether a decision is due when so many steps are done.  After a Replay whose journal has ended: not before
  // every_steps were done.
  bool Decides(int64_t step) const;
  // Whether the replayed journal has the decision of that step.
  bool Predicts(int64_t step) const { return !to_replay_.empty() && to_replay_.front().step == step; }
  // Whether the times of that step (the first is 1) count for the next decision: the last every_steps before it, but
  // not the first one with another packing or behind a Replay, which makes its buffers.
  bool Measures(int64_t step) const;
  // Changes nothing.  REQUIRES: Decides(step).
  PackingDecision Propose(int64_t step, const PackingTimes& times) const;
  // The decision that follows a proposal when a rank refuses.
  static PackingDecision Refused(PackingDecision proposal, absl::string_view why);
  // REQUIRES: a proposal of this state, refused or not; one that was predicted is not refused.
  void Adopt(const PackingDecision& decision);

  // Goes on after so many steps.  REQUIRES: nothing was adopted before.  Errors change nothing: FailedPrecondition for
  // a journal of another number of ranks; InvalidArgument for one that this cannot have written.
  absl::Status Replay(absl::Span<const PackingDecision> journal, int64_t step);

 private:
  bool MayDouble() const;
  // Whether the last decision was a doubling that brought nothing.
  bool WasInVain(const PackingTimes& times) const;
  absl::Status CheckFollows(const PackingDecision& decision) const;

  const PackingOptions options_;
  int32_t packing_;
  bool finalized_ = false;
  int64_t begun_ = 0;  // goes on from this step
  std::vector<PackingDecision> decisions_;
  std::vector<PackingDecision> to_replay_;  // the journal's decisions still to come, with rising steps
};

}  // namespace switchyard::jobs
