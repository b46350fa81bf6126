#include "workers/moe/experts/await_copies.h"

#include <algorithm>

#include "absl/time/clock.h"

namespace switchyard::moe {
namespace {

constexpr absl::Duration kReportEvery = absl::Milliseconds(250);

}  // namespace

absl::Status AwaitCopies(ExpertStore* store, int64_t copied_before, int64_t total, absl::Time deadline,
                         absl::FunctionRef<bool(int64_t bytes_done, int64_t bytes_total)> progress) {
  for (;;) {
    const absl::Status done = store->AwaitCopies(std::min(deadline, absl::Now() + kReportEvery));
    if (!absl::IsDeadlineExceeded(done) || absl::Now() >= deadline) return done;
    // (Of copies that were under way before, bytes are counted, too.)
    const int64_t copied = store->counters().copied_bytes - copied_before;
    if (!progress(std::min(total, copied), total)) {
      return absl::CancelledError("expert slots: stopped while they were filled");
    }
  }
}

}  // namespace switchyard::moe
