// A rank's training step whose messages and sums are real and whose compute is time that passes.
//
// Layers run as the model's forward and backward do (workers/model/backward/model_backward.h,
// workers/moe/layer/moe_backward.h): each MoE layer by the workers' own executor of its program, gradients complete in
// the order of BackwardStages and summed by the workers' own synchroniser, which learns of all-to-alls as there.
// An all-to-all sends every rank of the group as many bytes, as a balanced gate would.  Thread-compatible.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "scheduler/jobs/comm_spec.h"
#include "scheduler/pipeline/moe_schedule.h"
#include "tests/bench/training/recording_communicator.h"
#include "tests/bench/training/shaped_gradients.h"
#include "tests/bench/training/step_shape.h"
#include "workers/comm/core/communicator.h"
#include "workers/train/reduce/gradient_reducer.h"

namespace switchyard::bench {

// The inputs of one rank; all borrowed.  Rows and sums have connections of their own, so that links can distinguish
// them; in a mode in which rows overtake sums they are one group, whose frames share a connection.
struct StepGroups {
  comm::Communicator* rows = nullptr;       // all ranks
  comm::Communicator* row_group = nullptr;  // those that this rank's rows travel among; rows itself without packing
  RecordingCommunicator* sums = nullptr;    // all ranks
  comm::Communicator* replicas = nullptr;   // null without packing
};

struct StepTimes {
  absl::Time begin, forward_end, backward_end, end;
  absl::Duration compute;             // that passed by itself
  std::vector<TimeSpan> all_to_alls;  // of backward, in order: until it was waited for
  std::vector<TimeSpan> moe_layers;   // of backward
  std::vector<TimeSpan> sums;         // frames of sums under way
  absl::Duration forward_exchange;    // waited for in forward
  absl::Duration forward_all_to_all;  // under way in forward, waited for or not
  absl::Duration forward_experts;     // of compute, experts' in forward
  int64_t forward_expert_ops = 0;
};

// The program of a MoE layer in that mode, of ranks of which `holders` have all experts.
pipeline::MoeSchedule ScheduleOf(const StepShape& shape, const jobs::CommunicationSpec& spec, int world, int holders);

class EmulatedStep {
 public:
  // Errors: of the synchroniser (Unimplemented for a mode that is not there); ResourceExhausted.
  static absl::StatusOr<std::unique_ptr<EmulatedStep>> Create(const StepShape& shape,
                                                              const jobs::CommunicationSpec& spec,
                                                              const StepGroups& groups);
  // All ranks at once.  Errors: the communicators'.
  absl::StatusOr<StepTimes> Run(absl::Time deadline);
  // All gradients complete at once, and no all-to-all: when their sums began and ended.
  absl::StatusOr<TimeSpan> SumAll(absl::Time deadline);

  const pipeline::MoeSchedule& schedule() const { return schedule_; }
  int packing() const { return packing_; }
  int64_t num_sums() const { return sync_->num_sums(); }

 private:
  class Layer;
  EmulatedStep(const StepShape& shape, const StepGroups& groups, ShapedGradients gradients);
  absl::Status Backward(StepTimes* times, Layer* layer);

  const StepShape shape_;
  const StepGroups groups_;
  const int packing_;
  const ShapedGradients gradients_;
  pipeline::MoeSchedule schedule_;
  std::unique_ptr<train::GradientReducer> sync_;
};

}  // namespace switchyard::bench
