// Communicator's collectives on views: what they check, and how they go through messages.
#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "workers/comm/core/communicator.h"
#include "workers/comm/local/gather_work.h"
#include "workers/comm/local/view_work.h"

namespace switchyard {
namespace {

// memcpy of a part onto itself is undefined, and zero bytes may lie nowhere.
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

WorkOr Communicator::AllGatherInto(const CommCall& call, const TensorView& mine, const TensorView& all) {
  const bool fits = mine.dtype() == all.dtype() && mine.NumElements() * world() == all.NumElements() &&
                    (mine.empty() || (mine.contiguous() && all.contiguous())) && mine.device() == all.device();
  if (!fits) {
    return absl::InvalidArgumentError(absl::StrCat("all_gather: ", world(), " ranks' ", mine.ToString(),
                                                   " do not make up ", all.ToString(), " (contiguous, one dtype)"));
  }
  return StartStreamOrdered(call,
                            {.key = {.op = CommOp::kAllGather, .bytes = NumBytes(mine)}, .send = mine, .recv = all});
}

WorkOr Communicator::BroadcastView(const CommCall& call, int root, const TensorView& view) {
  if (root < 0 || root >= world()) {
    return absl::InvalidArgumentError(absl::StrCat("broadcast: no rank ", root, " in a group of ", world()));
  }
  if (!view.empty() && !view.contiguous()) {
    return absl::InvalidArgumentError(absl::StrCat("broadcast: ", view.ToString(), " is strided"));
  }
  return StartStreamOrdered(
      call, {.key = {.op = CommOp::kBroadcast, .bytes = NumBytes(view), .root = static_cast<int16_t>(root)},
             .send = view,
             .recv = view});
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
    return absl::InvalidArgumentError(
        absl::StrCat(key.ToString(), " on memory of ", send.device().ToString(),
                     ": the ranks of this group, or of this Split of a group, talk over host memory only"));
  }
  const bool in_rounds = key.op == CommOp::kAllGather && GathersInRounds(key, world());
  std::vector<Message> out(world());
  std::vector<Landing> landings;
  for (int r = 0; r < world(); ++r) {
    int64_t send_offset = 0, send_bytes = key.bytes, recv_offset = 0, recv_bytes = key.bytes;
    if (key.op == CommOp::kAllToAllSized) {
      send_offset = collective.send_offsets[r];
      send_bytes = collective.send_bytes[r];
      recv_offset = collective.recv_offsets[r];
      recv_bytes = collective.recv_bytes[r];
    } else if (key.op == CommOp::kAllGather) {
      recv_offset = r * key.bytes;
    } else {  // kBroadcast
      if (rank() != key.root) send_bytes = 0;
      if (r != key.root) recv_bytes = 0;
    }
    if (r == rank()) {
      CopyOwn(BytesAt(recv, recv_offset), BytesAt(send, send_offset), std::min(send_bytes, recv_bytes));
      continue;
    }
    landings.push_back({r, BytesAt(recv, recv_offset), recv_bytes});
    if (in_rounds) continue;
    out[r] = pool_->Take(send_bytes);
    if (send_bytes > 0) std::memcpy(out[r].payload(), BytesAt(send, send_offset), send_bytes);
  }
  std::unique_ptr<Work> work;
  if (in_rounds) {
    ASSIGN_OR_RETURN(work, StartGather(this, key, collective.deadline,
                                       absl::MakeConstSpan(BytesAt(send, 0), static_cast<size_t>(key.bytes))));
  } else {
    ASSIGN_OR_RETURN(work, StartExchange(ToAll(key, collective.deadline, std::move(out))));
  }
  return MakeViewWork(this, key, std::move(work), std::move(landings));
}

}  // namespace switchyard
