#include "workers/moe/dispatch/dispatch_message.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"

namespace switchyard::moe {
namespace {

constexpr int64_t kHeadBytes = 2 * sizeof(int32_t);
constexpr int64_t kWeightsAlignment = 8;
constexpr int64_t kRowsAlignment = 64;

int64_t RoundUp(int64_t offset, int64_t to) { return (offset + to - 1) / to * to; }

DispatchMessageView ViewOf(const comm::Message& message, int64_t num_rows, int64_t num_pairs,
                           const DispatchMessageSizes& sizes) {
  const DispatchMessageLayout layout(num_rows, num_pairs, sizes);
  char* base = message.payload();
  DispatchMessageView view;
  view.num_rows = static_cast<int32_t>(num_rows);
  view.pair_row = absl::MakeSpan(reinterpret_cast<int32_t*>(base + layout.pair_row_offset), num_pairs);
  view.pair_slot = absl::MakeSpan(reinterpret_cast<int32_t*>(base + layout.pair_slot_offset), num_pairs);
  view.weights = absl::MakeSpan(base + layout.weights_offset, num_pairs * sizes.weight_bytes);
  view.rows = base + layout.rows_offset;
  return view;
}

}  // namespace

DispatchMessageLayout::DispatchMessageLayout(int64_t num_rows, int64_t num_pairs, const DispatchMessageSizes& sizes) {
  pair_row_offset = kHeadBytes;
  pair_slot_offset = pair_row_offset + num_pairs * static_cast<int64_t>(sizeof(int32_t));
  weights_offset = RoundUp(pair_slot_offset + num_pairs * static_cast<int64_t>(sizeof(int32_t)), kWeightsAlignment);
  rows_offset = RoundUp(weights_offset + num_pairs * sizes.weight_bytes, kRowsAlignment);
  bytes = num_pairs == 0 ? 0 : rows_offset + num_rows * sizes.row_bytes;
}

DispatchMessageView BeginDispatchMessage(const comm::Message& message, int64_t num_rows, int64_t num_pairs,
                                         const DispatchMessageSizes& sizes) {
  SY_CHECK_EQ(message.bytes(), DispatchMessageLayout(num_rows, num_pairs, sizes).bytes);
  SY_CHECK_GT(num_pairs, 0);
  int32_t* head = reinterpret_cast<int32_t*>(message.payload());
  head[0] = static_cast<int32_t>(num_rows);
  head[1] = static_cast<int32_t>(num_pairs);
  return ViewOf(message, num_rows, num_pairs, sizes);
}

absl::StatusOr<DispatchMessageView> ReadDispatchMessage(const comm::Message& message, int64_t num_slots,
                                                        const DispatchMessageSizes& sizes) {
  if (message.bytes() == 0) return DispatchMessageView();
  if (message.bytes() < kHeadBytes) {
    return absl::InternalError(absl::StrCat("dispatch message of ", message.bytes(), " bytes"));
  }
  const int32_t* head = reinterpret_cast<const int32_t*>(message.payload());
  const int64_t num_rows = head[0];
  const int64_t num_pairs = head[1];
  if (num_rows < 1 || num_pairs < num_rows ||
      DispatchMessageLayout(num_rows, num_pairs, sizes).bytes != message.bytes()) {
    return absl::InternalError(absl::StrCat("dispatch message of ", message.bytes(), " bytes says ", num_rows,
                                            " rows of ", sizes.row_bytes, " bytes, ", num_pairs, " pairs"));
  }
  const DispatchMessageView view = ViewOf(message, num_rows, num_pairs, sizes);
  for (int64_t i = 0; i < num_pairs; ++i) {
    if (view.pair_row[i] < 0 || view.pair_row[i] >= num_rows || view.pair_slot[i] < 0 ||
        view.pair_slot[i] >= num_slots) {
      return absl::InternalError(absl::StrCat("dispatch message: pair ", i, " is row ", view.pair_row[i], " of ",
                                              num_rows, ", expert slot ", view.pair_slot[i], " of ", num_slots));
    }
  }
  return view;
}

}  // namespace switchyard::moe
