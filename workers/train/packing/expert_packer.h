// Packs the experts of a job's ranks while it trains: after a step it gives all ranks' times to the controller
// (scheduler/jobs/expert_packing.h), moves experts if there is room, and sets the trainer's new group.
//
// A job:  PackingController controller({.world = R});  controller.Replay(journal, step) where it goes on from a step
//         PackedResidents(E, R, controller.packing(), rank): the experts that the model is made with
//         Create → { Trainer::Step → AfterStep → checkpoint }
// During AfterStep nothing else may be under way; a checkpoint of the step is saved after it.  When packing() has
// changed, blocks of the parameters have moved.  All calls are collective.  If memory is short, masters and moments of
// experts go into a file (Lina's offload, with a disk instead of host memory); if they do not fit there either, all
// ranks refuse the packing, and the decision names the rank without room.  Thread-compatible.  CPU only.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "scheduler/jobs/expert_packing.h"
#include "workers/train/packing/expert_groups.h"
#include "workers/train/packing/repack.h"
#include "workers/train/parameters/parameters.h"
#include "workers/train/step/trainer.h"

namespace switchyard::train {

// The times of one rank from a step's report.
jobs::PackingTimes TimesOf(const StepReport& report);
// The sum over all ranks, so that all make the same decisions.  Collective.  Errors: the communicator's.
absl::StatusOr<jobs::PackingTimes> SumTimes(const jobs::PackingTimes& mine, comm::Communicator* world,
                                            absl::Time deadline);

struct ExpertPackerOptions {
  bool adjusts = false;  // jobs::TriesPackings; else packing stays as the controller begins
  // Bytes that this rank may still use; none: no limit.
  std::function<int64_t()> available_bytes = {};
  OpenStateFileFn open_offload = {};
  bool offloads = false;
  // Called on every rank before a decision that is not in the journal is adopted.  Collective: one outcome for all.
  std::function<absl::Status(const jobs::PackingDecision&)> journal = {};
  // This rank's times of a step; none: TimesOf.
  std::function<jobs::PackingTimes(const StepReport&)> times = {};
};

class ExpertPacker {
 public:
  // trainer, parameters, world: borrowed.  controller: new, or with a journal replayed.  Sets the trainer's group.
  // Errors: those of ExpertGroups::Make and Trainer::SetGroup.
  static absl::StatusOr<std::unique_ptr<ExpertPacker>> Create(Trainer* trainer, Parameters* parameters,
                                                              comm::Communicator* world,
                                                              jobs::PackingController controller,
                                                              ExpertPackerOptions options, absl::Time deadline);

  // report: of the step that trainer.steps() counts.  Returns the decision, if this was a step for one; the same on all
  // ranks.  Errors: the journal's and ResourceExhausted, marked Lost, where a rank has no room for what was predicted:
  // these are the same on all ranks, and the group stands; the communicator's, which end the group.
  absl::StatusOr<std::optional<jobs::PackingDecision>> AfterStep(const StepReport& report, absl::Time deadline);

  const jobs::PackingController& controller() const { return controller_; }
  const ExpertGroups& groups() const { return *groups_; }

 private:
  ExpertPacker(Trainer* trainer, Parameters* parameters, jobs::PackingController controller,
               ExpertPackerOptions options);
  absl::StatusOr<jobs::PackingDecision> Decide(absl::Time deadline);
  absl::StatusOr<jobs::PackingDecision> AskForRoom(jobs::PackingDecision proposal, absl::Time deadline);

  Trainer* const trainer_;
  Parameters* const parameters_;
  const ExpertPackerOptions options_;
  jobs::PackingController controller_;
  std::unique_ptr<ExpertGroups> groups_;
  jobs::PackingTimes measured_;  // on this rank, since the last decision
  std::unique_ptr<Repack> repack_;
  bool ends_alike_ = false;  // all ranks get the same error
};

}  // namespace switchyard::train
