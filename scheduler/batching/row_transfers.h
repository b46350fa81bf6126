// Rebalances rows over ranks where a step gives some ranks many rows and others few: one prompt's prefill beside idle
// ranks.
//
// A row's attention is work of its sequence's rank, where its keys are.  Any rank can do the rest (norms, projections,
// router, shared expert), as those weights are on every rank; that also spreads the exchange of expert rows.  Values
// travel twice a layer (workers/model/runner/token_rebalancer.h), so few rows are not worth it.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "scheduler/batching/step.h"

namespace switchyard::batching {

// Transfers of at least min_rows rows (0: never any) that bring the ranks towards the mean.  A borrower ends with at
// most mean + min_rows rows and never with more than a giver had; no rank does both.  Equal calls give equal transfers.
std::vector<RowTransfer> GiveRows(absl::Span<const int32_t> rank_rows, int32_t min_rows);

// The number of rows that each rank computes under these transfers: [R].
std::vector<int32_t> ComputedRows(absl::Span<const int32_t> rank_rows, absl::Span<const RowTransfer> transfers);

}  // namespace switchyard::batching
