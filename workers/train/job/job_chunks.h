// The number of chunks into which a job's MoE layers cut their rows, where its granularity lets the ranks decide: from
// chunks.log in its folder, else measured before the first step, or tried in the first steps
// (scheduler/jobs/chunk_decisions.h).
//
//   Find ─► Open, once the model has its weights and the saver its lock ─► AfterStep, after each step
// Where rows stay on one rank, or a model has no MoE layers, nothing is decided.  Thread-compatible.  All are
// collective.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "scheduler/jobs/chunk_decisions.h"
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

  // Rank 0 reads the journal, if the job has one.  REQUIRES: the start was read.
  absl::Status Find(const model::ModelConfig& config);
  // Opens the journal, measures if that is due, and makes the trainer ask.  Call it after the saver was opened, which
  // checks that no later attempt has saved.  trainer: borrowed.
  absl::Status Open(Trainer* trainer);
  // Notes the decision, if this step had one.
  absl::Status AfterStep(const StepReport& report);

 private:
  absl::Status Replay(absl::string_view text);
  void DecideAnew(const std::string& why);
  absl::StatusOr<jobs::ChunkDecision> Measure(Trainer* trainer);
  absl::Status Journal(const jobs::ChunkDecision& decision);
  void Note(const jobs::ChunkDecision& decision);

  JobContext& context_;
  checkpoint::FileSystem* const checkpoints_;
  const JobStart& start_;
  std::optional<jobs::ChunkController> controller_;  // none: nothing is decided; the same on all ranks
  std::vector<jobs::ChunkDecision> journalled_;      // the valid decisions of chunks.log
  bool renews_journal_ = false;                      // there is no valid chunks.log
  const Trainer* trainer_ = nullptr;
};

}  // namespace switchyard::train
