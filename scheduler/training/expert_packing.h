// How many replicas of every expert the ranks of a training job keep: the controller that doubles them until experts'
// products take as long as the all-to-alls that they could hide.
//
// With packing p the experts of R ranks are on groups of R / p ranks, p times: rows travel within a group only, so that
// all-to-alls have fewer bytes on the wire and an expert more rows.  First after step 10, then every 4 steps, p doubles
// (of powers of two that divide R) while an all-to-all micro-op takes longer than the experts' micro-op behind it.  The
// first time it does not, or a rank has no room for more, that is the end: p only grows, and grows no more after it has
// stayed.
//
// Source: Lina, section 4.4 (spec A4, training 4; LI-10, LI-13).  Times are integers summed over ranks, so that all
// ranks see the same numbers and decide alike; the paper does not say how its devices agree.
//
//   after each step: if Decides(step): sum the ranks' times of the steps that it Measures, Propose, ask every rank for
//   room (else Refused), journal what comes of it, Adopt it.  A checkpoint of that step is saved afterwards.
//
// A journal makes a job go the same way again: Replay adopts what was decided up to the step that it goes on from, and
// Propose repeats what was decided after it, whatever is measured.
// Pure; PackingController is thread-compatible.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace switchyard {

// Of forward passes, summed over ranks.
struct PackingTimes {
  int64_t experts_ns = 0;     // experts' products
  int64_t all_to_all_ns = 0;  // packing, waiting for and unpacking rows
  int64_t micro_ops = 0;      // of experts; each has an all-to-all before it and one behind it
};

enum class PackingReason : uint8_t {
  kGrows,    // all-to-alls take longer than experts
  kCovered,  // experts take as long as all-to-alls: it stays
  kRanks,    // twice as many replicas do not divide the ranks, or are more than allowed: it stays
  kRefused,  // a rank has no room for more experts: it stays
};

// "grows", "covered", "ranks", "refused".
absl::string_view PackingReasonName(PackingReason reason);

struct PackingDecision {
  int64_t step = 0;   // steps done when it was made; it holds from the next one on
  int32_t world = 1;  // ranks that it was made for
  int32_t from = 1, to = 1;
  PackingReason reason = PackingReason::kGrows;
  PackingTimes times = {};
  std::string why = {};  // who refused, and why; else empty

  // "after step 10: packing 1 -> 2 of 8 ranks, all-to-all 3.2 ms, experts 1.1 ms a micro-op (grows)"
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
  int32_t most = INT32_MAX;  // replicas
};

class PackingController {
 public:
  // REQUIRES: world, first_step, every_steps, most >= 1.
  explicit PackingController(const PackingOptions& options);

  int32_t packing() const { return packing_; }
  // It will not change any more.
  bool settled() const { return settled_; }
  // Adopted so far.
  const std::vector<PackingDecision>& decisions() const { return decisions_; }

  // Whether there is something to decide when so many steps are done.
  bool Decides(int64_t step) const;
  // Whether the times of that step (the first is 1) count for the next decision: the last every_steps before it.
  bool Measures(int64_t step) const;
  // Nothing has changed yet.  REQUIRES: Decides(step).
  PackingDecision Propose(int64_t step, const PackingTimes& times) const;
  // What becomes of a proposal when a rank refuses.
  static PackingDecision Refused(PackingDecision proposal, absl::string_view why);
  // REQUIRES: a proposal of this state, refused or not.
  void Adopt(const PackingDecision& decision);

  // Goes on after so many steps.  REQUIRES: nothing was adopted before.
  // Errors, then nothing has changed: FailedPrecondition for a journal of another number of ranks; InvalidArgument for
  // one that this cannot have written.
  absl::Status Replay(absl::Span<const PackingDecision> journal, int64_t step);

 private:
  bool MayDouble() const;

  const PackingOptions options_;
  int32_t packing_ = 1;
  bool settled_ = false;
  std::vector<PackingDecision> decisions_;
  std::vector<PackingDecision> foreseen_;  // of the journal, with rising steps
};

}  // namespace switchyard
