// The per-step balancer's table over an expert budget: the experts of a changing placement, a part of them in slots.
//
// The table says which experts rows may come for; a decision or a migration copies nothing by itself.  The cache policy
// decides what is in the budget's slots (expert_offload.h), as without a placement; it receives what rows may come for,
// how many by the decisions' estimates (layer_balancer.h), and what a committed migration wants in memory.  So a
// replica costs room in the cache, and a copy when rows come for it and it is not there.  Thread-compatible: the step's
// thread.  Makes no copies of its own, so that its migrations are ready at once; all copies of a budget are compared
// with checksums when they are made (summed_copier.h).
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "workers/moe/experts/expert_offload.h"
#include "workers/moe/placement/expert_host.h"

namespace switchyard::moe {

class CachedExpertHost : public ExpertHost {
 public:
  // offload: has all of the model's experts, 0 … E - 1, as those that rows may ever come for; borrowed.
  explicit CachedExpertHost(ExpertOffload* offload);

  // The experts [L][E] that Fill puts into slots before others: those that the background balancer wants in memory.
  // Empty: it says nothing.
  void BeginWith(std::vector<std::vector<bool>> in_memory) { in_memory_ = std::move(in_memory); }

  absl::Status Fill(const std::vector<std::vector<int32_t>>& experts, absl::Time deadline, Progress progress) override;
  absl::Status Replace(int layer, int32_t before, int32_t now, CopyReason reason) override;
  // Does nothing: a layer's plan raises the priority of what it uses.
  void RaisePriority(int, int32_t) override {}
  absl::Status Prepare(absl::Span<const Expert> arrivals) override;
  absl::StatusOr<bool> Ready() override { return true; }
  void Commit(absl::Span<const Expert> departures) override;
  void Prefer(const Expert& expert, bool in_memory) override;
  absl::Status Drop() override;
  absl::Status Release() override;

 private:
  enum Holder : uint8_t { kTable = 1, kMigration = 2, kDeparted = 4 };
  uint8_t& HoldersOf(const Expert& expert) {
    return holders_[static_cast<size_t>(expert.layer) * static_cast<size_t>(num_experts_) +
                    static_cast<size_t>(expert.expert)];
  }
  // Notify the policy when an expert gets its first holder, and when it loses its last one.
  void Hold(const Expert& expert, Holder holder);
  void Release(const Expert& expert, Holder holder);

  ExpertOffload* const offload_;
  const int num_layers_, num_experts_;
  std::vector<uint8_t> holders_;  // [L * E]
  std::vector<Expert> arriving_, departed_;
  std::vector<std::vector<bool>> in_memory_;  // [L][E]
};

}  // namespace switchyard::moe
