#include "scheduler/pipeline/build_expert_parallel.h"

#include <utility>
#include <vector>

#include "scheduler/base/check.h"

namespace switchyard::pipeline {
namespace {

// Appends ops and remembers where each chunk's are.
class Program {
 public:
  explicit Program(const ExpertParallelOptions& options) : options_(options) {
    schedule_.name = "expert_parallel";
    schedule_.num_chunks = options.micro_batches;
    const int gate = Add({.kind = MicroOpKind::kGate});
    source_ = options.micro_batches == 1 ? gate : Add({.kind = MicroOpKind::kSplit, .deps = {gate}});
  }

  void Dispatch(int chunk) {
    std::vector<int> deps = {source_};
    if (options_.in_turn && chunk > 0) deps.push_back(dispatched_.back());
    dispatched_.push_back(Add({.kind = MicroOpKind::kDispatch,
                               .chunk = chunk,
                               .num_chunks = options_.micro_batches,
                               .deps = std::move(deps)}));
  }

  // The shared expert needs no other rank: it runs while the first rows travel.
  void SharedExpert() {
    if (options_.shared_expert) shared_ = Add({.kind = MicroOpKind::kExpert, .experts = ExpertSet::kShared});
  }

  void ExpertAndCombine(int chunk) {
    const int experts = Add({.kind = MicroOpKind::kExpert,
                             .chunk = chunk,
                             .num_chunks = options_.micro_batches,
                             .deps = {dispatched_[chunk]}});
    std::vector<int> deps = {experts};
    if (shared_ >= 0) deps.push_back(shared_);
    Add({.kind = MicroOpKind::kCombine, .chunk = chunk, .num_chunks = options_.micro_batches, .deps = std::move(deps)});
  }

  MoeSchedule Take() { return std::move(schedule_); }

 private:
  int Add(MicroOp op) {
    schedule_.ops.push_back(std::move(op));
    return static_cast<int>(schedule_.ops.size()) - 1;
  }

  const ExpertParallelOptions& options_;
  MoeSchedule schedule_;
  int source_ = 0;  // the op that dispatches depend on
  std::vector<int> dispatched_;
  int shared_ = -1;
};

}  // namespace

MoeSchedule BuildExpertParallel(const ExpertParallelOptions& options) {
  SY_CHECK_GE(options.micro_batches, 1);
  SY_CHECK_LE(options.micro_batches, kMaxMicroBatches);
  Program program(options);
  program.Dispatch(0);
  program.SharedExpert();
  for (int chunk = 0; chunk < options.micro_batches; ++chunk) {
    if (chunk + 1 < options.micro_batches) program.Dispatch(chunk + 1);
    program.ExpertAndCombine(chunk);
  }
  MoeSchedule schedule = program.Take();
  SY_CHECK_OK(Validate(schedule));
  return schedule;
}

}  // namespace switchyard::pipeline
