// The packing of a job's experts: as its spec says or, where packings are tried, from packing.log in its folder and
// decided between its steps (expert_packer.h).
//
//   Find ─► the model is made with packing() ─► MakePacker ─► OpenJournal ─► AfterStep, after each step
// Thread-compatible.  All but OpenJournal are collective.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "scheduler/jobs/expert_packing.h"
#include "workers/checkpoint/files/file_system.h"
#include "workers/train/job/job_context.h"
#include "workers/train/job/setup/job_start.h"
#include "workers/train/job/setup/memory_fit.h"
#include "workers/train/packing/expert_packer.h"
#include "workers/train/parameters/parameters.h"
#include "workers/train/step/trainer.h"

namespace switchyard::train {

class JobPacking {
 public:
  // All borrowed.  checkpoints: the job's folder.
  JobPacking(JobContext* context, checkpoint::FileSystem* checkpoints, MemoryFit* fit, const JobStart* start)
      : context_(*context), checkpoints_(checkpoints), fit_(*fit), start_(*start) {}

  // Rank 0 reads the journal, if packings are tried; all check that its packing has room.  REQUIRES: the start was
  // read.
  absl::Status Find();
  int32_t packing() const { return packer_ != nullptr ? packer_->groups().packing() : controller_->packing(); }
  // REQUIRES: the packer was made.
  const TrainerGroup& group() const { return packer_->groups().group(); }
  absl::Status MakePacker(Trainer* trainer, Parameters* parameters);
  // Call it after the saver was opened, which checks that no later attempt has saved.
  absl::Status OpenJournal();
  // Returns the decision, if this step had one.
  absl::StatusOr<std::optional<jobs::PackingDecision>> AfterStep(const StepReport& report);

 private:
  absl::Status Replay(absl::string_view text);
  absl::Status CheckFits();
  void PackAnew(const std::string& why);
  absl::Status Journal(const jobs::PackingDecision& decision);

  JobContext& context_;
  checkpoint::FileSystem* const checkpoints_;
  MemoryFit& fit_;
  const JobStart& start_;
  std::optional<jobs::PackingController> controller_;  // until packer_ owns it
  bool adjusts_ = false;                               // the same on all ranks
  std::vector<jobs::PackingDecision> journalled_;      // the valid decisions of packing.log
  bool renews_journal_ = false;                        // the decisions of packing.log are not valid
  const Parameters* parameters_ = nullptr;
  std::unique_ptr<ExpertPacker> packer_;
};

}  // namespace switchyard::train
