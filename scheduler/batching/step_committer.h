// The plans in flight, oldest first, and what their results do to sequences.  A result is checked against its plan
// before anything changes.  Thread-compatible; no clock.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "scheduler/batching/event.h"
#include "scheduler/batching/state/running_sequences.h"
#include "scheduler/batching/step.h"
#include "scheduler/batching/step_planner.h"

namespace switchyard::batching {

class StepCommitter {
 public:
  StepCommitter(const BatchingPolicy& policy, RunningSequences* running) : policy_(policy), running_(running) {}

  // That step is sent: its result will come after those of the steps before.
  void Expect(int64_t step, std::vector<std::vector<PlannedItem>> items);
  // The masks of a step in flight whose masks are all known; once for each that has any.
  std::optional<StepMasks> NextMasks();
  absl::Status Commit(const StepResult& result, absl::Time now, std::vector<Event>* events);
  // The group is lost: no result comes any more.
  void Forget() { in_flight_.clear(); }

  int32_t num_in_flight() const { return static_cast<int32_t>(in_flight_.size()); }
  int64_t generated_tokens() const { return generated_tokens_; }

 private:
  struct InFlight {
    int64_t step = 0;
    std::vector<std::vector<PlannedItem>> ranks;  // [R] as StepPlan::ranks[].items
    bool lacks_masks = false;                     // they were not given out by NextMasks yet
  };

  static bool KnowsMasks(const InFlight& step);
  absl::Status CheckResult(const StepResult& result) const;
  absl::Status CheckItem(const PlannedItem& planned, const ItemResult& item) const;
  void CommitItem(const PlannedItem& planned, const ItemResult& result, absl::Time now, std::vector<Event>* events);
  bool CommitToken(const PlannedItem& planned, const ItemResult& result, absl::Time now, std::vector<Event>* events);
  static void EmitPromptLogprobs(const PlannedItem& planned, const ItemResult& result, std::vector<Event>* events);
  static void EmitExpertPaths(const PlannedItem& planned, const ItemResult& result, std::vector<Event>* events);

  const BatchingPolicy& policy_;
  RunningSequences* const running_;
  std::deque<InFlight> in_flight_;
  int64_t generated_tokens_ = 0;
  int64_t mask_work_ = 0;  // left to this call of Commit
};

}  // namespace switchyard::batching
