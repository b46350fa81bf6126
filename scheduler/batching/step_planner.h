// The planner of the next step: which tokens of which sequences every rank computes, in the order of work of
// scheduler.h.  Thread-compatible; no clock.  Does not look at deadlines or at how many plans are out.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "scheduler/batching/batching_policy.h"
#include "scheduler/batching/state/request_table.h"
#include "scheduler/batching/state/running_sequences.h"
#include "scheduler/batching/state/waiting_queue.h"
#include "scheduler/batching/step.h"

namespace switchyard::batching {

// The item of one sequence in a plan, until its result is here.
struct PlannedItem {
  Sequence* sequence = nullptr;
  int32_t start_pos = 0;
  int32_t num_query = 0;
  bool sample = false;
  int32_t num_prompt_logprobs = 0;  // that the result must bring
  int32_t first_path = 0;           // of whose rows it must bring the experts, up to the last; its end = of none
  bool suspect = false;             // of a suspect, when it was planned
  bool masked = false;              // samples a constrained sequence
  int32_t output = 0;               // then: which one it samples
};

struct PlannedStep {
  StepPlan plan;
  std::vector<std::vector<PlannedItem>> items;  // [R] as plan.ranks[].items
};

class StepPlanner {
 public:
  StepPlanner(const BatchingPolicy& policy, RequestTable* requests, WaitingQueue* waiting, RunningSequences* running);

  // The next step; nullopt: there is nothing to compute.  REQUIRES: a group.
  std::optional<PlannedStep> Plan(absl::Time now);
  // A new group has started: its steps count from 1.
  void StartGroup() { next_step_ = 1; }
  int64_t rows_given() const { return rows_given_; }

 private:
  struct Draft {
    absl::Time now;
    PlannedStep step;
    std::vector<int32_t> budget;  // [R] rows left
  };
  struct Placement {
    int32_t rank = -1;  // -1: nowhere
    PrefixMatch match;
  };

  void PreemptForVerification();
  void PlanRunning(int32_t rank, bool decodes, Draft* draft);
  void PlanWaiting(Draft* draft);
  static bool LacksMask(const Sequence& sequence);
  bool HeldForLeader(const Sequence& sequence) const;
  Placement Place(const Sequence& sequence, const Draft& draft, absl::Span<const int32_t> outstanding) const;
  void StartSequence(Sequence* sequence, const Placement& placement, Draft* draft);
  bool MakeRoom(const Sequence& sequence, int32_t num_blocks);
  int32_t ChunkOf(const Sequence& sequence, int32_t budget) const;
  int32_t BlocksFor(int32_t num_positions) const;
  void AddItem(Sequence* sequence, int32_t num_query, Draft* draft);
  int32_t MinRebalanceRows(const Draft& draft) const;
  PlannedStep Seal(Draft draft);

  const BatchingPolicy& policy_;
  RequestTable* const requests_;
  WaitingQueue* const waiting_;
  RunningSequences* const running_;
  int64_t next_step_ = 1;
  int64_t rows_given_ = 0;
};

}  // namespace switchyard::batching
