// Interface through which the per-step balancer changes which experts of all layers a rank holds.
//
// Three hold experts: the table (this rank's of each layer by the decisions so far), a migration of the background
// balancer that is being prepared, and what departed with the last migration until it is released.  Who computes waits
// for weights (expert_weight_provider.h); nothing here depends on whether they are there.  After an error of a copy
// Fill must follow.  Thread-compatible: the step's thread.
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
  kFill,       // a group begins
  kDemand,     // the gate said so: its layer waits
  kPrefetch,   // an estimate of a coming layer did
  kMigration,  // the background balancer
  kRepair,     // what is in its slot turned out to be damaged
};
inline constexpr int kNumCopyReasons = 5;

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
  struct Expert {
    int32_t layer = 0;  // among the MoE layers
    int32_t expert = 0;
  };

  virtual ~ExpertHost() = default;

  // A group begins: the table is experts[layer], kEmptySlot ignored; no migration is prepared.  Copies what is missing;
  // blocks. Errors: DeadlineExceeded, Cancelled, a copy's.
  virtual absl::Status Fill(const std::vector<std::vector<int32_t>>& experts, absl::Time deadline,
                            Progress progress) = 0;

  // A decision changes a slot of this rank: `before` goes, `now` comes, kEmptySlot = none.  Does not wait.
  virtual absl::Status Replace(int layer, int32_t before, int32_t now, CopyReason reason) = 0;
  // The layer that computes next waits for this expert: its copy goes before prefetches.
  virtual void RaisePriority(int layer, int32_t expert) = 0;

  // Begins a migration of the background balancer: starts copies of what this rank does not have.  ResourceExhausted:
  // fewer free slots than arrivals; FailedPrecondition: the migration before was neither dropped nor released.
  virtual absl::Status Prepare(absl::Span<const Expert> arrivals) = 0;
  // Whether all arrivals are there.  DataLoss: a copy arrived with a wrong checksum; a failed copy's error.  What was
  // here before and turns out to be damaged is copied anew first.  Does not wait.
  virtual absl::StatusOr<bool> Ready() = 0;
  // Adds the arrivals to the table, and removes the departures, which stay in memory until Release.  REQUIRES: Ready.
  virtual void Commit(absl::Span<const Expert> departures) = 0;
  // Gives up what was prepared and not committed, or what departed, if anything.
  virtual absl::Status Drop() = 0;
  virtual absl::Status Release() = 0;
};

}  // namespace switchyard::moe
