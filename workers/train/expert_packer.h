// Packs the experts of a job's ranks while it trains: after a step, asks the controller (scheduler/training/
// expert_packing.h) with all ranks' times, has the experts moved if there is room, and gives the trainer its new group.
//
// A job:  PackingController controller({.world = R});  controller.Replay(journal, step) where it goes on from a step
//         PackedResidents(E, R, controller.packing(), rank): the experts that the model is made with
//         Create → { Trainer::Step → AfterStep → checkpoint }
// AfterStep is the fence: nothing else may be under way, and a checkpoint of the step is saved behind it, with
// controller().decisions().  Blocks of the parameters have moved when packing() has changed.
// Collective calls: every rank makes them at the same steps.  Thread-compatible.  CPU only.
//
// Does not do: offload of idle experts' parameters to the host.  On CPU ranks host memory is where they are; what does
// not fit is refused, by all ranks, and the decision says by whom.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "scheduler/training/expert_packing.h"
#include "workers/train/expert_groups.h"
#include "workers/train/parameters.h"
#include "workers/train/trainer.h"

namespace switchyard {

struct ExpertPackerOptions {
  bool adjusts = false;  // what CommMode::kFull means; else packing stays what the controller begins with
  // Bytes that this rank may still take; none: as many as it wants.
  std::function<int64_t()> available_bytes = {};
  // Every decision, on every rank, before anything of it is adopted.  An error ends the group.
  std::function<absl::Status(const PackingDecision&)> journal = {};
};

class ExpertPacker {
 public:
  // trainer, parameters, world: borrowed.  controller: nothing adopted, or a journal replayed.  Sets the trainer's
  // group. Errors: those of ExpertGroups::Make and Trainer::SetGroup.
  static absl::StatusOr<std::unique_ptr<ExpertPacker>> Create(Trainer* trainer, Parameters* parameters,
                                                              Communicator* world, PackingController controller,
                                                              ExpertPackerOptions options, absl::Time deadline);

  // report: of the step that trainer.steps() counts.  What was decided, if this was a step for it; the same on all
  // ranks. Errors: the communicator's, the journal's; any of them ends the group.
  absl::StatusOr<std::optional<PackingDecision>> AfterStep(const StepReport& report, absl::Time deadline);

  const PackingController& controller() const { return controller_; }
  const ExpertGroups& groups() const { return *groups_; }

 private:
  ExpertPacker(Trainer* trainer, Parameters* parameters, PackingController controller, ExpertPackerOptions options);
  void Measure(const StepReport& report);
  absl::StatusOr<PackingTimes> SumTimes(absl::Time deadline);
  absl::StatusOr<PackingDecision> Decide(absl::Time deadline);

  Trainer* const trainer_;
  Parameters* const parameters_;
  const ExpertPackerOptions options_;
  PackingController controller_;
  std::unique_ptr<ExpertGroups> groups_;
  PackingTimes measured_;  // on this rank, since the last decision
};

}  // namespace switchyard
