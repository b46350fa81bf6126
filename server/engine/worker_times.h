// What the group's workers spent on the latest steps: how much of that was in a phase of a request.
//
// Used on the engine's thread.  Bounded: the latest kMostSteps steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "scheduler/batching/step.h"
#include "server/observe/request_record.h"

namespace switchyard::server {

class WorkerTimes {
 public:
  static constexpr size_t kMostSteps = 4096;

  // Sums since this group formed, by rank.
  struct Totals {
    int64_t group = 0;  // counts groups
    std::vector<WorkerTime> ranks;
  };

  // Another group: what was spent before is forgotten.
  void Clear() {
    ++group_;
    steps_.clear();
    sums_.clear();
  }
  // A step that was sent at `sent` is done.  Steps come in the order in which they were sent.
  void Add(absl::Time sent, absl::Span<const batching::RankResult> ranks) {
    sums_.resize(ranks.size());
    steps_.push_back({sent, sums_});
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      const batching::StepTimings& timings = ranks[rank].timings;
      WorkerTime& sum = sums_[rank];
      ++sum.steps;
      sum.total_seconds += timings.total_seconds;
      sum.attention_seconds += timings.attention_seconds;
      sum.expert_seconds += timings.expert_seconds;
      sum.exchange_seconds += timings.exchange_seconds;
    }
    if (steps_.size() > kMostSteps) steps_.pop_front();
  }

  Totals totals() const { return {group_, sums_}; }
  // Sums of the steps that were sent at `time` or later, by rank; empty: they reach further back than is known.
  std::vector<WorkerTime> Since(absl::Time time) const {
    // The first of them; those of a request are the latest few.
    size_t first = steps_.size();
    while (first > 0 && steps_[first - 1].sent >= time) --first;
    const bool reaches_back = first > 0 || steps_.size() < kMostSteps;
    if (first == steps_.size() || !reaches_back) return {};
    return Minus(sums_, steps_[first].before);
  }
  // Sums since `earlier`; empty: that was another group.
  std::vector<WorkerTime> Since(const Totals& earlier) const {
    return earlier.group == group_ ? Minus(sums_, earlier.ranks) : std::vector<WorkerTime>();
  }

 private:
  struct Step {
    absl::Time sent;
    std::vector<WorkerTime> before;  // the sums before this step
  };
  static std::vector<WorkerTime> Minus(std::vector<WorkerTime> later, const std::vector<WorkerTime>& earlier) {
    for (size_t rank = 0; rank < later.size() && rank < earlier.size(); ++rank)
      later[rank] = later[rank] - earlier[rank];
    return later;
  }

  int64_t group_ = 0;
  std::deque<Step> steps_;        // oldest first
  std::vector<WorkerTime> sums_;  // [R]
};

}  // namespace switchyard::server
