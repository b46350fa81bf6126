#include "workers/train/packing/expert_packer.h"

#include <cmath>
#include <iterator>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "workers/train/step/train_outcome.h"

namespace switchyard::train {
namespace {

int64_t Nanoseconds(double seconds) { return std::llround(seconds * 1e9); }

}  // namespace

jobs::PackingTimes TimesOf(const StepReport& report) {
  const RankStepSeconds& seconds = report.seconds;
  // With several chunks an all-to-all runs beside experts' products, which shortens the wait for it.
  const double beside = report.chunks > 1 ? seconds.experts : 0;
  return {.experts_ns = Nanoseconds(seconds.experts),
          .all_to_all_ns = Nanoseconds(seconds.all_to_all - seconds.backward_all_to_all + beside),
          .micro_ops = report.expert_ops,
          .step_ns = Nanoseconds(seconds.total),
          .sums_ns = Nanoseconds(seconds.all_reduce),
          .steps = 1,
          .least_step_ns = Nanoseconds(seconds.total),
          .most_step_ns = Nanoseconds(seconds.total)};
}

absl::StatusOr<jobs::PackingTimes> SumTimes(const jobs::PackingTimes& mine, comm::Communicator* world,
                                            absl::Time deadline) {
  int64_t sums[] = {mine.experts_ns, mine.all_to_all_ns, mine.micro_ops,     mine.step_ns,
                    mine.sums_ns,    mine.steps,         mine.least_step_ns, mine.most_step_ns};
  ASSIGN_OR_RETURN(std::unique_ptr<comm::Work> work,
                   world->AllReduceSum({.comm_class = comm::CommClass::kControl, .deadline = deadline},
                                       TensorView(sums, DType::kI64, {std::ssize(sums)})));
  RETURN_IF_ERROR(work->Wait());
  return jobs::PackingTimes{.experts_ns = sums[0],
                            .all_to_all_ns = sums[1],
                            .micro_ops = sums[2],
                            .step_ns = sums[3],
                            .sums_ns = sums[4],
                            .steps = sums[5],
                            .least_step_ns = sums[6],
                            .most_step_ns = sums[7]};
}

ExpertPacker::ExpertPacker(Trainer* trainer, Parameters* parameters, jobs::PackingController controller,
                           ExpertPackerOptions options)
    : trainer_(trainer), parameters_(parameters), options_(std::move(options)), controller_(std::move(controller)) {}

absl::StatusOr<std::unique_ptr<ExpertPacker>> ExpertPacker::Create(Trainer* trainer, Parameters* parameters,
                                                                   comm::Communicator* world,
                                                                   jobs::PackingController controller,
                                                                   ExpertPackerOptions options, absl::Time deadline) {
  std::unique_ptr<ExpertPacker> packer(
      new ExpertPacker(trainer, parameters, std::move(controller), std::move(options)));
  const auto experts = static_cast<int>(parameters->model().config().num_experts);
  ASSIGN_OR_RETURN(packer->groups_, ExpertGroups::Make(world, experts, packer->controller_.packing(), deadline));
  RETURN_IF_ERROR(trainer->SetGroup(packer->groups_->group()));
  return packer;
}

absl::StatusOr<jobs::PackingDecision> ExpertPacker::AskForRoom(jobs::PackingDecision proposal, absl::Time deadline) {
  if (proposal.to == proposal.from) return proposal;
  const int64_t available = options_.available_bytes ? options_.available_bytes() : INT64_MAX;
  ASSIGN_OR_RETURN(repack_, Repack::Prepare(*groups_, parameters_,
                                            {.packing = proposal.to,
                                             .available_bytes = available,
                                             .open_offload = options_.open_offload,
                                             .offloads = options_.offloads},
                                            deadline));
  const absl::Status& refusal = repack_->refusal();
  if (refusal.ok()) return proposal;
  if (!controller_.Predicts(proposal.step))
    return jobs::PackingController::Refused(std::move(proposal), refusal.message());
  ends_alike_ = true;
  return Lost(absl::Status(refusal.code(), absl::StrCat("packing: no room for what was decided before, \"",
                                                        proposal.ToString(), "\": ", refusal.message())));
}

absl::StatusOr<jobs::PackingDecision> ExpertPacker::Decide(absl::Time deadline) {
  ASSIGN_OR_RETURN(jobs::PackingTimes times, SumTimes(measured_, groups_->group().world, deadline));
  measured_ = {};
  const int64_t step = trainer_->steps();
  ASSIGN_OR_RETURN(jobs::PackingDecision decision, AskForRoom(controller_.Propose(step, times), deadline));
  if (options_.journal && !controller_.Predicts(step)) {
    if (absl::Status status = options_.journal(decision); !status.ok()) {
      ends_alike_ = true;
      return status;
    }
  }
  if (decision.to != decision.from) {
    ASSIGN_OR_RETURN(std::unique_ptr<ExpertGroups> groups, repack_->Run(deadline));
    RETURN_IF_ERROR(trainer_->SetGroup(groups->group()));
    groups_ = std::move(groups);
  }
  controller_.Adopt(decision);
  return decision;
}

absl::StatusOr<std::optional<jobs::PackingDecision>> ExpertPacker::AfterStep(const StepReport& report,
                                                                             absl::Time deadline) {
  const int64_t step = trainer_->steps();
  if (!options_.adjusts) return std::nullopt;
  if (controller_.Measures(step) && !report.skipped)
    measured_ += options_.times ? options_.times(report) : TimesOf(report);
  if (!controller_.Decides(step)) return std::nullopt;
  ends_alike_ = false;
  absl::StatusOr<jobs::PackingDecision> decision = Decide(deadline);
  repack_.reset();
  if (decision.ok()) return *std::move(decision);
  if (!ends_alike_ && groups_->group().world->world() > 1) groups_->group().world->Abort(decision.status().message());
  return decision.status();
}

}  // namespace switchyard::train
