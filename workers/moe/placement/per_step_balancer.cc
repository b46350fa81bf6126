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
  if (mode == placement::PlacementMode::kIdeal) {
    return absl::InvalidArgumentError(
        "placement mode ideal forces the gate to be balanced, which changes answers; it is for benchmarks");
  }
  return absl::OkStatus();
}

bool Contains(const std::vector<int32_t>& experts, int32_t expert) {
  return std::find(experts.begin(), experts.end(), expert) != experts.end();
}

// Without the slots that are empty.
ExpertLayout HomesOf(placement::Placement residents) {
  for (std::vector<int32_t>& of_rank : residents.slots) std::erase(of_rank, placement::kEmptySlot);
  return ExpertLayout::FromResidents(residents.num_experts, residents.slots);
}

}  // namespace

PerStepBalancer::PerStepBalancer(PerStepBalancerOptions options, std::unique_ptr<placement::PlacementPolicy> policy,
                                 std::vector<ExpertLayout> homes)
    : mode_(options.shape.mode),
      rank_(options.rank),
      experts_(options.experts),
      // Where device 0 decides alone, the other ranks only keep its decisions.
      policy_(central() && rank_ != 0 ? nullptr : std::move(policy)),
      gather_(static_cast<int>(options.shape.residents.size()), options.shape.residents[0].num_experts,
              placement::UsesEstimates(mode_)),
      placements_(std::move(options.shape.residents)),
      origins_(num_layers(), placements_[0].num_devices(), placements_[0].num_experts),
      layouts_(placements_.size()),
      homes_(std::move(homes)) {}

absl::StatusOr<std::unique_ptr<PerStepBalancer>> PerStepBalancer::Create(PerStepBalancerOptions options) {
  RETURN_IF_ERROR(CheckMode(options.shape.mode));
  ASSIGN_OR_RETURN(std::unique_ptr<placement::PlacementPolicy> policy, placement::MakePlacementPolicy(options.shape));
  SY_CHECK(0 <= options.rank && options.rank < options.shape.residents[0].num_devices());
  // The policy begins with replicas in slots that the residents leave empty.
  std::vector<ExpertLayout> homes;
  for (size_t layer = 0; layer < options.shape.residents.size(); ++layer) {
    homes.push_back(HomesOf(options.shape.residents[layer]));
    options.shape.residents[layer] = policy->table(static_cast<int>(layer)).placement();
  }
  return std::unique_ptr<PerStepBalancer>(new PerStepBalancer(std::move(options), std::move(policy), std::move(homes)));
}

std::vector<std::vector<int32_t>> PerStepBalancer::HomesHere() const {
  std::vector<std::vector<int32_t>> experts;
  for (const ExpertLayout& layout : homes_) {
    const absl::Span<const int32_t> here = layout.Residents(rank_);
    experts.emplace_back(here.begin(), here.end());
  }
  return experts;
}

std::vector<std::vector<int32_t>> PerStepBalancer::ExpertsHere() const {
  std::vector<std::vector<int32_t>> experts;
  for (const placement::Placement& placement : placements_)
    experts.push_back(placement.slots[static_cast<size_t>(rank_)]);
  return experts;
}

absl::Status PerStepBalancer::BeginStep(const BalancedStep& of) {
  const placement::LayerCosts& costs = of.costs;
  if (std::min({costs.copy_ps, costs.weights_ps, costs.row_ps}) < 0) {
    return absl::InternalError(absl::StrCat("plan: step ", of.step, " has negative costs: copy_ps=", costs.copy_ps,
                                            " weights_ps=", costs.weights_ps, " row_ps=", costs.row_ps));
  }
  if (!of.decides && placement::IsPaper(mode_)) {
    return absl::InternalError(absl::StrCat("plan: step ", of.step, " decides nothing, but under --placement=",
                                            placement::NameOf(mode_), " experts have no homes"));
  }
  step_ = of.step;
  decides_ = of.decides;
  if (policy_ != nullptr) policy_->SetCosts(costs);
  return absl::OkStatus();
}

absl::StatusOr<LayerPlacement> PerStepBalancer::Place(const MoeContext& context, const LayerContext& layer) {
  SY_CHECK_LT(layer.index, static_cast<int>(placements_.size()));
  if (!decides_) {
    LayerPlacement homes = {.layout = &homes_[static_cast<size_t>(layer.index)]};
    if (experts_ != nullptr) homes.standing = experts_->standing(layer.index);
    if (homes.standing != nullptr)
      SY_CHECK_EQ(homes.standing->gate_up.group().size(), static_cast<int64_t>(homes.layout->Residents(rank_).size()));
    return homes;
  }
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
  if (!layouts_[at].has_value()) layouts_[at] = ExpertLayout::FromPlacement(placements_[at]);
  return LayerPlacement{.layout = &*layouts_[at], .split = &decision_.split};
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

}  // namespace switchyard::moe
