#include "workers/moe/placement/cached_expert_host.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"
#include "scheduler/placement/placement.h"

namespace switchyard::moe {
CachedExpertHost::CachedExpertHost(ExpertOffload* offload)
    : offload_(offload),
      num_layers_(offload->num_layers()),
      num_experts_(static_cast<int>(offload->experts().size())),
      holders_(static_cast<size_t>(num_layers_) * offload->experts().size()) {}

absl::Status CachedExpertHost::Fill(const std::vector<std::vector<int32_t>>& experts, absl::Time deadline,
                                    Progress progress) {
  SY_CHECK_EQ(static_cast<int>(experts.size()), num_layers_);
  arriving_.clear();
  departed_.clear();
  holders_.assign(holders_.size(), 0);
  std::vector<ExpertHosting> hosting(holders_.size(), ExpertHosting::kElsewhere);
  for (size_t layer = 0; layer < experts.size(); ++layer) {
    for (const int32_t expert : experts[layer]) {
      if (expert == placement::kEmptySlot) continue;
      const size_t key = layer * static_cast<size_t>(num_experts_) + static_cast<size_t>(expert);
      const bool in_memory = !in_memory_.empty() && in_memory_[layer][static_cast<size_t>(expert)];
      holders_[key] = kTable;
      hosting[key] = in_memory ? ExpertHosting::kInMemory : ExpertHosting::kHere;
    }
  }
  return offload_->Fill(std::move(hosting), deadline, progress);
}

void CachedExpertHost::Hold(const Expert& expert, Holder holder) {
  uint8_t& holders = HoldersOf(expert);
  if (holders == 0) offload_->Host(expert.layer, expert.expert, true);
  holders |= holder;
}

void CachedExpertHost::Release(const Expert& expert, Holder holder) {
  uint8_t& holders = HoldersOf(expert);
  if ((holders & holder) == 0) return;
  holders &= static_cast<uint8_t>(~holder);
  if (holders == 0) offload_->Host(expert.layer, expert.expert, false);
}

absl::Status CachedExpertHost::Replace(int layer, int32_t before, int32_t now, CopyReason) {
  if (before != placement::kEmptySlot) Release({layer, before}, kTable);
  if (now != placement::kEmptySlot) Hold({layer, now}, kTable);
  return absl::OkStatus();
}

absl::Status CachedExpertHost::Prepare(absl::Span<const Expert> arrivals) {
  if (!arriving_.empty() || !departed_.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("budgeted experts: a migration has ", arriving_.size(),
                                                      " experts that arrive and ", departed_.size(),
                                                      " that wait for their release"));
  }
  for (const Expert& expert : arrivals) {
    Hold(expert, kMigration);
    arriving_.push_back(expert);
  }
  return absl::OkStatus();
}

void CachedExpertHost::Commit(absl::Span<const Expert> departures) {
  for (const Expert& expert : std::exchange(arriving_, {})) HoldersOf(expert) = kTable;
  for (const Expert& expert : departures) {
    SY_CHECK_EQ(int{HoldersOf(expert)}, int{kTable});
    HoldersOf(expert) = kDeparted;
    departed_.push_back(expert);
  }
}

void CachedExpertHost::Prefer(const Expert& expert, bool in_memory) {
  offload_->Prefer(expert.layer, expert.expert, in_memory);
}

absl::Status CachedExpertHost::Drop() {
  for (const Expert& expert : std::exchange(arriving_, {})) Release(expert, kMigration);
  return absl::OkStatus();
}

absl::Status CachedExpertHost::Release() {
  for (const Expert& expert : std::exchange(departed_, {})) Release(expert, kDeparted);
  return absl::OkStatus();
}

}  // namespace switchyard::moe
