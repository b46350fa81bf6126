#include "tests/bench/placement/emulated_layer.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::bench {

void SleepUntil(absl::Time when) {
  const absl::Duration left = when - absl::Now();
  if (left > absl::ZeroDuration()) absl::SleepFor(left);
}

absl::Time Soon() { return absl::Now() + absl::Seconds(60); }

absl::Status EmulatedLayer::Exchange(absl::Span<const int64_t> out_rows, absl::Span<const int64_t> in_rows) {
  const int me = comm_->rank();
  std::vector<Message> out(out_rows.size());
  for (int rank = 0; rank < comm_->world(); ++rank) {
    if (rank != me && out_rows[rank] > 0) out[rank] = comm_->NewMessage(out_rows[rank] * times_.row_bytes);
  }
  std::unique_ptr<Work> work;
  ASSIGN_OR_RETURN(work, comm_->AllToAllV({.deadline = Soon()}, std::move(out)));
  RETURN_IF_ERROR(work->Wait());
  for (int rank = 0; rank < comm_->world(); ++rank) {
    const int64_t bytes = rank == me ? 0 : in_rows[rank] * times_.row_bytes;
    if (work->received()[rank].bytes() != bytes && rank != me) {
      return absl::InternalError(
          absl::StrCat("rank ", rank, " sent ", work->received()[rank].bytes(), " bytes, its rows have ", bytes));
    }
  }
  return absl::OkStatus();
}

absl::Status EmulatedLayer::Run(const LayerRows& rows) {
  RETURN_IF_ERROR(Exchange(rows.sent, rows.received));
  int64_t computed = 0;
  for (const int64_t count : rows.received) computed += count;
  SleepUntil(std::max(absl::Now(), rows.weights_ready) + times_.row_compute * computed);
  return Exchange(rows.received, rows.sent);
}

}  // namespace switchyard::bench
