// Several policies at once: all run as shadows, and the slots follow the one that would be fastest by now.
//
// Each candidate plans every layer for slots of its own that are only tags, and a virtual clock (copy_timeline.h) says
// how long its plan would take.  The real slots follow the plans of one of them, the leader (shadow_follower.h).
// A candidate's lead is the sum of what it took less than the leader.  It becomes the leader when its lead exceeds the
// cost of the change (a copy for each expert that it holds and the slots do not) by more than chance makes: the root of
// the sum of squares of what it gained or lost in each of the last 256 passes.  So a change costs no more than not
// changing has cost (rent or buy), and candidates that are alike do not take turns.  A lead never falls below minus the
// copies of all slots, so that a change of traffic is followed.
// Decisions depend on what cache_policy.h allows alone.  Takes the time and the memory of all candidates.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "scheduler/offload/copy_timeline.h"
#include "scheduler/offload/policies/shadow_follower.h"

namespace switchyard::offload {

class DuelingPolicy final : public CachePolicy {
 public:
  // The slots follow candidates[first] at first.  REQUIRES: fresh candidates of this shape, one at least.
  DuelingPolicy(const OffloadShape& shape, const CopyCost& cost, std::vector<std::unique_ptr<CachePolicy>> candidates,
                size_t first);

  absl::string_view name() const override { return "auto"; }
  std::vector<ExpertKey> InitialSlots() const override { return initial_; }
  void Learn(const LayerNeed& need) override;
  LayerPlan OnGate(const LayerNeed& need, absl::Span<const LayerForecast> forecasts) override;
  LayerPlan OnPass(absl::Span<const LayerForecast> forecasts, int64_t ticks) override;
  void Host(ExpertKey key, bool here) override;
  void Prefer(ExpertKey key, bool in_memory) override;

  // The policy that the slots follow.
  const CachePolicy& leader() const { return *shadows_[leader_].policy; }
  int64_t num_changes() const { return num_changes_; }

 private:
  struct Shadow {
    std::unique_ptr<CachePolicy> policy;
    CopyTimeline clock;
    int64_t lead = 0;     // over the leader, in ticks
    int64_t gain = 0;     // of this pass
    int64_t squares = 0;  // of gains, in chunks, decayed
  };
  // Counts what this gate took by each.
  void Count(const LayerNeed& need, absl::Span<const int64_t> ticks);
  void MaybeChange();

  const int num_layers_;
  int64_t copy_ticks_, chunk_ticks_;
  int64_t least_lead_;
  std::vector<Shadow> shadows_;
  size_t leader_;
  int64_t num_changes_ = 0;
  std::vector<ExpertKey> initial_;
  ShadowFollower follower_;
};

}  // namespace switchyard::offload
