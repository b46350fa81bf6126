// What one rank sends another at dispatch: each hidden row once, and which of the receiver's experts want it.
//
//   int32 num_rows, num_pairs; int32 pair_row[num_pairs]; int32 pair_slot[num_pairs]; padding to 64; rows [num_rows, H]
//
// A pair is (row of this message, slot of an expert on the receiver).  The answer, at combine, is [num_pairs, H]: one
// expert output per pair, in the order of the pairs.  A message without pairs has no bytes.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "workers/comm/local/message.h"

namespace switchyard::moe {

// Where things are in a message: the one place that knows.
struct DispatchMessageLayout {
  DispatchMessageLayout(int64_t num_rows, int64_t num_pairs, int64_t row_bytes);

  int64_t pair_row_offset;
  int64_t pair_slot_offset;
  int64_t rows_offset;
  int64_t bytes;  // in all; 0 without pairs
};

// A view of a message, which must stay.
struct DispatchMessageView {
  int32_t num_rows = 0;
  absl::Span<int32_t> pair_row;   // [num_pairs]
  absl::Span<int32_t> pair_slot;  // [num_pairs]
  char* rows = nullptr;           // [num_rows, row_bytes]
};

// For the sender: the sizes are written, the rest is to be filled in.  REQUIRES: message has the layout's bytes.
DispatchMessageView BeginDispatchMessage(const comm::Message& message, int64_t num_rows, int64_t num_pairs,
                                         int64_t row_bytes);

// For the receiver: nothing outside the message, the rows and the slots is reachable through the view.
// Internal: the message does not hold together.
absl::StatusOr<DispatchMessageView> ReadDispatchMessage(const comm::Message& message, int64_t num_slots,
                                                        int64_t row_bytes);

}  // namespace switchyard::moe
