#include "workers/moe/placement/decided_placer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/placement/per_step/resident_change.h"
#include "workers/comm/core/timed.h"
#include "workers/moe/placement/decision_message.h"

namespace switchyard {
namespace {

absl::Status CheckMode(PlacementMode mode) {
  if (mode == PlacementMode::kOracle) {
    return absl::InvalidArgumentError(
        "placement mode oracle wants to be told what the gate will say before it has; it is for benchmarks");
  }
  if (mode == PlacementMode::kIdeal) {
    return absl::InvalidArgumentError(
        "placement mode ideal forces the gate to be balanced, which changes answers; it is for benchmarks");
  }
  return absl::OkStatus();
}

bool Contains(const std::vector<int32_t>& experts, int32_t expert) {
  return std::find(experts.begin(), experts.end(), expert) != experts.end();
}

}  // namespace

DecidedPlacer::DecidedPlacer(DecidedPlacerOptions options, std::unique_ptr<PlacementPolicy> policy)
    : mode_(options.shape.mode),
      rank_(options.rank),
      experts_(options.experts),
      // With device 0 alone the others keep what it says.
      policy_(central() && rank_ != 0 ? nullptr : std::move(policy)),
      gather_(static_cast<int>(options.shape.residents.size()), options.shape.residents[0].num_experts,
              UsesEstimates(mode_)),
      epoch_(options.shape.epoch),
      placements_(std::move(options.shape.residents)),
      origins_(num_layers(), placements_[0].num_devices(), placements_[0].num_experts),
      layouts_(placements_.size()) {}

absl::StatusOr<std::unique_ptr<DecidedPlacer>> DecidedPlacer::Create(DecidedPlacerOptions options) {
  RETURN_IF_ERROR(CheckMode(options.shape.mode));
  ASSIGN_OR_RETURN(std::unique_ptr<PlacementPolicy> policy, MakePlacementPolicy(options.shape));
  SY_CHECK(0 <= options.rank && options.rank < options.shape.residents[0].num_devices());
  // What the policy begins with: replicas stand in slots that the residents leave empty.
  for (size_t layer = 0; layer < options.shape.residents.size(); ++layer) {
    options.shape.residents[layer] = policy->table(static_cast<int>(layer)).placement();
  }
  return std::unique_ptr<DecidedPlacer>(new DecidedPlacer(std::move(options), std::move(policy)));
}

std::vector<std::vector<int32_t>> DecidedPlacer::ExpertsHere() const {
  std::vector<std::vector<int32_t>> experts;
  for (const Placement& placement : placements_) experts.push_back(placement.slots[static_cast<size_t>(rank_)]);
  return experts;
}

absl::Status DecidedPlacer::BeginStep(int64_t step, int64_t placement_epoch) {
  step_ = step;
  if (placement_epoch == epoch_) return absl::OkStatus();
  if (staged_.has_value() && staged_->epoch == placement_epoch) return Commit();
  return absl::InternalError(
      absl::StrCat("plan: step ", step, " names placement epoch ", placement_epoch, "; in use is ", epoch_,
                   staged_.has_value() ? absl::StrCat(", prepared is ", staged_->epoch) : ", none is prepared"));
}

absl::Status DecidedPlacer::Commit() {
  ++num_commits_;
  commit_seconds_ = 0;
  const Timed timed(&commit_seconds_);
  ASSIGN_OR_RETURN(const bool ready, Ready());
  if (!ready) {
    return absl::InternalError(
        absl::StrCat("plan: names placement epoch ", staged_->epoch, ", whose copies have not arrived"));
  }
  ASSIGN_OR_RETURN(const std::vector<int> layers, policy_->Adopt(staged_->epoch, staged_->costs, staged_->stage));
  experts_->Commit(Here(staged_->stage.departures));
  PreferHere(staged_->stage);
  for (const int layer : layers) {
    placements_[static_cast<size_t>(layer)] = policy_->table(layer).placement();
    layouts_[static_cast<size_t>(layer)].reset();
  }
  epoch_ = staged_->epoch;
  staged_.reset();
  return absl::OkStatus();
}

absl::StatusOr<LayerPlacement> DecidedPlacer::Place(const MoeContext& context, const LayerContext& layer) {
  SY_CHECK_LT(layer.index, static_cast<int>(placements_.size()));
  ASSIGN_OR_RETURN(const DecisionGather::Told told, gather_.Gather(context, layer, digest_));
  RETURN_IF_ERROR(Decide(context, layer, told));
  RETURN_IF_ERROR(Apply(decision_.demand, CopyReason::kDemand));
  for (const SlotPlan& plan : decision_.prefetch) RETURN_IF_ERROR(Apply(plan, CopyReason::kPrefetch));
  if (!decision_.demand.changes.empty()) ++context.stats->fine_tuned_layers;
  const auto at = static_cast<size_t>(layer.index);
  for (const AwaitedCopy& copy : decision_.awaited) {
    if (copy.device != rank_ || experts_ == nullptr) continue;
    const std::vector<int32_t>& slots = placements_[at].slots[static_cast<size_t>(rank_)];
    if (copy.slot < static_cast<int32_t>(slots.size())) experts_->Hurry(layer.index, slots[copy.slot]);
  }
  if (!layouts_[at].has_value()) layouts_[at] = ExpertLayout::FromPlacement(placements_[at], epoch_);
  return LayerPlacement{.layout = &*layouts_[at], .split = &decision_.split, .estimates = ExpectedHere(told.estimates)};
}

// By the slots as this decision leaves them.
absl::Span<const LayerEstimate> DecidedPlacer::ExpectedHere(absl::Span<const LayerEstimate> estimates) {
  expected_here_.clear();
  popularity_here_.resize(estimates.size());
  for (size_t i = 0; i < estimates.size(); ++i) {
    const Placement& placement = placements_[static_cast<size_t>(estimates[i].layer)];
    Popularity& here = popularity_here_[i];
    here.assign(estimates[i].popularity.size(), 0);
    for (const int32_t expert : placement.slots[static_cast<size_t>(rank_)]) {
      if (expert == kEmptySlot) continue;
      const auto replicas = static_cast<int64_t>(placement.DevicesOf(expert).size());
      here[static_cast<size_t>(expert)] = estimates[i].popularity[static_cast<size_t>(expert)] / replicas;
    }
    expected_here_.push_back({.layer = estimates[i].layer, .popularity = here});
  }
  return expected_here_;
}

absl::Status DecidedPlacer::Decide(const MoeContext& context, const LayerContext& layer,
                                   const DecisionGather::Told& told) {
  const Timed timed(&context.stats->decide_seconds);
  const double begin = ThreadCpuSeconds();
  if (policy_ != nullptr) {
    decision_ =
        policy_->Decide({.step = step_, .layer = layer.index, .counts = told.counts, .estimates = told.estimates});
    digest_ = decision_.digest;
  }
  const bool alone = context.comm->world() == 1;
  if (central() && !alone)
    RETURN_IF_ERROR(policy_ != nullptr ? TellDecision(context, layer) : HearDecision(context, layer));
  if (central()) digest_ = DigestOfSaid(decision_);
  context.stats->decide_cpu_seconds += ThreadCpuSeconds() - begin;
  return absl::OkStatus();
}

absl::Status DecidedPlacer::TellDecision(const MoeContext& context, const LayerContext& layer) {
  const std::vector<int32_t> words = EncodeDecision(decision_);
  const auto bytes = static_cast<int64_t>(words.size() * sizeof(int32_t));
  std::vector<Message> out(static_cast<size_t>(context.comm->world()));
  for (size_t rank = 1; rank < out.size(); ++rank) {
    out[rank] = context.comm->NewMessage(bytes);
    std::copy_n(reinterpret_cast<const char*>(words.data()), bytes, out[rank].payload());
  }
  std::unique_ptr<Work> work;
  ASSIGN_OR_RETURN(work, context.comm->AllToAllV(context.Call(CallUse::kDecision, layer.index), std::move(out)));
  return work->Wait();
}

absl::Status DecidedPlacer::HearDecision(const MoeContext& context, const LayerContext& layer) {
  std::unique_ptr<Work> work;
  ASSIGN_OR_RETURN(work, context.comm->AllToAllV(context.Call(CallUse::kDecision, layer.index),
                                                 std::vector<Message>(static_cast<size_t>(context.comm->world()))));
  RETURN_IF_ERROR(work->Wait());
  const Message& said = work->received()[0];
  std::vector<int32_t> words(static_cast<size_t>(said.bytes()) / sizeof(int32_t));
  std::copy_n(said.payload(), words.size() * sizeof(int32_t), reinterpret_cast<char*>(words.data()));
  const Placement& first = placements_[0];
  ASSIGN_OR_RETURN(decision_, DecodeDecision(words, {.num_layers = static_cast<int>(placements_.size()),
                                                     .num_experts = first.num_experts,
                                                     .num_ranks = first.num_devices()}));
  if (decision_.layer == layer.index) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("decision: rank 0 decided layer ", decision_.layer, ", this is layer ", layer.index));
}

absl::Status DecidedPlacer::Apply(const SlotPlan& plan, CopyReason reason) {
  if (plan.changes.empty()) return absl::OkStatus();
  Placement& placement = placements_[static_cast<size_t>(plan.layer)];
  std::vector<int32_t>& here = placement.slots[static_cast<size_t>(rank_)];
  const std::vector<int32_t> before = here;
  for (const SlotChange& change : plan.changes) {
    std::vector<int32_t>& slots = placement.slots[static_cast<size_t>(change.device)];
    if (change.slot >= static_cast<int32_t>(slots.size())) {
      return absl::InternalError(absl::StrCat("decision: slot ", change.slot, " of ", slots.size(), " on rank ",
                                              change.device, ", MoE layer ", plan.layer));
    }
    slots[static_cast<size_t>(change.slot)] = change.expert;
  }
  if (const absl::Status status = CheckPlacement(placement); !status.ok()) {
    return absl::InternalError(absl::StrCat("decision: MoE layer ", plan.layer, ": ", status.message()));
  }
  layouts_[static_cast<size_t>(plan.layer)].reset();
  origins_.Changed(plan.layer, plan.changes,
                   reason == CopyReason::kPrefetch ? SlotOrigin::kEstimate : SlotOrigin::kGate);
  if (before == here) return absl::OkStatus();
  if (experts_ == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("placement mode ", NameOf(mode_), " moves experts, which stand in tables here"));
  }
  // As sets: one may only have changed its slot.
  for (const int32_t expert : before) {
    if (!Contains(here, expert)) RETURN_IF_ERROR(experts_->Replace(plan.layer, expert, kEmptySlot, reason));
  }
  for (const int32_t expert : here) {
    if (!Contains(before, expert)) RETURN_IF_ERROR(experts_->Replace(plan.layer, kEmptySlot, expert, reason));
  }
  return absl::OkStatus();
}

std::vector<RankSlots::Expert> DecidedPlacer::Here(const std::vector<ResidencyMove>& moves) const {
  std::vector<RankSlots::Expert> experts;
  for (const ResidencyMove& move : moves) {
    if (move.device == rank_ && ChangesHost(move.kind)) experts.push_back({move.layer, move.expert});
  }
  return experts;
}

void DecidedPlacer::PreferHere(const ResidencyStage& stage) const {
  for (const ResidencyMove& move : stage.arrivals) {
    if (move.device == rank_) experts_->Prefer({move.layer, move.expert}, move.kind != MoveKind::kRehome);
  }
  for (const ResidencyMove& move : stage.departures) {
    if (move.device == rank_ && move.kind == MoveKind::kOffload) experts_->Prefer({move.layer, move.expert}, false);
  }
}

absl::Status DecidedPlacer::Prepare(int64_t epoch, const MoveCosts& costs, ResidencyStage stage) {
  if (staged_.has_value() || epoch <= epoch_) {
    return absl::FailedPreconditionError(
        absl::StrCat("placement stage: epoch ", epoch, " comes while ", epoch_, " is in use",
                     staged_.has_value() ? absl::StrCat(" and ", staged_->epoch, " is prepared") : ""));
  }
  if (policy_ == nullptr || experts_ == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("placement stage: in the mode ", NameOf(mode_), " residents do not change here"));
  }
  RETURN_IF_ERROR(policy_->CheckStage(stage));
  RETURN_IF_ERROR(experts_->Prepare(Here(stage.arrivals)));
  staged_ = Staged{.epoch = epoch, .costs = costs, .stage = std::move(stage)};
  return absl::OkStatus();
}

absl::StatusOr<bool> DecidedPlacer::Ready() {
  if (!staged_.has_value()) return absl::FailedPreconditionError("placement stage: none is prepared");
  return experts_->Ready();
}

absl::Status DecidedPlacer::Drop(int64_t epoch) {
  if (!staged_.has_value() || staged_->epoch != epoch) return absl::OkStatus();
  staged_.reset();
  return experts_->Drop();
}

absl::Status DecidedPlacer::Release(int64_t epoch) {
  if (epoch != epoch_) {
    return absl::FailedPreconditionError(
        absl::StrCat("placement stage: epoch ", epoch, " is to be released, in use is ", epoch_));
  }
  return experts_ == nullptr ? absl::OkStatus() : experts_->Release();
}

}  // namespace switchyard
