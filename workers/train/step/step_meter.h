// A job's progress in numbers, step by step.  Plain data and a smoothed rate.  Thread-compatible; time is a parameter.
#pragma once

#include <cstdint>

#include "absl/time/time.h"
#include "workers/train/step/trainer.h"

namespace switchyard::train {

struct StepProgress {
  int64_t step = 0;  // steps done
  StepReport report = {};
  double learning_rate = 0;
  int64_t tokens = 0;            // trained since the job began, in all attempts
  int64_t skipped_steps = 0;     // of `step`: those without a target, likewise
  double tokens_per_second = 0;  // lately
  double total_seconds = 0;      // of the step on this rank, what follows included
  double data_seconds = 0;       // reading tokens
  int32_t packing = 1;           // replicas of every expert from here on (expert_packer.h)
  bool packing_decided = false;  // behind this step
};

// Tokens and seconds of the steps so far, older ones weighing less by the step (0.95, as llm.c's).
class StepMeter {
 public:
  double TokensPerSecond(int64_t tokens, double seconds) {
    constexpr double kKept = 0.95;
    tokens_ = kKept * tokens_ + static_cast<double>(tokens);
    seconds_ = kKept * seconds_ + seconds;
    return seconds_ > 0 ? tokens_ / seconds_ : 0;
  }

 private:
  double tokens_ = 0, seconds_ = 0;
};

}  // namespace switchyard::train
