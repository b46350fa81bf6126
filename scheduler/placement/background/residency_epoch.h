// The life of one migration of a residency plan on all ranks: prepared, committed at a step, the old one released.
//
//   kPreparing  ranks copy what arrives and check its sum; steps run by the placement before
//   kReady      every rank has all of it; the next StepPlan names the new epoch
//   kCommitted  a step was planned with it; steps planned before may still use what departs
//   kReleasing  no step in flight uses it any more; ranks release what departs
//   kDone       every rank has released it
//   kAborted    a rank failed or was lost, a checksum was wrong, or time ran out before the commit: what arrived is
//               dropped everywhere, the placement before stays
// A pure state machine: events in, directives out, which the server sends.  After the commit there is no way back: a
// rank that is lost then ends the group, and the next one starts from the committed placement.  Thread-compatible.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace switchyard::placement {

enum class EpochState : uint8_t { kPreparing, kReady, kCommitted, kReleasing, kDone, kAborted };
inline constexpr int kNumEpochStates = 6;

// The order for every rank.
enum class EpochDirective : uint8_t {
  kNone,
  kUseFromNextStep,  // the next StepPlan has placement_epoch = epoch()
  kRelease,          // release the memory of what departed
  kDropArrivals,     // drop what was prepared
};

class ResidencyEpoch {
 public:
  // A migration was planned and sent to all ranks.  `active_epoch` is the one in use.  REQUIRES: epoch > active_epoch;
  // num_ranks >= 1.
  ResidencyEpoch(uint64_t epoch, uint64_t active_epoch, int num_ranks, absl::Time deadline);

  // A rank has copied and checked all that arrives; !checksum_ok: what it read is damaged.  An answer that comes twice,
  // or after an abort, changes nothing.
  EpochDirective RankReady(int rank, bool checksum_ok);
  // A rank could not prepare, or is lost.
  EpochDirective RankFailed(int rank, absl::string_view why);
  // A StepPlan with this placement epoch was sent.  REQUIRES: steps grow.
  EpochDirective StepPlanned(int64_t step, uint64_t placement_epoch);
  // All ranks have done this step and all before it.
  EpochDirective StepDone(int64_t step);
  // A rank has released what departed.
  EpochDirective RankReleased(int rank);
  // The clock's now: past the deadline, what is not ready is aborted.
  EpochDirective Tick(absl::Time now);

  EpochState state() const { return state_; }
  uint64_t epoch() const { return epoch_; }
  // The placement epoch of the next StepPlan.
  uint64_t placement_epoch() const;
  // Why it was aborted: "rank 2: ..."; empty otherwise.
  const std::string& reason() const { return reason_; }

 private:
  void MoveTo(EpochState next);
  EpochDirective Abort(std::string why);
  EpochDirective ReleaseIfUnused();

  const uint64_t epoch_, active_epoch_;
  const absl::Time deadline_;
  EpochState state_ = EpochState::kPreparing;
  std::vector<bool> ready_, released_;                             // [R]
  int64_t last_planned_ = -1, last_done_ = -1, commit_step_ = -1;  // steps
  std::string reason_;
};

}  // namespace switchyard::placement
