// The number of chunks into which a job's MoE layers cut their rows, where its granularity lets the ranks decide: the
// decision in chunks.log of its folder (scheduler/jobs/chunk_decision.h), else one by what layers take before the next
// step.
//
// Where rows stay on one rank, or a model has no MoE layers, nothing is decided.  Thread-compatible.  Find and Open are
// collective.
#pragma once

#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "scheduler/jobs/chunk_decision.h"
#include "workers/checkpoint/files/file_system.h"
#include "workers/train/job/job_context.h"
#include "workers/train/job/setup/job_start.h"
#include "workers/train/step/trainer.h"

namespace switchyard::train {

class JobChunks {
 public:
  // All borrowed.  checkpoints: the job's folder.
  JobChunks(JobContext* context, checkpoint::FileSystem* checkpoints, const JobStart* start)
      : context_(*context), checkpoints_(checkpoints), start_(*start) {}

  // Rank 0 reads the log, if the job has one.  REQUIRES: the start was read.
  absl::Status Find(const model::ModelConfig& config);
  // Measures and journals if nothing is decided yet, and sets the trainer's number of chunks.  Call it once the model
  // has its weights, and the saver was opened, which checks that no later attempt has saved.
  absl::Status Open(Trainer* trainer);

 private:
  absl::Status Read(absl::string_view log);
  void DecideAnew(absl::string_view why);
  absl::StatusOr<jobs::ChunkDecision> Measure(Trainer* trainer);
  absl::Status Journal(const jobs::ChunkDecision& decision);

  JobContext& context_;
  checkpoint::FileSystem* const checkpoints_;
  const JobStart& start_;
  // The same on all ranks.
  bool decides_ = false;
  std::optional<jobs::ChunkDecision> decision_;
};

}  // namespace switchyard::train
