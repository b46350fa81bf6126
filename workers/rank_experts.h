// A worker's experts under --expert_budget: the machine's expert file, the rank's slots, and the policy that fills
// them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "scheduler/offload/expert_budget.h"
#include "workers/model/config.h"
#include "workers/moe/expert_file.h"
#include "workers/moe/expert_offload.h"
#include "workers/rank_expert_file.h"

namespace switchyard {

// Slots of a rank with these residents.  InvalidArgument: too few, with what must fit: a token's experts and one that
// is copied while they compute.  REQUIRES: checked options, a model with experts.
absl::StatusOr<int> ExpertSlots(const ExpertBudgetOptions& options, const ModelConfig& config, DType dtype,
                                DeviceKind device, int64_t num_residents);

struct RankExpertsInput {
  RankExpertFileInput file;
  ExpertBudgetOptions options;
  std::vector<int32_t> residents;
};

class RankExperts {
 public:
  // Opens the file, building it if nobody has; makes the slots and fills them.  Blocks.
  // Errors: ExpertSlots', the file's, the loader's.
  static absl::StatusOr<std::unique_ptr<RankExperts>> Open(const RankExpertsInput& input,
                                                           ExpertFile::Progress progress);

  ExpertOffload* offload() { return offload_.get(); }
  int64_t slot_bytes() const { return offload_->store().bytes(); }
  ExpertStoreCounters counters() const { return offload_->store().counters(); }

 private:
  RankExperts() = default;

  std::unique_ptr<ExpertFile> file_;
  std::unique_ptr<ExpertOffload> offload_;  // copies from the file
};

}  // namespace switchyard
