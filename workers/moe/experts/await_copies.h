// Waiting for an expert store's slots to be filled, while somebody is told how far it is.
#pragma once

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "workers/moe/experts/expert_store.h"

namespace switchyard::moe {

// Until nothing is being copied.  progress: told about four times a second, of at most `total` bytes those that were
// copied since `copied_before` (ExpertStoreCounters::copied_bytes, as they were before the first of these copies);
// false ends it.  Errors: DeadlineExceeded, Cancelled, what the store's Abort said.
absl::Status AwaitCopies(ExpertStore* store, int64_t copied_before, int64_t total, absl::Time deadline,
                         absl::FunctionRef<bool(int64_t bytes_done, int64_t bytes_total)> progress);

}  // namespace switchyard::moe
