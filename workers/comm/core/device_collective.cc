#include "workers/comm/core/device_collective.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::comm {
namespace {

absl::Status CheckSide(CommOp op, const SizedParts& side, const char* name, int world) {
  if (static_cast<int>(side.offsets.size()) != world || static_cast<int>(side.bytes.size()) != world) {
    return absl::InvalidArgumentError(absl::StrCat(CommOpName(op), ": ", side.offsets.size(), " offsets and ",
                                                   side.bytes.size(), " sizes to ", name, " in a group of ", world));
  }
  if (!side.memory.empty() && !side.memory.contiguous()) {
    return absl::InvalidArgumentError(absl::StrCat(CommOpName(op), ": the memory to ", name, ", ",
                                                   side.memory.ToString(), ", is strided; it must be contiguous"));
  }
  const int64_t total = NumBytes(side.memory);
  for (int r = 0; r < world; ++r) {
    if (side.offsets[r] >= 0 && side.bytes[r] >= 0 && side.bytes[r] <= total - side.offsets[r]) continue;
    if (side.bytes[r] == 0) continue;  // an empty part may have any offset
    return absl::InvalidArgumentError(absl::StrCat(CommOpName(op), ": rank ", r, "'s part to ", name, ", ",
                                                   side.bytes[r], " bytes at ", side.offsets[r],
                                                   ", is outside of the memory's ", total, " bytes"));
  }
  return absl::OkStatus();
}

absl::Status CheckNoOverlap(CommOp op, const SizedParts& recv) {
  std::vector<std::pair<int64_t, int>> begins;
  for (size_t r = 0; r < recv.bytes.size(); ++r) {
    if (recv.bytes[r] > 0) begins.emplace_back(recv.offsets[r], static_cast<int>(r));
  }
  std::sort(begins.begin(), begins.end());
  for (size_t i = 1; i < begins.size(); ++i) {
    const auto [begin, rank] = begins[i - 1];
    if (begin + recv.bytes[rank] <= begins[i].first) continue;
    return absl::InvalidArgumentError(absl::StrCat(CommOpName(op), ": what ranks ", rank, " and ", begins[i].second,
                                                   " send overlaps in the memory to receive"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckSizedParts(const SizedParts& send, const SizedParts& recv, int rank, int world) {
  constexpr CommOp kOp = CommOp::kAllToAllSized;
  RETURN_IF_ERROR(CheckSide(kOp, send, "send", world));
  RETURN_IF_ERROR(CheckSide(kOp, recv, "receive", world));
  if (send.bytes[rank] != recv.bytes[rank]) {
    return absl::InvalidArgumentError(absl::StrCat("all_to_all_sized: rank ", rank, " sends itself ", send.bytes[rank],
                                                   " bytes and receives ", recv.bytes[rank]));
  }
  if (send.memory.device() != recv.memory.device()) {
    return absl::InvalidArgumentError(absl::StrCat("all_to_all_sized: sends from ", send.memory.device().ToString(),
                                                   ", receives on ", recv.memory.device().ToString()));
  }
  return CheckNoOverlap(kOp, recv);
}

absl::Status CheckGatheredParts(const SizedParts& parts, int world) {
  RETURN_IF_ERROR(CheckSide(CommOp::kAllGatherSized, parts, "gather", world));
  return CheckNoOverlap(CommOp::kAllGatherSized, parts);
}

absl::Status CheckStreamOf(const Stream* stream, const TensorView& view) {
  if (view.device().kind == DeviceKind::kCpu || (stream != nullptr && stream->device() == view.device())) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("a collective on memory of ", view.device().ToString(),
                                                 " needs a stream of ", view.device().ToString(), ", not ",
                                                 stream == nullptr ? "none" : stream->device().ToString()));
}

}  // namespace switchyard::comm
