// Interface through which a rank's attempt at a training job reports.  Called on the thread of TrainJob::Run, in the
// order of things; all but Started by rank 0 alone.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "workers/train/job/checkpoint_saver.h"
#include "workers/train/step/step_meter.h"

namespace switchyard::train {

class TrainListener {
 public:
  virtual ~TrainListener() = default;
  // From this step on.  Warnings: what was passed over, and why bits may differ.
  virtual void Started(int64_t step, const std::vector<std::string>& warnings) = 0;
  virtual void StepDone(const StepProgress& progress) = 0;
  virtual void Evaluated(int64_t step, double loss, int64_t tokens) = 0;
  virtual void Saved(const SavedStep& saved) = 0;
  // What it is doing; of what takes long every note_interval or so, for as long as it gets ahead: "evaluation after
  // step 8: 40 of 200 windows".  While Run's thread waits for those that load, one of them may tell.
  virtual void Note(const std::string& text) = 0;
};

}  // namespace switchyard::train
