#include "workers/train/expert_packer.h"

#include <cmath>
#include <utility>

#include "scheduler/base/status_macros.h"
#include "workers/train/repack.h"

namespace switchyard {
namespace {

int64_t Nanoseconds(double seconds) { return std::llround(seconds * 1e9); }

}  // namespace

ExpertPacker::ExpertPacker(Trainer* trainer, Parameters* parameters, PackingController controller,
                           ExpertPackerOptions options)
    : trainer_(trainer), parameters_(parameters), options_(std::move(options)), controller_(std::move(controller)) {}

absl::StatusOr<std::unique_ptr<ExpertPacker>> ExpertPacker::Create(Trainer* trainer, Parameters* parameters,
                                                                   Communicator* world, PackingController controller,
                                                                   ExpertPackerOptions options, absl::Time deadline) {
  std::unique_ptr<ExpertPacker> packer(
      new ExpertPacker(trainer, parameters, std::move(controller), std::move(options)));
  const auto experts = static_cast<int>(parameters->model().config().num_experts);
  ASSIGN_OR_RETURN(packer->groups_, ExpertGroups::Make(world, experts, packer->controller_.packing(), deadline));
  RETURN_IF_ERROR(trainer->SetGroup(packer->groups_->group()));
  return packer;
}

void ExpertPacker::Measure(const StepReport& report) {
  measured_.experts_ns += Nanoseconds(report.seconds.experts);
  measured_.all_to_all_ns += Nanoseconds(report.seconds.all_to_all - report.seconds.backward_all_to_all);
  measured_.micro_ops += report.expert_ops;
}

absl::StatusOr<PackingTimes> ExpertPacker::SumTimes(absl::Time deadline) {
  int64_t sums[] = {measured_.experts_ns, measured_.all_to_all_ns, measured_.micro_ops};
  Communicator* const world = groups_->group().world;
  std::unique_ptr<Work> work;
  ASSIGN_OR_RETURN(work, world->AllReduceSum({.comm_class = CommClass::kControl, .deadline = deadline},
                                             TensorView(sums, DType::kI64, {3})));
  RETURN_IF_ERROR(work->Wait());
  return PackingTimes{.experts_ns = sums[0], .all_to_all_ns = sums[1], .micro_ops = sums[2]};
}

absl::StatusOr<PackingDecision> ExpertPacker::Decide(absl::Time deadline) {
  PackingTimes times;
  ASSIGN_OR_RETURN(times, SumTimes(deadline));
  measured_ = {};
  PackingDecision decision = controller_.Propose(trainer_->steps(), times);
  std::unique_ptr<Repack> repack;
  if (decision.to != decision.from) {
    const int64_t available = options_.available_bytes ? options_.available_bytes() : INT64_MAX;
    ASSIGN_OR_RETURN(repack, Repack::Prepare(*groups_, parameters_,
                                             {.packing = decision.to, .available_bytes = available}, deadline));
    if (!repack->refusal().empty()) decision = PackingController::Refused(decision, repack->refusal());
  }
  if (options_.journal) RETURN_IF_ERROR(options_.journal(decision));
  if (decision.to != decision.from) {
    std::unique_ptr<ExpertGroups> groups;
    ASSIGN_OR_RETURN(groups, repack->Run(deadline));
    RETURN_IF_ERROR(trainer_->SetGroup(groups->group()));
    groups_ = std::move(groups);
  }
  controller_.Adopt(decision);
  return decision;
}

absl::StatusOr<std::optional<PackingDecision>> ExpertPacker::AfterStep(const StepReport& report, absl::Time deadline) {
  const int64_t step = trainer_->steps();
  if (!options_.adjusts) return std::nullopt;
  if (controller_.Measures(step)) Measure(report);
  if (!controller_.Decides(step)) return std::nullopt;
  absl::StatusOr<PackingDecision> decision = Decide(deadline);
  if (decision.ok()) return *std::move(decision);
  if (groups_->group().world->world() > 1) groups_->group().world->Abort(decision.status().message());
  return decision.status();
}

}  // namespace switchyard
