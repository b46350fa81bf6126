// A worker's experts under --expert_memory: the machine's expert file, the rank's slots, and the policy that fills
// them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "scheduler/offload/expert_budget.h"
#include "workers/model/config/config.h"
#include "workers/moe/experts/cold_experts.h"
#include "workers/moe/experts/expert_file.h"
#include "workers/moe/experts/expert_offload.h"
#include "workers/moe/experts/summed_copier.h"
#include "workers/moe/experts/timed_copier.h"
#include "workers/serving/rank_expert_file.h"

namespace switchyard::worker {

// Slots of a rank that has so many experts of each layer; of an automatic budget the least there may be.
// InvalidArgument: too few, with what must fit: a token's experts and one that is copied while they compute.
// REQUIRES: checked options, a model with experts.
absl::StatusOr<int> ExpertSlots(const offload::ExpertBudgetOptions& options, const model::ModelConfig& config,
                                ops::WeightType type, DeviceKind device, int64_t experts_per_layer);

struct RankExpertsInput {
  RankExpertFileInput file;
  offload::ExpertBudgetOptions options;
  std::vector<int32_t> experts;  // of each layer that it has
  // [L * E] of all the model's experts, what slots begin with (profiled_shares.h); empty: nothing is known of them.
  std::vector<int64_t> popularity = {};
};

class RankExperts {
 public:
  // Opens the file, building it if nobody has; makes the slots, which are empty yet.  Blocks.
  // Errors: ExpertSlots', the file's, the loader's.
  static absl::StatusOr<std::unique_ptr<RankExperts>> Open(const RankExpertsInput& input,
                                                           moe::ExpertFile::Progress progress);

  // Fills the slots with the most popular experts.  Blocks.  Errors: ExpertOffload::Fill's.
  absl::Status Fill(moe::ExpertOffload::Progress progress);
  // The provider that the model's layers compute from.
  moe::ExpertWeightProvider* experts() {
    if (cold_ != nullptr) return cold_.get();
    return offload_.get();
  }
  // Whether bytes that were copied were not the file's as it was made: it has to be discarded.
  bool found_damage() const { return summed_->found_damage(); }
  // With all of the model's experts.
  const moe::ExpertFile& file() const { return *file_; }
  int64_t slot_bytes() const { return offload_->store().bytes(); }
  moe::ExpertOffloadCounters counters() const {
    moe::ExpertOffloadCounters counters = offload_->counters();
    counters.copy_seconds = copier_->seconds();
    return counters;
  }
  moe::ColdCounters cold_counters() const { return cold_ == nullptr ? moe::ColdCounters() : cold_->counters(); }

 private:
  RankExperts() = default;
  // From the file; copied_bytes: a second.
  absl::StatusOr<std::unique_ptr<moe::ExpertStore>> MakeStore(const RankExpertsInput& input, int slots,
                                                              double* copied_bytes);
  // Cold experts on the host, from a file in its own form.
  absl::Status MakeCold(const RankExpertsInput& input, moe::ExpertFile::Progress progress);

  std::unique_ptr<moe::ExpertFile> file_;
  const moe::TimedCopier* copier_ = nullptr;  // owned by offload_, as the next
  const moe::SummedCopier* summed_ = nullptr;
  std::unique_ptr<moe::ExpertOffload> offload_;  // copies from the file
  std::unique_ptr<moe::ExpertFile> host_file_;   // --cold_experts=host, where the CPU's form differs from the device's
  std::unique_ptr<moe::ColdExperts> cold_;       // borrows offload_
};

}  // namespace switchyard::worker
