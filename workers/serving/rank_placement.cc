#include "workers/serving/rank_placement.h"

#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "scheduler/base/log.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/placement/per_step/resident_change.h"

namespace switchyard::worker {
namespace {

int ExpertsAtATime(const RankPlacementInput& input) {
  return placement::ExpertsOfLayer(input.settings, static_cast<int>(input.file.config->num_experts), input.world);
}

// [L][E] what the plan wants in memory; empty: it says nothing.
std::vector<std::vector<bool>> InMemory(const placement::GroupPlacement& placement) {
  std::vector<std::vector<bool>> in_memory = placement.offloaded;
  for (std::vector<bool>& layer : in_memory) layer.flip();
  return in_memory;
}

}  // namespace

absl::StatusOr<int> PlacedSlots(const RankPlacementInput& input) {
  const model::ModelConfig& config = *input.file.config;
  const int of_layer = ExpertsAtATime(input);
  if (!input.experts.empty())
    return ExpertSlots(input.experts, config, input.file.dtype, input.file.device.kind, of_layer);
  return static_cast<int>(config.num_moe_layers()) * of_layer + (input.settings.rebalances() ? 1 : 0);
}

RankPlacement::RankPlacement(const RankPlacementInput& input)
    : settings_(input.settings),
      rank_(input.rank),
      world_(input.world),
      num_layers_(static_cast<int>(input.file.config->num_moe_layers())),
      num_experts_(static_cast<int>(input.file.config->num_experts)),
      top_k_(static_cast<int>(input.file.config->top_k)) {}

absl::StatusOr<std::unique_ptr<RankPlacement>> RankPlacement::Open(const RankPlacementInput& input,
                                                                   moe::ExpertFile::Progress progress) {
  auto placement = std::unique_ptr<RankPlacement>(new RankPlacement(input));
  if (input.experts.empty()) {
    RETURN_IF_ERROR(placement->MakeSlots(input, progress));
    return placement;
  }
  std::vector<int32_t> all(static_cast<size_t>(placement->num_experts_));
  std::iota(all.begin(), all.end(), 0);
  ASSIGN_OR_RETURN(placement->budgeted_, RankExperts::Open({.file = input.file,
                                                            .options = input.experts,
                                                            .experts = std::move(all),
                                                            .experts_per_layer = ExpertsAtATime(input),
                                                            .popularity = input.popularity},
                                                           progress));
  placement->copier_ = &placement->budgeted_->copier();
  placement->table_ = std::make_unique<moe::CachedExpertHost>(placement->budgeted_->offload());
  placement->slots_ = placement->table_.get();
  return placement;
}

absl::Status RankPlacement::MakeSlots(const RankPlacementInput& input, moe::ExpertFile::Progress progress) {
  const model::ModelConfig& config = *input.file.config;
  ASSIGN_OR_RETURN(file_, OpenRankExpertFile(input.file, progress));
  moe::ReplicatedExpertsOptions options;
  options.num_layers = num_layers_;
  options.num_experts = num_experts_;
  ASSIGN_OR_RETURN(options.num_slots, PlacedSlots(input));
  options.expert = PackedExpertOf(config, input.file.dtype, input.file.device.kind);
  options.chunk_bytes = file_->piece_bytes();
  options.bytes_per_second = input.experts.copy_bytes_per_second;
  options.source = [file = file_.get()](int layer, int expert) { return file->At(layer, expert); };
  options.checksum = [file = file_.get()](int layer, int expert) { return file->checksum(layer, expert); };
  options.device = input.file.device;
  ASSIGN_OR_RETURN(std::unique_ptr<moe::ExpertCopier> plain, CopierFrom(*file_, options.device));
  auto copier = std::make_unique<moe::TimedCopier>(std::move(plain));
  copier_ = copier.get();
  ASSIGN_OR_RETURN(placed_, moe::ReplicatedExperts::Create(options, std::move(copier)));
  slots_ = placed_.get();
  LogInfo("experts: ", options.num_slots, " slots of ", options.expert.bytes >> 10, " KiB, placement ",
          placement::NameOf(input.settings.mode), ", from ", file_->path(), file_->built() ? " (built now)" : "");
  return absl::OkStatus();
}

moe::ExpertWeightProvider* RankPlacement::experts() {
  if (budgeted_ != nullptr) return budgeted_->experts();
  return placed_.get();
}

int64_t RankPlacement::slot_bytes() const { return budgeted_ != nullptr ? budgeted_->slot_bytes() : placed_->bytes(); }

moe::ExpertLayout RankPlacement::SlotsOfLayer() const {
  placement::Placement placement = placement::ContiguousPlacement(num_experts_, world_, 0);
  const auto slots = static_cast<size_t>(placement::ExpertsOfLayer(settings_, num_experts_, world_));
  for (std::vector<int32_t>& of_rank : placement.slots) of_rank.resize(slots, placement::kEmptySlot);
  return moe::ExpertLayout::FromPlacement(placement, 0);
}

placement::PlacementBounds RankPlacement::Bounds() const {
  return {.layers = num_layers_,
          .experts = num_experts_,
          .devices = world_,
          .slots = placement::ResidentSlots(settings_, num_experts_, world_)};
}

absl::Status RankPlacement::Begin(const placement::GroupPlacement& placement, moe::ExpertHost::Progress progress) {
  RETURN_IF_ERROR(placement::CheckGroupPlacement(placement, Bounds()));
  balancer_.reset();
  moe::PerStepBalancerOptions options;
  options.shape.epoch = placement.epoch;
  options.shape.mode = settings_.mode;
  options.shape.top_k = top_k_;
  options.shape.costs = placement.costs;
  if (!placement.residents.empty()) {
    for (const placement::Placement& residents : placement.residents) {
      options.shape.residents.push_back(placement::WithTransientSlots(residents, settings_.spare_slots));
    }
  } else {
    // Where no background balancer fills them, slots of ranks with fewer experts are the per-step balancer's.
    const placement::Placement residents = placement::ContiguousPlacement(num_experts_, world_, settings_.spare_slots);
    options.shape.residents.assign(
        static_cast<size_t>(num_layers_),
        settings_.rebalances() ? placement::WithTransientSlots(residents, settings_.spare_slots) : residents);
  }
  options.rank = rank_;
  options.experts = slots_;
  if (table_ != nullptr) table_->BeginWith(InMemory(placement));
  ASSIGN_OR_RETURN(std::unique_ptr<moe::PerStepBalancer> balancer, moe::PerStepBalancer::Create(std::move(options)));
  RETURN_IF_ERROR(slots_->Fill(balancer->ExpertsHere(), absl::Now() + ExpertFillLimit(slot_bytes()), progress));
  balancer_ = std::move(balancer);
  return absl::OkStatus();
}

absl::Status RankPlacement::Prepare(placement::Migration migration) {
  RETURN_IF_ERROR(placement::CheckMigration(migration, Bounds()));
  return balancer_->Prepare(migration.epoch, migration.costs,
                            {.arrivals = std::move(migration.arrivals), .departures = std::move(migration.departures)});
}

}  // namespace switchyard::worker
