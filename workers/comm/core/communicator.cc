#include "workers/comm/core/communicator.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"
#include "workers/comm/group/subgroup.h"
#include "workers/comm/local/gather_work.h"
#include "workers/comm/local/reduce_work.h"
#include "workers/comm/local/view_work.h"
#include "workers/comm/local/work_thread.h"
#include "workers/tensor/copy_bytes.h"

namespace switchyard::comm {
namespace {

constexpr uint32_t kMaxSplitsPerGroup = 15;
constexpr uint32_t kMaxSplitId = 0xffff;

Message CopyOf(MessagePool* pool, absl::Span<const char> bytes) {
  Message message = pool->Take(static_cast<int64_t>(bytes.size()));
  CopyBytes(message.payload(), bytes.data(), static_cast<int64_t>(bytes.size()));
  return message;
}

absl::Status CheckReducible(const TensorView& values) {
  const DType dtype = values.dtype();
  const bool summable = dtype == DType::kF32 || dtype == DType::kF64 || dtype == DType::kBf16 || dtype == DType::kI64;
  if (summable && values.contiguous()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a sum over ranks takes contiguous fp32, fp64, bf16 or int64, not ", values.ToString()));
}

absl::Span<const char> BytesOf(const TensorView& values) {
  return {static_cast<const char*>(values.raw()), static_cast<size_t>(NumBytes(values))};
}

}  // namespace

Communicator::Communicator(const GroupId& group, std::shared_ptr<MessagePool> pool)
    : group_(group), pool_(std::move(pool)), next_one_way_(static_cast<size_t>(kNumCommClasses) * 2 * group.world, 0) {
  SY_CHECK_GE(group.rank, 0);
  SY_CHECK_LT(group.rank, group.world);
}

Communicator::~Communicator() = default;

void Communicator::ContinueNumberingOf(const Communicator& inner) {
  std::copy(std::begin(inner.next_sequence_), std::end(inner.next_sequence_), next_sequence_);
  next_one_way_ = inner.next_one_way_;
  next_split_ = inner.next_split_;
}

absl::StatusOr<int64_t> Communicator::TakeSequence(const CommCall& call) {
  RETURN_IF_ERROR(status());
  if (world() > 1 && call.deadline == absl::InfiniteFuture()) {
    return absl::InvalidArgumentError("a collective of several ranks needs a deadline");
  }
  int64_t& next = next_sequence_[static_cast<int>(call.comm_class)];
  if (call.sequence != kNextSequence && call.sequence != next) {
    return absl::InvalidArgumentError(absl::StrCat("class ", CommClassName(call.comm_class), " is at sequence ", next,
                                                   ", the call says ", call.sequence));
  }
  return next++;
}

WorkOr Communicator::StartToAll(const CommCall& call, OpKey key, std::vector<Message> out) {
  key.comm_class = call.comm_class;
  key.tag = call.tag;
  ASSIGN_OR_RETURN(key.sequence, TakeSequence(call));
  ledger_.Record(key);
  return StartExchange(ToAll(key, call.deadline, std::move(out)));
}

Communicator::Exchange Communicator::NewExchange(const OpKey& key, absl::Time deadline) const {
  Exchange exchange;
  exchange.key = key;
  exchange.deadline = deadline;
  exchange.out.resize(world());
  exchange.send_to.resize(world());
  exchange.recv_from.resize(world());
  return exchange;
}

Communicator::Exchange Communicator::ToAll(const OpKey& key, absl::Time deadline, std::vector<Message> out) const {
  Exchange exchange = NewExchange(key, deadline);
  exchange.out = std::move(out);
  exchange.send_to.assign(world(), 1);
  exchange.send_to[rank()] = 0;
  exchange.recv_from = exchange.send_to;
  return exchange;
}

std::string Communicator::NothingFrom(int peer, const Exchange& exchange) {
  if (exchange.round == 0) return absl::StrCat("rank ", peer, " did not launch ", exchange.key.ToString(), " in time");
  return absl::StrCat("rank ", peer, " did not come to round ", exchange.round, " of ", exchange.key.ToString(),
                      " in time: it, or a rank that it waits for, is late");
}

std::vector<Message> Communicator::Copies(absl::Span<const char> bytes) {
  std::vector<Message> out(world());
  for (Message& message : out) message = CopyOf(pool_.get(), bytes);
  return out;
}

WorkOr Communicator::AllToAllV(const CommCall& call, std::vector<Message> out) {
  SY_CHECK_EQ(static_cast<int>(out.size()), world());
  return StartToAll(call, {.op = CommOp::kAllToAllV}, std::move(out));
}

WorkOr Communicator::AllGather(const CommCall& call, absl::Span<const char> mine) {
  OpKey key{.op = CommOp::kAllGather, .comm_class = call.comm_class, .bytes = static_cast<int64_t>(mine.size())};
  key.tag = call.tag;
  if (!GathersInRounds(key, world())) return StartToAll(call, key, Copies(mine));
  ASSIGN_OR_RETURN(key.sequence, TakeSequence(call));
  ledger_.Record(key);
  return StartGather(this, key, call.deadline, mine);
}

WorkOr Communicator::Barrier(const CommCall& call) {
  return StartToAll(call, {.op = CommOp::kBarrier, .bytes = 0}, std::vector<Message>(world()));
}

WorkOr Communicator::Broadcast(const CommCall& call, int root, int64_t bytes, absl::Span<const char> mine) {
  if (root < 0 || root >= world()) {
    return absl::InvalidArgumentError(absl::StrCat("broadcast: no rank ", root, " in a group of ", world()));
  }
  if (rank() == root && static_cast<int64_t>(mine.size()) != bytes) {
    return absl::InvalidArgumentError(absl::StrCat("broadcast of ", bytes, " bytes: the root gives ", mine.size()));
  }
  std::vector<Message> out = rank() == root ? Copies(mine) : std::vector<Message>(world());
  return StartToAll(call, {.op = CommOp::kBroadcast, .bytes = bytes, .root = static_cast<int16_t>(root)},
                    std::move(out));
}

std::vector<Message> Communicator::PartsOf(absl::Span<const char> bytes, int64_t element_bytes) {
  std::vector<Message> out(world());
  for (int r = 0; r < world(); ++r) {
    const PartOfRank part = PartOf(static_cast<int64_t>(bytes.size()) / element_bytes, r, world());
    out[r] = CopyOf(pool_.get(), bytes.subspan(part.begin * element_bytes, part.count * element_bytes));
  }
  return out;
}

WorkOr Communicator::AllReduceSum(const CommCall& call, const TensorView& values) {
  RETURN_IF_ERROR(CheckReducible(values));
  if (values.device().kind != DeviceKind::kCpu) {
    return StartStreamOrdered(
        call, {.key = {.op = CommOp::kAllReduceSum, .bytes = NumBytes(values)}, .send = values, .recv = values});
  }
  const absl::Span<const char> bytes = BytesOf(values);
  if (static_cast<int64_t>(bytes.size()) * (world() - 1) <= kSmallReduceBytes || world() <= 2) {
    // Every rank gets all ranks' values: one latency.  With two ranks these are also the fewest bytes.
    ASSIGN_OR_RETURN(
        std::unique_ptr<Work> work,
        StartToAll(call, {.op = CommOp::kAllReduceSum, .bytes = static_cast<int64_t>(bytes.size())}, Copies(bytes)));
    return MakeReduceScatterWork(this, std::move(work), {values});
  }
  // Each part is summed on one rank, then parts are gathered.  The second exchange gets its number now: it starts when
  // the first is over here, and ranks need not agree on the order of Waits among works.
  OpKey first{.op = CommOp::kAllReduceSum, .comm_class = call.comm_class, .tag = call.tag};
  ASSIGN_OR_RETURN(first.sequence, TakeSequence(call));
  ledger_.Record(first);
  OpKey second = first;
  CommCall next = call;
  next.sequence = kNextSequence;
  ASSIGN_OR_RETURN(second.sequence, TakeSequence(next));
  ledger_.Record(second);
  Exchange exchange = ToAll(first, call.deadline, PartsOf(bytes, DTypeBytes(values.dtype())));
  exchange.later.push_back({second.sequence, exchange.recv_from});
  ASSIGN_OR_RETURN(std::unique_ptr<Work> parts, StartExchange(std::move(exchange)));
  std::unique_ptr<Work> work = MakeAllReduceWork(this, std::move(parts), second, call.deadline, values);
  // A layer computes beside its sum.  (The sums of gradients have a thread that waits for each.)
  if (call.comm_class != CommClass::kLayerSum) return work;
  if (layer_sums_ == nullptr) layer_sums_ = std::make_unique<WorkThread>(this);
  return layer_sums_->Carry(first, std::move(work));
}

WorkOr Communicator::StartOneWay(const CommCall& call, int peer, bool send, Message message) {
  RETURN_IF_ERROR(status());
  if (peer < 0 || peer >= world() || peer == rank()) {
    return absl::InvalidArgumentError(
        absl::StrCat("send/recv: no peer ", peer, " of rank ", rank(), " in a group of ", world()));
  }
  if (call.deadline == absl::InfiniteFuture()) return absl::InvalidArgumentError("send and recv need a deadline");
  const size_t lane = static_cast<size_t>(call.comm_class) * 2 + (send ? 0 : 1);
  Exchange exchange = NewExchange({.op = CommOp::kSend,
                                   .comm_class = call.comm_class,
                                   .sequence = next_one_way_[lane * world() + peer]++,
                                   .tag = call.tag},
                                  call.deadline);
  if (send) {
    exchange.out[peer] = std::move(message);
    exchange.send_to[peer] = 1;
  } else {
    exchange.recv_from[peer] = 1;
  }
  return StartExchange(std::move(exchange));
}

WorkOr Communicator::Send(const CommCall& call, int peer, Message message) {
  return StartOneWay(call, peer, true, std::move(message));
}

WorkOr Communicator::Recv(const CommCall& call, int peer) { return StartOneWay(call, peer, false, Message()); }

absl::StatusOr<std::unique_ptr<Communicator>> Communicator::Split(int color, int key, absl::Time deadline) {
  struct Wish {
    int32_t color;
    int32_t key;
  };
  const uint32_t child = split_id() * (kMaxSplitsPerGroup + 1) + next_split_;
  if (next_split_ > kMaxSplitsPerGroup || child > kMaxSplitId) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a group splits at most ", kMaxSplitsPerGroup, " times, four deep"));
  }
  const Wish mine{color, key};
  const char* bytes = reinterpret_cast<const char*>(&mine);
  ASSIGN_OR_RETURN(std::unique_ptr<Work> work, AllGather({.comm_class = CommClass::kControl, .deadline = deadline},
                                                         absl::MakeConstSpan(bytes, sizeof(mine))));
  RETURN_IF_ERROR(work->Wait());
  std::vector<std::pair<int32_t, int>> members;  // (key, rank)
  for (int r = 0; r < world(); ++r) {
    Wish wish;
    std::memcpy(&wish, work->received()[r].payload(), sizeof(wish));
    if (wish.color == color) members.emplace_back(wish.key, r);
  }
  std::sort(members.begin(), members.end());
  std::vector<int> ranks;
  for (const auto& [unused, r] : members) ranks.push_back(r);
  ++next_split_;
  return MakeSplit(ranks, child, deadline);
}

absl::StatusOr<std::unique_ptr<Communicator>> Communicator::MakeSplit(const std::vector<int>& members,
                                                                      uint32_t split_id, absl::Time) {
  return MakeSubgroup(this, pool_, members, split_id);
}

absl::Status ExpectBytes(Communicator* comm, absl::string_view what, int rank, int64_t came, int64_t wanted) {
  if (came == wanted) return absl::OkStatus();
  const absl::Status status =
      absl::InternalError(absl::StrCat("collectives differ: in ", what, " rank ", rank, " sent ", came,
                                       " bytes where rank ", comm->rank(), " expects ", wanted));
  comm->Abort(status.message());
  return status;
}

}  // namespace switchyard::comm
