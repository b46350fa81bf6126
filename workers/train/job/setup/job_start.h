// Finds where an attempt continues: at the newest whole checkpoint of the job's folder, or at the beginning.  The
// folder of a fork began with its parent's checkpoint, so a fork has no beginning without one.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "workers/checkpoint/files/file_system.h"
#include "workers/checkpoint/manifest/find_checkpoint.h"
#include "workers/checkpoint/manifest/manifest.h"
#include "workers/train/job/job_context.h"
#include "workers/train/step/trainer_state.h"

namespace switchyard::train {

class JobStart {
 public:
  // All borrowed.  checkpoints: the job's folder.
  JobStart(JobContext* context, checkpoint::FileSystem* checkpoints) : context_(*context), checkpoints_(checkpoints) {}

  // Rank 0 locks the folder, as an earlier attempt may still commit, then reads all of the newest whole checkpoint.
  // Collective: all ranks get the same folder, or error.
  absl::Status Find();
  // Reads the checkpoint's progress, with its packing of experts.  shape: the job's, which must be the checkpoint's; a
  // fork's may differ from its parent's (FixedByFork).
  absl::Status Read(const JobShape& shape);

  const std::string& folder() const { return folder_; }  // "" = from the beginning
  const checkpoint::Manifest& manifest() const { return manifest_; }
  const TrainerState& state() const { return state_; }
  // Rank 0's lock of the folder, for the saver.
  std::unique_ptr<checkpoint::File> TakeLock() { return std::move(lock_); }

 private:
  absl::Status Lock();
  absl::StatusOr<checkpoint::FoundCheckpoint> Look();
  absl::Status ReadFiles(const JobShape& shape);
  absl::Status CheckState(const JobShape& shape) const;

  JobContext& context_;
  checkpoint::FileSystem* const checkpoints_;
  std::unique_ptr<checkpoint::File> lock_;
  std::string folder_;
  checkpoint::Manifest manifest_;
  TrainerState state_;
};

}  // namespace switchyard::train
