// The least time of a training step that its bytes and dependencies allow: one rank's compute, in order, beside one
// link, on which all-to-alls go first and sums use what is left from when their gradients are complete.
//
// Layers run the program that workers run (moe_schedule.h), with messages that take bytes / bandwidth and no time
// besides.  As an all-to-all is what compute waits for, letting it go first ends backward as early as can be, and what
// is left of the link is used as soon as there is anything for it.  The simulator finds it (event_simulator.h).  Pure.
#pragma once

#include <vector>

#include "absl/time/time.h"
#include "scheduler/pipeline/moe_schedule.h"
#include "tests/bench/training/step_shape.h"

namespace switchyard::bench {

struct PathInput {
  int layers = 1;
  const pipeline::MoeSchedule* schedule = nullptr;
  absl::Duration attention, experts;  // of a layer's forward
  absl::Duration all_to_all;          // of all chunks of a dispatch, or of a combine, on the wire
  // On the wire, of what becomes complete ...
  absl::Duration head_sums = {}, embedding_sums = {};   // before and after the layers' backward
  std::vector<absl::Duration> feed_forward_sums = {};   // [L] with the layer's experts
  std::vector<absl::Duration> attention_out_sums = {};  // [L] with the first half of its attention's backward
  std::vector<absl::Duration> attention_in_sums = {};   // [L] with the rest
};

struct CriticalPath {
  absl::Duration step;          // all there is
  absl::Duration compute;       // of it, compute by itself
  absl::Duration moe_backward;  // of one layer, from its first all-to-all to its last
  absl::Duration exposed() const { return step - compute; }
};

CriticalPath FindCriticalPath(const PathInput& input);

}  // namespace switchyard::bench
