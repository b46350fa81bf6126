#include "workers/moe/experts/experts_in_place.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"
#include "workers/moe/layer/moe_context.h"

namespace switchyard::moe {

ExpertsInPlace::ExpertsInPlace(int num_layers, int num_experts, ExpertForms expert)
    : num_experts_(static_cast<size_t>(num_experts)),
      expert_(std::move(expert)),
      gate_up_(static_cast<size_t>(num_layers) * num_experts_),
      down_(gate_up_.size()) {}

void ExpertsInPlace::SetPlace(const ExpertId& id, const char* memory) {
  const size_t at = IndexOf(id);
  SY_CHECK_LT(at, gate_up_.size());
  gate_up_[at] = {};
  down_[at] = {};
  if (memory == nullptr) return;
  // (A weight may be written; these are not.)
  char* const packed = const_cast<char*>(memory);
  const PackedExpert& expert = expert_.of(id.layer);
  gate_up_[at] = ops::Weight::Over(expert.gate_up, packed, /*packed=*/true);
  down_[at] = ops::Weight::Over(expert.down, packed + expert.down_offset, /*packed=*/true);
}

absl::Status ExpertsInPlace::Check(absl::Span<const int32_t> experts) const {
  for (const int32_t expert : experts) {
    for (size_t at = static_cast<size_t>(expert); at < gate_up_.size(); at += num_experts_) {
      if (gate_up_[at].empty())
        return absl::InvalidArgumentError(absl::StrCat("experts in place: expert ", expert, " is not there"));
    }
  }
  return absl::OkStatus();
}

absl::Status ExpertsInPlace::RunLayer(const MoeContext&, const LayerContext& layer, const ExpertRows& rows,
                                      Compute compute) {
  const size_t slots = rows.experts.size();
  SY_CHECK_EQ(rows.offsets.size(), slots + 1);
  gate_ups_.assign(slots, nullptr);
  downs_.assign(slots, nullptr);
  for (size_t slot = 0; slot < slots; ++slot) {
    const ExpertId id = {.layer = layer.index, .expert = rows.experts[slot]};
    if (rows.offsets[slot + 1] == rows.offsets[slot]) continue;
    const bool is_there = id.expert >= 0 && !gate_up_[IndexOf(id)].empty();
    if (!is_there) {
      return absl::InternalError(absl::StrCat("experts in place: ", rows.offsets[slot + 1] - rows.offsets[slot],
                                              " rows for ", id.ToString(), ", which is not there"));
    }
    gate_ups_[slot] = &gate_up_[IndexOf(id)];
    downs_[slot] = &down_[IndexOf(id)];
  }
  return compute(gate_ups_, downs_);
}

}  // namespace switchyard::moe
