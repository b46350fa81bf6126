#include "workers/moe/placement/per_step_balancer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"
#include "workers/comm/core/timed.h"
#include "workers/moe/placement/decision_message.h"

namespace switchyard::moe {
namespace {

absl::Status CheckMode(placement::PlacementMode mode) {
  if (mode == placement::PlacementMode::kOracle) {
    return absl::InvalidArgumentError(
        "placement mode oracle needs the choices of a gate that has not run; it is for benchmarks");
  }
  if (mode == placement::PlacementMode::kIdeal) {
    return absl::InvalidArgumentError(
        "placement mode ideal forces the gate to be balanced, which changes answers; it is for benchmarks");
  }
  return absl::OkStatus();
}

bool Contains(const std::vector<int32_t>& experts, int32_t expert) {
  return std::find(experts.begin(), experts.end(), expert) != experts.end();
}

}  // namespace

PerStepBalancer::PerStepBalancer(PerStepBalancerOptions options, std::unique_ptr<placement::PlacementPolicy> policy)
    : mode_(options.shape.mode),
      rank_(options.rank),
      experts_(options.experts),
      // Where device 0 decides alone, the other ranks only keep its decisions.
      policy_(central() && rank_ != 0 ? nullptr : std::move(policy)),
      gather_(static_cast<int>(options.shape.residents.size()), options.shape.residents[0].num_experts,
              placement::UsesEstimates(mode_)),
      epoch_(options.shape.epoch),
      placements_(std::move(options.shape.residents)),
      origins_(num_layers(), placements_[0].num_devices(), placements_[0].num_experts),
      layouts_(placements_.size()),
      homes_(placements_.size()) {}

absl::StatusOr<std::unique_ptr<PerStepBalancer>> PerStepBalancer::Create(PerStepBalancerOptions options) {
  RETURN_IF_ERROR(CheckMode(options.shape.mode));
  ASSIGN_OR_RETURN(std::unique_ptr<placement::PlacementPolicy> policy, placement::MakePlacementPolicy(options.shape));
  SY_CHECK(0 <= options.rank && options.rank < options.shape.residents[0].num_devices());
  // The policy begins with replicas in slots that the residents leave empty.
  for (size_t layer = 0; layer < options.shape.residents.size(); ++layer) {
    options.shape.residents[layer] = policy->table(static_cast<int>(layer)).placement();
  }
  return std::unique_ptr<PerStepBalancer>(new PerStepBalancer(std::move(options), std::move(policy)));
}

std::vector<std::vector<int32_t>> PerStepBalancer::ExpertsHere() const {
  std::vector<std::vector<int32_t>> experts;
  for (const placement::Placement& placement : placements_)
    experts.push_back(placement.slots[static_cast<size_t>(rank_)]);
  return experts;
}

absl::Status PerStepBalancer::BeginStep(const BalancedStep& of) {
  const auto [step, placement_epoch, rank_rows, decides] = of;
  step_ = step;
  decides_ = decides;
  if (!decides && placement::IsPaper(mode_)) {
    return absl::InternalError(absl::StrCat("plan: step ", step, " decides nothing, but under --placement=",
                                            placement::NameOf(mode_), " experts have no homes"));
  }
  if (placement_epoch == epoch_) return absl::OkStatus();
  if (prepared_.has_value() && prepared_->epoch == placement_epoch) return Commit();
  return absl::InternalError(
      absl::StrCat("plan: step ", step, " names placement epoch ", placement_epoch, "; in use is ", epoch_,
                   prepared_.has_value() ? absl::StrCat(", prepared is ", prepared_->epoch) : ", none is prepared"));
}

absl::Status PerStepBalancer::Commit() {
  ++num_commits_;
  commit_seconds_ = 0;
  const comm::Timed timed(&commit_seconds_);
  ASSIGN_OR_RETURN(const bool ready, Ready());
  if (!ready) {
    return absl::InternalError(
        absl::StrCat("plan: names placement epoch ", prepared_->epoch, ", whose copies have not arrived"));
  }
  ASSIGN_OR_RETURN(const std::vector<int> layers,
                   policy_->Adopt(prepared_->epoch, prepared_->costs, prepared_->migration));
  experts_->Commit(Here(prepared_->migration.departures));
  for (const int layer : layers) {
    placements_[static_cast<size_t>(layer)] = policy_->table(layer).placement();
    layouts_[static_cast<size_t>(layer)].reset();
  }
  epoch_ = prepared_->epoch;
  homes_.assign(homes_.size(), std::nullopt);
  prepared_.reset();
  return absl::OkStatus();
}

absl::StatusOr<LayerPlacement> PerStepBalancer::Place(const MoeContext& context, const LayerContext& layer) {
  SY_CHECK_LT(layer.index, static_cast<int>(placements_.size()));
  if (!decides_) return LayerPlacement{.layout = &HomesOf(layer.index)};
  ASSIGN_OR_RETURN(const DecisionGather::Reported reported, gather_.Gather(context, layer, digest_));
  RETURN_IF_ERROR(Decide(context, layer, reported));
  RETURN_IF_ERROR(Apply(decision_.demand, CopyReason::kDemand));
  for (const placement::SlotPlan& plan : decision_.prefetch) RETURN_IF_ERROR(Apply(plan, CopyReason::kPrefetch));
  if (!decision_.demand.changes.empty()) ++context.stats->fine_tuned_layers;
  const auto at = static_cast<size_t>(layer.index);
  for (const placement::AwaitedCopy& copy : decision_.awaited) {
    if (copy.device != rank_ || experts_ == nullptr) continue;
    const std::vector<int32_t>& slots = placements_[at].slots[static_cast<size_t>(rank_)];
    if (copy.slot < static_cast<int32_t>(slots.size())) experts_->RaisePriority(layer.index, slots[copy.slot]);
  }
  if (!layouts_[at].has_value()) layouts_[at] = ExpertLayout::FromPlacement(placements_[at], epoch_);
  return LayerPlacement{.layout = &*layouts_[at], .split = &decision_.split};
}

const ExpertLayout& PerStepBalancer::HomesOf(int layer) {
  std::optional<ExpertLayout>& homes = homes_[static_cast<size_t>(layer)];
  if (!homes.has_value())
    homes = ExpertLayout::FromPlacement(policy_->shape().residents[static_cast<size_t>(layer)], epoch_);
  return *homes;
}

absl::Status PerStepBalancer::Decide(const MoeContext& context, const LayerContext& layer,
                                     const DecisionGather::Reported& reported) {
  const comm::Timed timed(&context.stats->decide_seconds);
  const double begin = comm::ThreadCpuSeconds();
  if (policy_ != nullptr) {
    decision_ = policy_->Decide(
        {.step = step_, .layer = layer.index, .counts = reported.counts, .estimates = reported.estimates});
    digest_ = decision_.digest;
  }
  const bool alone = context.comm->world() == 1;
  if (central() && !alone)
    RETURN_IF_ERROR(policy_ != nullptr ? ReportDecision(context, layer) : ReceiveDecision(context, layer));
  if (central()) digest_ = DigestOfSaid(decision_);
  context.stats->decide_cpu_seconds += comm::ThreadCpuSeconds() - begin;
  return absl::OkStatus();
}

absl::Status PerStepBalancer::ReportDecision(const MoeContext& context, const LayerContext& layer) {
  const std::vector<int32_t> words = EncodeDecision(decision_);
  const auto bytes = static_cast<int64_t>(words.size() * sizeof(int32_t));
  std::vector<comm::Message> out(static_cast<size_t>(context.comm->world()));
  for (size_t rank = 1; rank < out.size(); ++rank) {
    out[rank] = context.comm->NewMessage(bytes);
    std::copy_n(reinterpret_cast<const char*>(words.data()), bytes, out[rank].payload());
  }
  std::unique_ptr<comm::Work> work;
  ASSIGN_OR_RETURN(work, context.comm->AllToAllV(context.Call(comm::CallUse::kDecision, layer.index), std::move(out)));
  return work->Wait();
}

absl::Status PerStepBalancer::ReceiveDecision(const MoeContext& context, const LayerContext& layer) {
  std::unique_ptr<comm::Work> work;
  ASSIGN_OR_RETURN(work,
                   context.comm->AllToAllV(context.Call(comm::CallUse::kDecision, layer.index),
                                           std::vector<comm::Message>(static_cast<size_t>(context.comm->world()))));
  RETURN_IF_ERROR(work->Wait());
  const comm::Message& said = work->received()[0];
  std::vector<int32_t> words(static_cast<size_t>(said.bytes()) / sizeof(int32_t));
  std::copy_n(said.payload(), words.size() * sizeof(int32_t), reinterpret_cast<char*>(words.data()));
  const placement::Placement& first = placements_[0];
  ASSIGN_OR_RETURN(decision_, DecodeDecision(words, {.num_layers = static_cast<int>(placements_.size()),
                                                     .num_experts = first.num_experts,
                                                     .num_ranks = first.num_devices()}));
  if (decision_.layer == layer.index) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("decision: rank 0 decided layer ", decision_.layer, ", this is layer ", layer.index));
}

absl::Status PerStepBalancer::Apply(const placement::SlotPlan& plan, CopyReason reason) {
  if (plan.changes.empty()) return absl::OkStatus();
  placement::Placement& placement = placements_[static_cast<size_t>(plan.layer)];
  std::vector<int32_t>& here = placement.slots[static_cast<size_t>(rank_)];
  const std::vector<int32_t> before = here;
  for (const placement::SlotChange& change : plan.changes) {
    std::vector<int32_t>& slots = placement.slots[static_cast<size_t>(change.device)];
    if (change.slot >= static_cast<int32_t>(slots.size())) {
      return absl::InternalError(absl::StrCat("decision: slot ", change.slot, " of ", slots.size(), " on rank ",
                                              change.device, ", MoE layer ", plan.layer));
    }
    slots[static_cast<size_t>(change.slot)] = change.expert;
  }
  if (const absl::Status status = placement::CheckPlacement(placement); !status.ok()) {
    return absl::InternalError(absl::StrCat("decision: MoE layer ", plan.layer, ": ", status.message()));
  }
  layouts_[static_cast<size_t>(plan.layer)].reset();
  origins_.Changed(plan.layer, plan.changes,
                   reason == CopyReason::kPrefetch ? placement::SlotOrigin::kEstimate : placement::SlotOrigin::kGate);
  if (before == here) return absl::OkStatus();
  if (experts_ == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("placement mode ", placement::NameOf(mode_), " moves experts, which stand in tables here"));
  }
  // Compares sets, as an expert may only have changed its slot.
  for (const int32_t expert : before) {
    if (!Contains(here, expert)) RETURN_IF_ERROR(experts_->Replace(plan.layer, expert, placement::kEmptySlot, reason));
  }
  for (const int32_t expert : here) {
    if (!Contains(before, expert))
      RETURN_IF_ERROR(experts_->Replace(plan.layer, placement::kEmptySlot, expert, reason));
  }
  return absl::OkStatus();
}

std::vector<ExpertHost::Expert> PerStepBalancer::Here(const std::vector<placement::ResidencyMove>& moves) const {
  std::vector<ExpertHost::Expert> experts;
  for (const placement::ResidencyMove& move : moves) {
    if (move.device == rank_) experts.push_back({move.layer, move.expert});
  }
  return experts;
}

absl::Status PerStepBalancer::Prepare(int64_t epoch, const placement::MoveCosts& costs,
                                      placement::ResidencyMigration migration) {
  if (prepared_.has_value() || epoch <= epoch_) {
    return absl::FailedPreconditionError(
        absl::StrCat("placement migration: epoch ", epoch, " comes while ", epoch_, " is in use",
                     prepared_.has_value() ? absl::StrCat(" and ", prepared_->epoch, " is prepared") : ""));
  }
  if (policy_ == nullptr || experts_ == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("placement migration: in the mode ", placement::NameOf(mode_), " residents do not change here"));
  }
  RETURN_IF_ERROR(policy_->CheckMigration(migration));
  RETURN_IF_ERROR(experts_->Prepare(Here(migration.arrivals)));
  prepared_ = Prepared{.epoch = epoch, .costs = costs, .migration = std::move(migration)};
  return absl::OkStatus();
}

absl::StatusOr<bool> PerStepBalancer::Ready() {
  if (!prepared_.has_value()) return absl::FailedPreconditionError("placement migration: none is prepared");
  return experts_->Ready();
}

absl::Status PerStepBalancer::Drop(int64_t epoch) {
  if (!prepared_.has_value() || prepared_->epoch != epoch) return absl::OkStatus();
  prepared_.reset();
  return experts_->Drop();
}

absl::Status PerStepBalancer::Release(int64_t epoch) {
  if (epoch != epoch_) {
    return absl::FailedPreconditionError(
        absl::StrCat("placement migration: epoch ", epoch, " is to be released, in use is ", epoch_));
  }
  return experts_ == nullptr ? absl::OkStatus() : experts_->Release();
}

}  // namespace switchyard::moe
