#include "workers/train/packing/expert_groups.h"

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::train {

absl::Status CheckPacking(int world, int packing) {
  if (packing >= 1 && world % packing == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("packing ", packing, " does not divide ", world, " ranks"));
}

std::vector<int32_t> PackedResidents(int num_experts, int world, int packing, int rank) {
  const int holders = world / packing;
  const moe::ExpertLayout layout = moe::ExpertLayout::Contiguous(num_experts, holders);
  const absl::Span<const int32_t> residents = layout.Residents(rank % holders);
  return {residents.begin(), residents.end()};
}

ExpertGroups::ExpertGroups(comm::Communicator* world, int num_experts, int packing)
    : packing_(packing), layout_(moe::ExpertLayout::Contiguous(num_experts, world->world() / packing)) {
  group_ = {.world = world, .experts = world, .layout = &layout_};
}

absl::StatusOr<std::unique_ptr<ExpertGroups>> ExpertGroups::Make(comm::Communicator* world, int num_experts,
                                                                 int packing, absl::Time deadline) {
  RETURN_IF_ERROR(CheckPacking(world->world(), packing));
  std::unique_ptr<ExpertGroups> groups(new ExpertGroups(world, num_experts, packing));
  if (packing == 1) return groups;
  const int holders = world->world() / packing;
  const int group = world->rank() / holders, place = world->rank() % holders;
  ASSIGN_OR_RETURN(groups->experts_, world->Split(group, place, deadline));
  ASSIGN_OR_RETURN(groups->replicas_, world->Split(place, group, deadline));
  groups->group_.experts = groups->experts_.get();
  groups->group_.replicas = groups->replicas_.get();
  return groups;
}

}  // namespace switchyard::train
