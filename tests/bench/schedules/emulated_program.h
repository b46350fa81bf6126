// A rank's MoE layer whose messages are real and whose compute and copies are time that passes: the workers' executor
// runs its program, forward and backward.  Every collective moves the bytes that the simulator counts
// (program_costs.h). Thread-compatible.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "scheduler/simulator/program_costs.h"
#include "tests/bench/schedules/named_program.h"
#include "workers/comm/core/communicator.h"
#include "workers/moe/layer/schedule_executor.h"
#include "workers/tensor/tensor.h"

namespace switchyard::bench {

// The communicators of a rank's groups, made when a mesh first needs them; groups of the same ranks have one.
class LayerGroups {
 public:
  // all: borrowed.
  explicit LayerGroups(comm::Communicator* all) : all_(all) {}
  // All ranks call it alike.  Errors: Split's.
  absl::StatusOr<comm::Communicator*> Of(pipeline::Group group, const simulator::ProgramCosts& costs,
                                         absl::Time deadline);

 private:
  comm::Communicator* const all_;
  std::map<std::vector<std::vector<int>>, std::unique_ptr<comm::Communicator>> made_;  // by all groups of a kind
};

class EmulatedProgram : public moe::MicroOpRunner {
 public:
  // Errors: the groups', ProgramCosts::Check's.
  static absl::StatusOr<std::unique_ptr<EmulatedProgram>> Create(const NamedProgram* program,
                                                                 const simulator::Cluster& cluster,
                                                                 const simulator::MoeLayerShape& shape,
                                                                 LayerGroups* groups, absl::Time deadline);
  // All ranks alike.  Errors: the communicators'.
  absl::Status Run(pipeline::Pass pass, absl::Time deadline);

  absl::Status Start(const pipeline::MicroOp& op) override;
  absl::Status Finish(const pipeline::MicroOp& op) override;

 private:
  EmulatedProgram() = default;
  comm::WorkOr Communicate(const pipeline::MicroOp& op);
  // An exchange with those peers alone that the op reaches.
  comm::WorkOr ExchangeWithSome(const pipeline::MicroOp& op, const comm::CommCall& call, comm::Communicator* group,
                                int64_t bytes);
  // The thread that runs collectives one after the other, where there is one queue of them.
  void RunQueue();

  std::unique_ptr<simulator::ProgramCosts> passes_[2];
  bool one_queue_ = false, cut_by_peers_ = false;
  std::map<pipeline::Group, comm::Communicator*> groups_;
  std::vector<char> bytes_;  // of gathers
  Tensor sum_;
  // Of the present pass:
  const simulator::ProgramCosts* costs_ = nullptr;
  absl::Time deadline_;
  std::vector<std::unique_ptr<comm::Work>> works_;  // by op
  std::vector<absl::Time> copied_;                  // likewise
  absl::Time copies_end_, compute_end_;
  bool after_compute_ = false;
  // Of a queue: what was started and is not over, in order.
  absl::Mutex mu_;
  std::deque<const pipeline::MicroOp*> queued_ ABSL_GUARDED_BY(mu_);
  std::vector<char> over_ ABSL_GUARDED_BY(mu_);  // by op
  absl::Status queue_status_ ABSL_GUARDED_BY(mu_);
  bool ends_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace switchyard::bench
