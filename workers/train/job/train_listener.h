// Interface through which a rank's attempt at a training job reports: on the thread of TrainJob::Run, in the order of
// events; all but Started on rank 0 alone.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "scheduler/jobs/train_progress.h"
#include "workers/train/job/checkpoint_saver.h"
#include "workers/train/step/trainer.h"

namespace switchyard::train {

// A job's progress in numbers, step by step.
struct StepProgress {
  int64_t step = 0;  // steps done
  StepReport report = {};
  double learning_rate = 0;
  int64_t tokens = 0;            // trained since the job began, in all attempts
  int64_t skipped_steps = 0;     // of `step`: those without a target, likewise
  int64_t total_steps = 0;       // of the job
  double padding = 0;            // part of the step's sequences that no document filled
  double tokens_per_second = 0;  // lately
  double total_seconds = 0;      // of the step on this rank, with the work after it
  double data_seconds = 0;       // reading tokens
  int32_t packing = 1;           // replicas of every expert from here on (expert_packer.h)
  bool packing_decided = false;  // after this step
};

class TrainListener {
 public:
  virtual ~TrainListener() = default;
  // Training starts at this step.  Warnings: checkpoints that were rejected, and why bits may differ.
  virtual void Started(int64_t step, const std::vector<std::string>& warnings) = 0;
  virtual void StepDone(const StepProgress& progress) = 0;
  virtual void Evaluated(const jobs::EvaluationReport& report) = 0;
  virtual void Saved(const SavedStep& saved) = 0;
  // The present work, and every note_interval or so its progress: "evaluation after step 8: 40 of 200 windows".  While
  // Run's thread waits for threads that load, one of them may call.
  virtual void Note(const std::string& text) = 0;
};

}  // namespace switchyard::train
