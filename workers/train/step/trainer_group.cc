#include "workers/train/step/trainer_group.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace switchyard::train {

absl::Status CheckTrainerGroup(const TrainerGroup& group, absl::Span<const int32_t> held) {
  const int world = group.world->world(), holders = group.experts->world();
  const int replicas = group.replicas == nullptr ? 1 : group.replicas->world();
  if (group.layout->num_ranks() != holders || holders * replicas != world) {
    return absl::InvalidArgumentError(absl::StrCat("trainer: a layout of ", group.layout->num_ranks(), " ranks for ",
                                                   holders, " that have the experts ", replicas, " times, of ", world));
  }
  const absl::Span<const int32_t> residents = group.layout->Residents(group.experts->rank());
  if (!std::equal(residents.begin(), residents.end(), held.begin(), held.end())) {
    return absl::InvalidArgumentError(absl::StrCat("trainer: the layout gives rank ", group.experts->rank(), " ",
                                                   residents.size(), " experts; other ones than the ", held.size(),
                                                   " that it holds"));
  }
  for (int32_t expert = 0; expert < group.layout->num_experts(); ++expert) {
    const size_t places = group.layout->Places(expert).size();
    if (places == 1) continue;
    return absl::UnimplementedError(
        absl::StrCat("trainer: expert ", expert, " is on ", places, " ranks; a layout for training has each on one"));
  }
  return absl::OkStatus();
}

}  // namespace switchyard::train
