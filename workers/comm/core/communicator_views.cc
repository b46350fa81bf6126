// Communicator's collectives on views: their checks, and their implementation by messages.
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"
#include "workers/comm/core/communicator.h"
#include "workers/comm/local/view_work.h"
#include "workers/tensor/copy_bytes.h"

namespace switchyard::comm {
namespace {

// Unlike CopyBytes, also of a part onto itself (a gather in place).
void CopyOwn(char* to, const char* from, int64_t bytes) {
  if (bytes > 0 && to != from) std::memmove(to, from, bytes);
}

}  // namespace

WorkOr Communicator::StartStreamOrdered(const CommCall& call, DeviceCollective collective) {
  if (collective.key.op != CommOp::kFence) {
    RETURN_IF_ERROR(CheckStreamOf(call.stream, collective.send));
    RETURN_IF_ERROR(CheckStreamOf(call.stream, collective.recv));
  }
  collective.key.comm_class = call.comm_class;
  collective.key.tag = call.tag;
  collective.stream = call.stream;
  collective.deadline = call.deadline;
  ASSIGN_OR_RETURN(collective.key.sequence, TakeSequence(call));
  ledger_.RecordInOrder(collective.key);
  return StartOnDevice(collective);
}

WorkOr Communicator::AllToAllSized(const CommCall& call, const SizedParts& send, const SizedParts& recv) {
  RETURN_IF_ERROR(CheckSizedParts(send, recv, rank(), world()));
  return StartStreamOrdered(call, {.key = {.op = CommOp::kAllToAllSized},
                                   .send = send.memory,
                                   .recv = recv.memory,
                                   .send_offsets = send.offsets,
                                   .send_bytes = send.bytes,
                                   .recv_offsets = recv.offsets,
                                   .recv_bytes = recv.bytes});
}

WorkOr Communicator::AllGatherSized(const CommCall& call, const SizedParts& parts) {
  RETURN_IF_ERROR(CheckGatheredParts(parts, world()));
  const std::vector<int64_t> offsets(static_cast<size_t>(world()), parts.offsets[rank()]);
  const std::vector<int64_t> bytes(static_cast<size_t>(world()), parts.bytes[rank()]);
  return StartStreamOrdered(call, {.key = {.op = CommOp::kAllGatherSized},
                                   .send = parts.memory,
                                   .recv = parts.memory,
                                   .send_offsets = offsets,
                                   .send_bytes = bytes,
                                   .recv_offsets = parts.offsets,
                                   .recv_bytes = parts.bytes});
}

WorkOr Communicator::StartView(const CommCall& call, int root, const TensorView& view) {
  if (world() != 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("view of a pair: a view goes from one rank of a pair to the other; Split one of this group's ",
                     world(), " ranks"));
  }
  if (!view.empty() && !view.contiguous()) {
    return absl::InvalidArgumentError(
        absl::StrCat("view of a pair: ", view.ToString(), " is strided; it must be contiguous"));
  }
  const std::array<int64_t, 2> none = {};
  std::array<int64_t, 2> whole = {};
  whole[1 - rank()] = NumBytes(view);
  const bool sends = root == rank();
  const OpKey key{.op = CommOp::kSendView, .bytes = NumBytes(view), .root = static_cast<int16_t>(root)};
  return StartStreamOrdered(call, {.key = key,
                                   .send = view,
                                   .recv = view,
                                   .send_offsets = none,
                                   .send_bytes = sends ? whole : none,
                                   .recv_offsets = none,
                                   .recv_bytes = sends ? none : whole});
}

WorkOr Communicator::Fence(const CommCall& call) {
  return StartStreamOrdered(call, {.key = {.op = CommOp::kFence, .bytes = 0}});
}

WorkOr Communicator::StartOnDevice(const DeviceCollective& collective) {
  const OpKey& key = collective.key;
  const TensorView& send = collective.send;
  const TensorView& recv = collective.recv;
  if (key.op == CommOp::kFence) return MakeViewWork(this, key, nullptr, {});  // a CPU stream has nothing to wait for
  if (send.device().kind != DeviceKind::kCpu) {
    return absl::InvalidArgumentError(absl::StrCat(key.ToString(), " on memory of ", send.device().ToString(),
                                                   ": the ranks of this group talk over host memory only"));
  }
  SY_CHECK(!collective.send_bytes.empty());  // a sized op
  std::vector<Message> out(world());
  std::vector<Landing> landings;
  for (int r = 0; r < world(); ++r) {
    char* const to = BytesAt(recv, collective.recv_offsets[r]);
    const char* const from = BytesAt(send, collective.send_offsets[r]);
    const int64_t bytes = collective.send_bytes[r];
    if (r == rank()) {
      CopyOwn(to, from, bytes);  // checked: both sides have the same size
      continue;
    }
    landings.push_back({r, to, collective.recv_bytes[r]});
    out[r] = pool_->Take(bytes);
    CopyBytes(out[r].payload(), from, bytes);
  }
  std::unique_ptr<Work> work;
  ASSIGN_OR_RETURN(work, StartExchange(ToAll(key, collective.deadline, std::move(out))));
  return MakeViewWork(this, key, std::move(work), std::move(landings));
}

}  // namespace switchyard::comm
