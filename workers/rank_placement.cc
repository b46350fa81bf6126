#include "workers/rank_placement.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "scheduler/base/log.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/placement/resident_change.h"

namespace switchyard {
namespace {

constexpr absl::Duration kFillLimit = absl::Minutes(10);  // of all slots when a group begins

// Of a rank, at most.
int LayerSlots(const PlacementSettings& settings, int num_experts, int world) {
  return ResidentSlots({}, num_experts, world) + settings.replica_slots + settings.spare_slots;
}

}  // namespace

int PlacedSlots(const PlacementSettings& settings, const ModelConfig& config, int world) {
  const int of_layer = LayerSlots(settings, static_cast<int>(config.num_experts), world);
  return static_cast<int>(config.num_moe_layers()) * of_layer + (settings.rebalances() ? 1 : 0);
}

RankPlacement::RankPlacement(const RankPlacementInput& input)
    : settings_(input.settings),
      rank_(input.rank),
      world_(input.world),
      num_layers_(static_cast<int>(input.file.config->num_moe_layers())),
      num_experts_(static_cast<int>(input.file.config->num_experts)),
      top_k_(static_cast<int>(input.file.config->top_k)) {}

absl::StatusOr<std::unique_ptr<RankPlacement>> RankPlacement::Open(const RankPlacementInput& input,
                                                                   ExpertFile::Progress progress) {
  const ModelConfig& config = *input.file.config;
  auto placement = std::unique_ptr<RankPlacement>(new RankPlacement(input));
  ASSIGN_OR_RETURN(placement->file_, OpenRankExpertFile(input.file, progress));
  PlacedExpertsOptions options;
  options.num_layers = placement->num_layers_;
  options.num_experts = placement->num_experts_;
  options.num_slots = PlacedSlots(input.settings, config, input.world);
  options.expert = PackedExpertOf(config, input.file.dtype, input.file.device.kind);
  options.chunk_bytes = CopyChunkBytes(options.expert);
  options.bytes_per_second = input.copy_bytes_per_second;
  options.source = [file = placement->file_.get()](int layer, int expert) { return file->At(layer, expert); };
  options.checksum = [file = placement->file_.get()](int layer, int expert) { return file->checksum(layer, expert); };
  options.device = input.file.device;
  ASSIGN_OR_RETURN(std::unique_ptr<ExpertCopier> plain, CopierFrom(*placement->file_, options.device));
  auto copier = std::make_unique<TimedCopier>(std::move(plain));
  placement->copier_ = copier.get();
  ASSIGN_OR_RETURN(placement->experts_, PlacedExperts::Create(options, std::move(copier)));
  LogInfo("experts: ", options.num_slots, " slots of ", options.expert.bytes >> 10, " KiB, placement ",
          NameOf(input.settings.mode), ", from ", placement->file_->path(),
          placement->file_->built() ? " (built now)" : "");
  return placement;
}

ExpertLayout RankPlacement::SlotsOfLayer() const {
  Placement placement = ContiguousPlacement(num_experts_, world_, 0);
  const auto slots = static_cast<size_t>(LayerSlots(settings_, num_experts_, world_));
  for (std::vector<int32_t>& of_rank : placement.slots) of_rank.resize(slots, kEmptySlot);
  return ExpertLayout::FromPlacement(placement, 0);
}

PlacementBounds RankPlacement::Bounds() const {
  return {.layers = num_layers_,
          .experts = num_experts_,
          .devices = world_,
          .slots = ResidentSlots(settings_, num_experts_, world_)};
}

absl::Status RankPlacement::Begin(const GroupPlacement& placement, PlacedExperts::Progress progress) {
  RETURN_IF_ERROR(CheckGroupPlacement(placement, Bounds()));
  placer_.reset();
  DecidedPlacerOptions options;
  options.shape.epoch = placement.epoch;
  options.shape.mode = settings_.mode;
  options.shape.top_k = top_k_;
  options.shape.costs = placement.costs;
  if (!placement.residents.empty()) {
    for (const Placement& residents : placement.residents) {
      options.shape.residents.push_back(WithTransientSlots(residents, settings_.spare_slots));
    }
  } else {
    // Where no slow loop fills them, slots of ranks with fewer experts are the fast loop's.
    const Placement residents = ContiguousPlacement(num_experts_, world_, settings_.spare_slots);
    options.shape.residents.assign(
        static_cast<size_t>(num_layers_),
        settings_.rebalances() ? WithTransientSlots(residents, settings_.spare_slots) : residents);
  }
  options.rank = rank_;
  options.experts = experts_.get();
  ASSIGN_OR_RETURN(std::unique_ptr<DecidedPlacer> placer, DecidedPlacer::Create(std::move(options)));
  RETURN_IF_ERROR(experts_->Fill(placer->ExpertsHere(), absl::Now() + kFillLimit, progress));
  placer_ = std::move(placer);
  return absl::OkStatus();
}

absl::Status RankPlacement::Prepare(PlacementStage stage) {
  RETURN_IF_ERROR(CheckPlacementStage(stage, Bounds()));
  return placer_->Prepare(stage.epoch, stage.costs,
                          {.arrivals = std::move(stage.arrivals), .departures = std::move(stage.departures)});
}

}  // namespace switchyard
