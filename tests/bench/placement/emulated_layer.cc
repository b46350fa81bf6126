#include "tests/bench/placement/emulated_layer.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "scheduler/base/status_macros.h"
#include "tests/bench/sleep_until.h"

namespace switchyard::bench {

absl::Status EmulatedLayer::Exchange(absl::Span<const int64_t> out_rows, absl::Span<const int64_t> in_rows) {
  std::vector<int64_t> out(out_rows.begin(), out_rows.end()), in(in_rows.begin(), in_rows.end());
  for (int64_t& rows : out) rows *= times_.row_bytes;
  for (int64_t& rows : in) rows *= times_.row_bytes;
  return mesh_->Exchange(out, in);
}

absl::Status EmulatedLayer::Run(const LayerRows& rows, PhaseTimes* phases) {
  absl::Time mark = absl::Now();
  const auto lap = [&mark] {
    const absl::Time now = absl::Now();
    return now - std::exchange(mark, now);
  };
  RETURN_IF_ERROR(Exchange(rows.sent, rows.received));
  phases->dispatch += lap();
  int64_t computed = 0;
  for (const int64_t count : rows.received) computed += count;
  SleepUntil(absl::Now() + times_.row_compute * (computed - rows.late));
  if (rows.late > 0) SleepUntil(std::max(absl::Now(), rows.weights_ready) + times_.row_compute * rows.late);
  phases->compute += lap();
  RETURN_IF_ERROR(Exchange(rows.received, rows.sent));
  phases->combine += lap();
  return absl::OkStatus();
}

}  // namespace switchyard::bench
