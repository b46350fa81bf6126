#include "workers/moe/placement/host_balancer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace switchyard::moe {

ExpertLayout LayoutOfHosts(const placement::HostGroups& groups) {
  std::vector<std::vector<int32_t>> residents(groups.host_of.size());
  for (int32_t expert = 0; expert < groups.num_experts(); ++expert) {
    for (size_t rank = 0; rank < residents.size(); ++rank) {
      if (groups.host_of[rank] == groups.HostOf(expert)) residents[rank].push_back(expert);
    }
  }
  return ExpertLayout::FromResidents(groups.num_experts(), residents, 0);
}

HostBalancer::HostBalancer(int rank, placement::HostGroups groups, int32_t many_rows)
    : layout_(LayoutOfHosts(groups)),
      split_(rank, std::move(groups), many_rows),
      counts_(static_cast<size_t>(layout_.num_experts())) {}

absl::Status HostBalancer::BeginStep(const BalancedStep& step) {
  const absl::Span<const int32_t> rows = step.rank_rows;
  const bool fits = rows.empty() || static_cast<int>(rows.size()) == layout_.num_ranks();
  if (!fits || std::any_of(rows.begin(), rows.end(), [](int32_t count) { return count < 0; })) {
    return absl::InternalError(absl::StrCat("plan: step ", step.step, " has rank_rows of ", rows.size(),
                                            " ranks, or negative ones; the group has ", layout_.num_ranks()));
  }
  split_.Begin(rows);
  return absl::OkStatus();
}

absl::StatusOr<LayerPlacement> HostBalancer::Place(const MoeContext&, const LayerContext& layer) {
  std::fill(counts_.begin(), counts_.end(), 0);
  const int32_t* const chosen = layer.topk_on_host.data<int32_t>();
  for (int64_t i = 0; i < layer.topk_on_host.NumElements(); ++i) {
    if (chosen[i] < -1 || chosen[i] >= layout_.num_experts())
      return absl::InternalError(absl::StrCat("host_balancer: choice ", i, " is expert ", chosen[i]));
    if (chosen[i] >= 0) ++counts_[static_cast<size_t>(chosen[i])];
  }
  table_ = split_.Split(counts_);
  return LayerPlacement{.layout = &layout_, .split = &table_};
}

}  // namespace switchyard::moe
