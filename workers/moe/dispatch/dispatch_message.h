// A message of dispatch: hidden rows, each once, and the receiver's experts for each.
//
//   int32 num_rows, num_pairs; int32 pair_row[num_pairs]; int32 pair_slot[num_pairs]; padding to 8;
//   pairs' weights [num_pairs], AccDType, or none; padding to 64; rows [num_rows, H]
//
// A pair is (row of this message, slot of an expert on the receiver).  Combine answers with one expert output per pair,
// in their order: [num_pairs, H]; where weights came, with one sum per row: [num_rows, H] (added_outputs.h).  A message
// without pairs has no bytes.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "workers/comm/local/message.h"

namespace switchyard::moe {

// Sizes that both sides know.
struct DispatchMessageSizes {
  int64_t row_bytes = 0;
  int64_t weight_bytes = 0;  // of one pair's weight; 0: none travel
};

// The layout of a message.
struct DispatchMessageLayout {
  DispatchMessageLayout(int64_t num_rows, int64_t num_pairs, const DispatchMessageSizes& sizes);

  int64_t pair_row_offset;
  int64_t pair_slot_offset;
  int64_t weights_offset;
  int64_t rows_offset;
  int64_t bytes;  // in all; 0 without pairs
};

// A view of a message, which must stay.
struct DispatchMessageView {
  int32_t num_rows = 0;
  absl::Span<int32_t> pair_row;   // [num_pairs]
  absl::Span<int32_t> pair_slot;  // [num_pairs]
  absl::Span<char> weights;       // [num_pairs, weight_bytes]
  char* rows = nullptr;           // [num_rows, row_bytes]
};

// Writes the sizes; the sender fills in the rest.  REQUIRES: message has the layout's bytes.
DispatchMessageView BeginDispatchMessage(const comm::Message& message, int64_t num_rows, int64_t num_pairs,
                                         const DispatchMessageSizes& sizes);

// Reads a received message and checks every index.  Internal: the message is malformed.
absl::StatusOr<DispatchMessageView> ReadDispatchMessage(const comm::Message& message, int64_t num_slots,
                                                        const DispatchMessageSizes& sizes);

}  // namespace switchyard::moe
