#include "scheduler/placement/background/residency_epoch.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "scheduler/base/check.h"

namespace switchyard::placement {
namespace {

//                                    Preparing Ready  Commit Release Done  Aborted
constexpr bool kMay[kNumEpochStates][kNumEpochStates] = {
    /* kPreparing */ {false, true, false, false, false, true},
    /* kReady     */ {false, false, true, false, false, true},
    /* kCommitted */ {false, false, false, true, false, false},
    /* kReleasing */ {false, false, false, false, true, false},
    /* kDone      */ {false, false, false, false, false, false},
    /* kAborted   */ {false, false, false, false, false, false}};

constexpr bool May(EpochState from, EpochState to) { return kMay[static_cast<int>(from)][static_cast<int>(to)]; }
static_assert(!May(EpochState::kPreparing, EpochState::kCommitted), "no step uses what a rank does not have");
static_assert(!May(EpochState::kCommitted, EpochState::kAborted), "steps have run by it");
static_assert(!May(EpochState::kReady, EpochState::kReleasing), "what departs is used until the commit");
static_assert(!May(EpochState::kAborted, EpochState::kReady), "an abort is for good");

bool All(const std::vector<bool>& ranks) { return std::find(ranks.begin(), ranks.end(), false) == ranks.end(); }

}  // namespace

ResidencyEpoch::ResidencyEpoch(uint64_t epoch, uint64_t active_epoch, int num_ranks, absl::Time deadline)
    : epoch_(epoch),
      active_epoch_(active_epoch),
      deadline_(deadline),
      ready_(num_ranks, false),
      released_(num_ranks, false) {
  SY_CHECK_GT(epoch, active_epoch);
  SY_CHECK_GE(num_ranks, 1);
}

void ResidencyEpoch::MoveTo(EpochState next) {
  SY_CHECK(May(state_, next));
  state_ = next;
}

EpochDirective ResidencyEpoch::Abort(std::string why) {
  if (!May(state_, EpochState::kAborted)) return EpochDirective::kNone;
  MoveTo(EpochState::kAborted);
  reason_ = std::move(why);
  return EpochDirective::kDropArrivals;
}

EpochDirective ResidencyEpoch::RankReady(int rank, bool checksum_ok) {
  if (state_ != EpochState::kPreparing) return EpochDirective::kNone;
  if (!checksum_ok) return Abort(absl::StrCat("rank ", rank, ": the checksum of what it copied is wrong"));
  ready_[rank] = true;
  if (!All(ready_)) return EpochDirective::kNone;
  MoveTo(EpochState::kReady);
  return EpochDirective::kUseFromNextStep;
}

EpochDirective ResidencyEpoch::RankFailed(int rank, absl::string_view why) {
  return Abort(absl::StrCat("rank ", rank, ": ", why));
}

EpochDirective ResidencyEpoch::StepPlanned(int64_t step, uint64_t placement_epoch) {
  SY_CHECK_GT(step, last_planned_);
  // A step by another placement than the one in force would compute with experts that are not there.
  SY_CHECK_EQ(placement_epoch, this->placement_epoch());
  last_planned_ = step;
  if (state_ != EpochState::kReady) return EpochDirective::kNone;
  MoveTo(EpochState::kCommitted);
  commit_step_ = step;
  return ReleaseIfUnused();
}

EpochDirective ResidencyEpoch::StepDone(int64_t step) {
  last_done_ = std::max(last_done_, step);
  return ReleaseIfUnused();
}

EpochDirective ResidencyEpoch::ReleaseIfUnused() {
  // The commit step itself does not use what departs, but that it is done shows that every rank has come to it.
  if (state_ != EpochState::kCommitted || last_done_ < commit_step_) return EpochDirective::kNone;
  MoveTo(EpochState::kReleasing);
  return EpochDirective::kRelease;
}

EpochDirective ResidencyEpoch::RankReleased(int rank) {
  if (state_ != EpochState::kReleasing) return EpochDirective::kNone;
  released_[rank] = true;
  if (All(released_)) MoveTo(EpochState::kDone);
  return EpochDirective::kNone;
}

EpochDirective ResidencyEpoch::Tick(absl::Time now) {
  if (state_ != EpochState::kPreparing || now < deadline_) return EpochDirective::kNone;
  std::vector<int> missing;
  for (size_t rank = 0; rank < ready_.size(); ++rank) {
    if (!ready_[rank]) missing.push_back(static_cast<int>(rank));
  }
  return Abort(
      absl::StrCat("not ready in time: ", missing.size() == 1 ? "rank " : "ranks ", absl::StrJoin(missing, ", ")));
}

uint64_t ResidencyEpoch::placement_epoch() const {
  return state_ == EpochState::kPreparing || state_ == EpochState::kAborted ? active_epoch_ : epoch_;
}

}  // namespace switchyard::placement
