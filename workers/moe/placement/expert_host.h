// Interface through which the per-step balancer changes which experts of all layers a rank holds.
//
// Who computes waits for weights (expert_weight_provider.h); nothing here depends on whether they are there.  After an
// error of a copy Fill must follow.  Thread-compatible: the step's thread.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "workers/moe/experts/expert_copier.h"

namespace switchyard::moe {

// Why an expert is copied.
enum class CopyReason : uint8_t {
  kFill,      // a group begins
  kDemand,    // the gate said so: its layer waits
  kPrefetch,  // an estimate of a coming layer did
};
inline constexpr int kNumCopyReasons = 3;

// Counts since the host was made.
struct ExpertHostCounters {
  std::array<int64_t, kNumCopyReasons> copies = {};  // that were begun
  int64_t copied_bytes = 0;
  int64_t failed = 0;       // copies
  int64_t late = 0;         // experts that a layer had to wait for
  double wait_seconds = 0;  // of layers, for them
  CopyPath path = CopyPath::kMemory;
};

class ExpertHost {
 public:
  // Called while slots are filled; false ends that.
  using Progress = absl::FunctionRef<bool(int64_t bytes_done, int64_t bytes_total)>;

  virtual ~ExpertHost() = default;

  // A group begins: this rank's experts are experts[layer], kEmptySlot ignored.  Copies what is missing; blocks.
  // Errors: DeadlineExceeded, Cancelled, a copy's.
  virtual absl::Status Fill(const std::vector<std::vector<int32_t>>& experts, absl::Time deadline,
                            Progress progress) = 0;

  // A decision changes a slot of this rank: `before` goes, `now` comes, kEmptySlot = none.  Does not wait.
  virtual absl::Status Replace(int layer, int32_t before, int32_t now, CopyReason reason) = 0;
  // The layer that computes next waits for this expert: its copy goes before prefetches.
  virtual void RaisePriority(int layer, int32_t expert) = 0;
};

}  // namespace switchyard::moe
