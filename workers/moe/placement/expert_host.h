// What a rank holds of all layers' experts, as the per-step balancer changes it: what per_step_balancer.h says to what
// has slots.
//
// Three hold experts: the table (what this rank has of each layer by the decisions so far), a stage of the background
// balancer that is being prepared, and what departed with the last one until it is released.  Whether weights are there
// is another thing: whoever computes waits for them (expert_weight_provider.h), and nothing of what is said here
// depends on it. After an error of a copy Fill must follow.  Thread-compatible: the step's thread.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

namespace switchyard::moe {

// Why an expert is copied.
enum class CopyReason : uint8_t {
  kFill,      // a group begins
  kDemand,    // the gate said so: its layer waits
  kPrefetch,  // an estimate of a coming layer did
  kStage,     // the background balancer
  kRepair,    // what is in its slot turned out to be damaged
};
inline constexpr int kNumCopyReasons = 5;

// Since it was made.
struct ExpertHostCounters {
  std::array<int64_t, kNumCopyReasons> copies = {};  // that were begun
  int64_t copied_bytes = 0;
  int64_t failed = 0;       // copies
  int64_t late = 0;         // experts that a layer had to wait for
  double wait_seconds = 0;  // of layers, for them
};

class ExpertHost {
 public:
  // Told while slots are filled; false ends it.
  using Progress = absl::FunctionRef<bool(int64_t bytes_done, int64_t bytes_total)>;
  struct Expert {
    int32_t layer = 0;  // among the MoE layers
    int32_t expert = 0;
  };

  virtual ~ExpertHost() = default;

  // A group begins: the table is experts[layer], kEmptySlot among them ignored; nothing is staged.  Copies what has to
  // be there and is not; blocks.  Errors: DeadlineExceeded, Cancelled, a copy's.
  virtual absl::Status Fill(const std::vector<std::vector<int32_t>>& experts, absl::Time deadline,
                            Progress progress) = 0;

  // A decision changes a slot of this rank: `before` goes, `now` comes, kEmptySlot = none.  Does not wait.
  virtual absl::Status Replace(int layer, int32_t before, int32_t now, CopyReason reason) = 0;
  // The layer that computes next waits for this one: its copy goes before prefetches.
  virtual void RaisePriority(int layer, int32_t expert) = 0;

  // The background balancer, one stage at a time.  Starts copies of what this rank does not have.
  // ResourceExhausted: fewer free slots than arrivals; FailedPrecondition: the stage before was neither dropped nor
  // released.
  virtual absl::Status Prepare(absl::Span<const Expert> arrivals) = 0;
  // Whether all of them are there.  DataLoss: a copy arrived with a wrong checksum; a failed copy's error.  What was
  // here before and turns out to be damaged is copied anew first.  Does not wait.
  virtual absl::StatusOr<bool> Ready() = 0;
  // What arrived is the table's, and what departs is not, but stays until Release.  REQUIRES: Ready.
  virtual void Commit(absl::Span<const Expert> departures) = 0;
  // With a commit, of an expert of the table: the plan in force wants it in memory, or does not.  Says nothing to those
  // who have all in memory.
  virtual void Prefer(const Expert&, bool) {}
  // What was prepared and not committed, or what departed, is given up; nothing otherwise.
  virtual absl::Status Drop() = 0;
  virtual absl::Status Release() = 0;
};

}  // namespace switchyard::moe
