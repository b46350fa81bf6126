#include "workers/serving/rank_placement.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "scheduler/base/log.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/placement/per_step/resident_change.h"

namespace switchyard::worker {

int PlacedSlots(const RankPlacementInput& input) {
  const model::ModelConfig& config = *input.file.config;
  const int of_layer = placement::ExpertsOfLayer(input.settings, static_cast<int>(config.num_experts), input.world);
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
  const model::ModelConfig& config = *input.file.config;
  ASSIGN_OR_RETURN(placement->file_, OpenRankExpertFile(input.file, progress));
  const moe::ExpertFile* const file = placement->file_.get();
  moe::ReplicatedExpertsOptions options;
  options.num_layers = placement->num_layers_;
  options.num_experts = placement->num_experts_;
  options.num_slots = PlacedSlots(input);
  options.expert = PackedExpertOf(config, input.file.dtype, input.file.device.kind);
  options.chunk_bytes = file->piece_bytes();
  options.bytes_per_second = input.copy_bytes_per_second;
  options.source = [file](int layer, int expert) { return file->At(layer, expert); };
  options.checksum = [file](int layer, int expert) { return file->checksum(layer, expert); };
  options.device = input.file.device;
  ASSIGN_OR_RETURN(std::unique_ptr<moe::ExpertCopier> plain, CopierFrom(*file, options.device));
  auto copier = std::make_unique<moe::TimedCopier>(std::move(plain));
  placement->copier_ = copier.get();
  ASSIGN_OR_RETURN(placement->slots_, moe::ReplicatedExperts::Create(options, std::move(copier)));
  LogInfo("experts: ", options.num_slots, " slots of ", options.expert.bytes >> 10, " KiB, placement ",
          placement::NameOf(input.settings.mode), ", from ", file->path(), file->built() ? " (built now)" : "");
  return placement;
}

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
  options.experts = slots_.get();
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
