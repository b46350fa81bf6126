#include "workers/serving/rank_placement.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "scheduler/base/clock.h"
#include "scheduler/base/log.h"
#include "scheduler/base/status_macros.h"
#include "workers/model/weights/weights.h"

namespace switchyard::worker {

int PlacedSlots(const RankPlacementInput& input) {
  const model::ModelConfig& config = *input.file.config;
  const int of_layer = placement::ExpertsOfLayer(input.settings, static_cast<int>(config.num_experts), input.world);
  return static_cast<int>(config.num_moe_layers()) * of_layer;
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
  options.expert = model::ExpertFormsOf(config, input.file.type, input.file.device.kind);
  options.chunk_bytes = file->piece_bytes();
  options.bytes_per_second = input.copy_bytes_per_second;
  options.source = [file](int layer, int expert) { return file->At(layer, expert); };
  options.device = input.file.device;
  ASSIGN_OR_RETURN(std::unique_ptr<moe::ExpertCopier> plain, CopierFrom(*file, options.device));
  const auto checksum = [file](const moe::ExpertId& id, int64_t offset) {
    return file->checksum_of_piece(id.layer, id.expert, offset);
  };
  auto summed = std::make_unique<moe::SummedCopier>(
      moe::SummedCopierOptions{.slots_on_host = options.device.is_cpu(), .checksum = checksum}, std::move(plain));
  placement->summed_ = summed.get();
  auto copier = std::make_unique<moe::TimedCopier>(std::move(summed));
  placement->copier_ = copier.get();
  ASSIGN_OR_RETURN(placement->slots_, moe::ReplicatedExperts::Create(options, std::move(copier)));
  LogInfo("experts: ", options.num_slots, " slots of ", options.expert.bytes() >> 10, " KiB, placement ",
          placement::NameOf(input.settings.mode), ", from ", file->path(), file->built() ? " (built now)" : "");
  return placement;
}

moe::ExpertLayout RankPlacement::SlotsOfLayer() const {
  placement::Placement placement = placement::ContiguousPlacement(num_experts_, world_, 0);
  const auto slots = static_cast<size_t>(placement::ExpertsOfLayer(settings_, num_experts_, world_));
  for (std::vector<int32_t>& of_rank : placement.slots) of_rank.resize(slots, placement::kEmptySlot);
  return moe::ExpertLayout::FromPlacement(placement);
}

absl::Status RankPlacement::Begin(const Stream& stream, moe::ReplicatedExperts::Progress progress) {
  balancer_.reset();
  moe::PerStepBalancerOptions options;
  options.shape.mode = settings_.mode;
  options.shape.top_k = top_k_;
  options.shape.residents.assign(static_cast<size_t>(num_layers_),
                                 placement::ContiguousPlacement(num_experts_, world_, settings_.spare_slots));
  options.rank = rank_;
  options.experts = slots_.get();
  ASSIGN_OR_RETURN(std::unique_ptr<moe::PerStepBalancer> balancer, moe::PerStepBalancer::Create(std::move(options)));
  RETURN_IF_ERROR(slots_->Fill(balancer->ExpertsHere(), MonotonicNow() + ExpertFillLimit(slot_bytes()), progress));
  if (balancer->may_decide_nothing()) RETURN_IF_ERROR(slots_->Stand(stream, balancer->HomesHere()));
  balancer_ = std::move(balancer);
  return absl::OkStatus();
}

}  // namespace switchyard::worker
