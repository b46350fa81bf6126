// Who computes whose rows where a step gives some ranks many rows and others few: one prompt's prefill beside idle
// ranks.
//
// A row's attention is work of its sequence's rank, where its keys are.  All else of a row (norms, projections, router,
// shared expert) any rank can do, for those weights are on every rank.  A lending rank then waits for less, and the
// exchange of expert rows is spread over all ranks, too.  The rows' values travel twice a layer (workers/model/
// row_lending.h), so few rows are not worth it.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "scheduler/batching/step.h"

namespace switchyard {

// Loans of at least min_rows rows (0: never any) that bring the ranks towards the mean.  A borrower ends with at most
// mean + min_rows rows and never with more than a lender had; no rank lends and borrows.  Ranks are served in order, so
// equal calls give equal loans.
std::vector<RowLoan> LendRows(absl::Span<const int32_t> rank_rows, int32_t min_rows);

// What each rank computes under these loans: [R].
std::vector<int32_t> ComputedRows(absl::Span<const int32_t> rank_rows, absl::Span<const RowLoan> loans);

}  // namespace switchyard
