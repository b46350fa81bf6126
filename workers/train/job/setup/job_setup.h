// Prepares a rank for the first step: opens the model, its data and the job's folder, checks that all of it fits into
// memory, and continues from the newest checkpoint.  Each part has the same outcome on all ranks.  Thread-compatible.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "scheduler/base/io/model_dir.h"
#include "workers/checkpoint/files/file_system.h"
#include "workers/checkpoint/files/write_files.h"
#include "workers/checkpoint/manifest/manifest.h"
#include "workers/model/config/config.h"
#include "workers/model/forward/model.h"
#include "workers/tensor/dtype.h"
#include "workers/train/job/checkpoint_saver.h"
#include "workers/train/job/job_chunks.h"
#include "workers/train/job/job_context.h"
#include "workers/train/job/job_packing.h"
#include "workers/train/job/setup/job_data.h"
#include "workers/train/job/setup/job_start.h"
#include "workers/train/job/setup/memory_fit.h"
#include "workers/train/parameters/parameters.h"
#include "workers/train/preferences/job_references.h"
#include "workers/train/step/trainer.h"
#include "workers/train/step/trainer_state.h"

namespace switchyard::train {

// The model that a job names: its base checkpoint, or an architecture with random weights.
struct JobModel {
  std::unique_ptr<ModelDir> dir;
  std::string config_text;  // of config.json
  model::ModelConfig config;
  model::TrainingConfig training;
};

// A job that can be trained.  Members borrow from those before them.
struct OpenedJob {
  std::unique_ptr<checkpoint::FileSystem> checkpoints;  // the job's folder
  std::unique_ptr<JobStart> start;
  JobModel source;
  std::unique_ptr<MemoryFit> fit;
  JobData data;
  JobShape shape;
  std::unique_ptr<model::Model> model;
  std::unique_ptr<Parameters> parameters;
  std::unique_ptr<Trainer> trainer;
  std::unique_ptr<JobReferences> references;  // null: the job has no preferences
  std::unique_ptr<JobPacking> packing;
  std::unique_ptr<JobChunks> chunks;
  std::unique_ptr<CheckpointSaver> saver;
  // The stop, requested while the reference computed, that has ended the setup early; the same on all ranks.
  jobs::StopKind stopped() const { return references != nullptr ? references->stopped() : jobs::StopKind::kNone; }
};

class JobSetup {
 public:
  // All borrowed.  job: empty; what was opened before an error stays in it.
  JobSetup(JobContext* context, OpenedJob* job) : context_(*context), job_(*job) {}

  // Blocks; once.  On an error that is not context.agreed() the other ranks still wait.  OK, and not all is opened, if
  // job.stopped().
  absl::Status Run();

 private:
  absl::Status OpenCheckpoints();
  absl::Status OpenModel();
  absl::Status OpenData();
  // Adds the checksum of the base's weights to the job's shape.  Collective.
  absl::Status AddChecksumOfBase();
  // Measures the links if the spec leaves the size of pieces to them.  Collective.
  absl::Status FindPieceBytes();
  absl::Status MakeModel();
  // Reads or computes the reference's log probabilities of the job's pairs; then the model may have the base's weights.
  // Collective.
  absl::Status OpenReferences();
  // Loads weights from the checkpoint to continue from or the base checkpoint, or draws them.
  absl::Status LoadStart();
  absl::Status Publish();
  absl::Status Restore();
  absl::Status Draw();
  absl::Status LoadBase();
  absl::Status OpenSaver();
  absl::StatusOr<std::vector<checkpoint::CheckpointFile>> SideFiles(DType weights) const;
  checkpoint::SavedBy OwnSavedBy() const;
  void WarnOfOtherBits(const checkpoint::SavedBy& saved_by);

  JobContext& context_;
  OpenedJob& job_;
  int64_t piece_bytes_ = 0;   // of sums
  bool base_loaded_ = false;  // the masters are the base's
};

}  // namespace switchyard::train
