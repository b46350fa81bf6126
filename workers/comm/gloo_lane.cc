#include "workers/comm/gloo_lane.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gloo/transport/tcp/device.h"
#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"
#include "workers/comm/gloo_store.h"

namespace switchyard {
namespace {

constexpr int32_t kFirstFrameBytes = 16 << 10;  // posted before anything was seen; and always for one-way messages
constexpr int32_t kMaxFrameBytes = 8 << 20;     // posted buffers do not grow beyond

constexpr uint64_t kSentinelSlot = ~uint64_t{0};

// Gloo's 64-bit slot: what a frame belongs to.  A one-way message and a collective may have the same sequence.
uint64_t SlotOf(const OpKey& key, uint32_t split, bool rest) {
  return static_cast<uint64_t>(split) << 48 | static_cast<uint64_t>(key.op == CommOp::kSend) << 47 |
         static_cast<uint64_t>(rest) << 46 | static_cast<uint64_t>(key.sequence + 1);
}

std::chrono::milliseconds Remaining(absl::Time deadline) {
  const absl::Duration left = std::clamp(deadline - absl::Now(), absl::Milliseconds(1), absl::Hours(24));
  return std::chrono::milliseconds(absl::ToInt64Milliseconds(left));
}

// Gloo's messages carry file names and addresses, which are nobody's business: the status says what it means.
absl::Status Gone(int peer, const OpKey& key) {
  return absl::UnavailableError(
      absl::StrCat("rank ", peer, " is gone during ", key.ToString(), ": its connection closed"));
}

absl::Status Aborted() { return absl::UnavailableError("the group was aborted"); }

}  // namespace

GlooLane::Peer::Peer() : frame_bytes(kFirstFrameBytes), room_from{{-1, kFirstFrameBytes}} {}

GlooLane::GlooLane(const Options& options, std::shared_ptr<MessagePool> pool)
    : group_(options.group), comm_class_(options.comm_class), pool_(std::move(pool)) {}

absl::StatusOr<std::unique_ptr<GlooLane>> GlooLane::Connect(const Options& options, RendezvousStore* store,
                                                            std::shared_ptr<MessagePool> pool) {
  std::unique_ptr<GlooLane> lane(new GlooLane(options, std::move(pool)));
  GlooStore adapter(store, options.key_prefix, options.deadline);
  try {
    lane->device_ = gloo::transport::tcp::CreateDevice(gloo::transport::tcp::attr(options.address.c_str()));
    lane->context_ = std::make_unique<gloo::rendezvous::Context>(options.group.rank, options.group.world);
    // Gloo gives a connection attempt five times its timeout.
    lane->context_->setTimeout(std::max(Remaining(options.deadline) / 5, std::chrono::milliseconds(1)));
    lane->context_->connectFullMesh(adapter, lane->device_);
    lane->sentinels_ = std::make_unique<GlooSentinels>(lane->context_.get(), kSentinelSlot);
  } catch (const std::exception&) {
    if (!adapter.status().ok()) return adapter.status();
    if (absl::Now() >= options.deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("the connections of class ", CommClassName(options.comm_class), " were not made in time"));
    }
    return absl::UnavailableError(absl::StrCat("connecting class ", CommClassName(options.comm_class),
                                               " failed: the address is not this host's, or a peer refused or left"));
  }
  return lane;
}

void GlooLane::Unregister::operator()(gloo::transport::UnboundBuffer* buffer) const {
  {
    absl::MutexLock lock(&lane->mu_);
    lane->active_.erase(buffer);
  }
  delete buffer;
}

GlooLane::Channel& GlooLane::ChannelOf(uint32_t split) {
  const auto it = channels_.find(split);
  if (it != channels_.end()) return it->second;
  return channels_.emplace(split, Channel(group_.world)).first->second;
}

absl::StatusOr<GlooLane::Transfer> GlooLane::Register(int peer, Message message, char* begin, int64_t bytes) {
  Transfer transfer;
  transfer.peer = peer;
  transfer.message = std::move(message);
  absl::MutexLock lock(&mu_);
  if (aborted_) return Aborted();
  transfer.buffer = {context_->createUnboundBuffer(begin, static_cast<size_t>(bytes)).release(), Unregister(this)};
  active_.emplace(transfer.buffer.get(), peer);
  return transfer;
}

absl::Status GlooLane::Post(const Communicator::Exchange& exchange, int peer, int64_t sequence) {
  Peer& state = ChannelOf(exchange.split)[peer];
  const bool one_way = exchange.key.op == CommOp::kSend;
  // One-way messages are keyed apart, below every collective.
  const int64_t place = one_way ? INT64_MIN + sequence : sequence;
  if (state.posted.count(place) > 0) return absl::OkStatus();
  Posted posted;
  posted.frame_bytes = one_way ? kFirstFrameBytes : state.frame_bytes;
  Message message = pool_->Take(posted.frame_bytes - kFrameHeaderBytes);
  char* begin = message.frame();
  std::memset(begin, 0, kFrameHeaderBytes);  // so that less than a header from a stranger is none
  ASSIGN_OR_RETURN(posted.transfer, Register(peer, std::move(message), begin, posted.frame_bytes));
  OpKey key = exchange.key;
  key.sequence = sequence;
  try {
    posted.transfer.buffer->recv(peer, SlotOf(key, exchange.split, false));
  } catch (const std::exception&) {
    return Gone(peer, exchange.key);
  }
  state.posted.emplace(place, std::move(posted));
  return absl::OkStatus();
}

absl::Status GlooLane::SendFrame(Pending* pending, int peer) {
  Communicator::Exchange& exchange = pending->exchange;
  Peer& state = ChannelOf(exchange.split)[peer];
  Message message = std::move(exchange.out[peer]);
  if (message.capacity() == 0) message = pool_->Take(0);
  const bool one_way = exchange.key.op == CommOp::kSend;
  FrameHeader header = MakeFrameHeader(group_, exchange.key, exchange.split, message.bytes());
  header.posted_bytes = state.frame_bytes;
  header.room_bytes = kFirstFrameBytes;
  if (!one_way) {
    // Promise no more than the smallest buffer that is already out.
    for (auto it = state.posted.upper_bound(exchange.key.sequence); it != state.posted.end(); ++it) {
      header.posted_bytes = std::min(header.posted_bytes, it->second.frame_bytes);
    }
    header.room_bytes = std::prev(state.room_from.upper_bound(exchange.key.sequence))->second;
  }
  char* frame = message.frame();
  std::memcpy(frame, &header, sizeof(header));
  const int64_t total = kFrameHeaderBytes + message.bytes();
  const int64_t first = std::min<int64_t>(total, header.room_bytes);
  ASSIGN_OR_RETURN(Transfer transfer, Register(peer, std::move(message), frame, total));
  try {
    transfer.buffer->send(peer, SlotOf(exchange.key, exchange.split, false), 0, first);
    pending->sends.push_back(std::move(transfer));
    if (first < total) {
      // The same memory under a second registration: Gloo allows one operation per buffer.
      ASSIGN_OR_RETURN(Transfer rest, Register(peer, Message(), frame + first, total - first));
      rest.buffer->send(peer, SlotOf(exchange.key, exchange.split, true));
      pending->sends.push_back(std::move(rest));
    }
  } catch (const std::exception&) {
    return Gone(peer, exchange.key);
  }
  return absl::OkStatus();
}

absl::Status GlooLane::Start(Pending* pending) {
  const Communicator::Exchange& exchange = pending->exchange;
  const bool one_way = exchange.key.op == CommOp::kSend;
  for (int peer = 0; peer < group_.world; ++peer) {
    if (exchange.recv_from[peer] == 0) continue;
    RETURN_IF_ERROR(Post(exchange, peer, exchange.key.sequence));
    if (!one_way) RETURN_IF_ERROR(Post(exchange, peer, exchange.key.sequence + 1));
  }
  // Each rank begins with its right neighbour, so that nobody is everybody's first.
  for (int i = 1; i < group_.world; ++i) {
    const int peer = (group_.rank + i) % group_.world;
    if (exchange.send_to[peer] != 0) RETURN_IF_ERROR(SendFrame(pending, peer));
  }
  return absl::OkStatus();
}

absl::Status GlooLane::AwaitTransfer(const Transfer& transfer, bool receive, const Communicator::Exchange& exchange) {
  const int peer = transfer.peer;
  enum class End { kDone, kWoken, kFailed };
  const auto wait = [&](std::chrono::milliseconds timeout) {
    try {
      const bool done =
          receive ? transfer.buffer->waitRecv(nullptr, timeout) : transfer.buffer->waitSend(nullptr, timeout);
      return done ? End::kDone : End::kWoken;
    } catch (const std::exception&) {
      return End::kFailed;
    }
  };
  const End end = wait(Remaining(exchange.deadline));
  if (end == End::kDone) return absl::OkStatus();
  {
    absl::MutexLock lock(&mu_);
    if (aborted_) return Aborted();
  }
  if (end == End::kWoken) {  // an orphan: what has come or gone until now is all
    return wait(std::chrono::milliseconds(0)) == End::kDone ? absl::OkStatus() : Gone(peer, exchange.key);
  }
  if (absl::Now() + absl::Milliseconds(1) < exchange.deadline) return Gone(peer, exchange.key);
  return absl::DeadlineExceededError(
      receive ? absl::StrCat("rank ", peer, " did not launch ", exchange.key.ToString(), " in time")
              : absl::StrCat("rank ", peer, " did not take its part of ", exchange.key.ToString(), " in time"));
}

absl::StatusOr<Message> GlooLane::ReceiveRest(const Communicator::Exchange& exchange, int peer, int64_t first,
                                              int64_t total, Message message) {
  if (message.capacity() + kFrameHeaderBytes < total) {
    Message larger = pool_->Take(total - kFrameHeaderBytes);
    std::memcpy(larger.frame(), message.frame(), static_cast<size_t>(first));
    message = std::move(larger);
  }
  char* frame = message.frame();
  ASSIGN_OR_RETURN(Transfer rest, Register(peer, std::move(message), frame + first, total - first));
  absl::Status status;
  try {
    rest.buffer->recv(peer, SlotOf(exchange.key, exchange.split, true));
    status = AwaitTransfer(rest, true, exchange);
  } catch (const std::exception&) {
    status = Gone(peer, exchange.key);
  }
  RETURN_IF_ERROR(status);
  rest.buffer.reset();
  return std::move(rest.message);
}

absl::StatusOr<Message> GlooLane::ReceiveFrame(const Communicator::Exchange& exchange, int peer) {
  Peer& state = ChannelOf(exchange.split)[peer];
  const bool one_way = exchange.key.op == CommOp::kSend;
  const int64_t sequence = exchange.key.sequence;
  const auto it = state.posted.find(one_way ? INT64_MIN + sequence : sequence);
  SY_CHECK(it != state.posted.end());
  Posted posted = std::move(it->second);
  state.posted.erase(it);
  RETURN_IF_ERROR(AwaitTransfer(posted.transfer, true, exchange));
  posted.transfer.buffer.reset();

  FrameHeader header;
  std::memcpy(&header, posted.transfer.message.frame(), sizeof(header));
  RETURN_IF_ERROR(CheckFrameHeader(header, group_, peer, exchange.key, exchange.split));
  const int64_t total = kFrameHeaderBytes + header.payload_bytes;
  if (!one_way) {
    state.room_from[sequence + 1] = header.posted_bytes;
    // The first entry holds for ever; of the others, a few cover whatever is started next.
    while (state.room_from.size() > 4) state.room_from.erase(std::next(state.room_from.begin()));
    while (state.frame_bytes < std::min<int64_t>(total, kMaxFrameBytes)) state.frame_bytes *= 2;
  }
  Message message = std::move(posted.transfer.message);
  const int64_t first = std::min<int64_t>(total, header.room_bytes);
  if (first < kFrameHeaderBytes || first > posted.frame_bytes) {
    return absl::InternalError(absl::StrCat("rank ", peer, " took this rank's buffer of ", posted.frame_bytes,
                                            " bytes for ", header.room_bytes));
  }
  if (first < total) {
    ASSIGN_OR_RETURN(message, ReceiveRest(exchange, peer, first, total, std::move(message)));
  }
  message.SetBytes(header.payload_bytes);
  return message;
}

absl::Status GlooLane::Finish(Pending* pending, std::vector<Message>* received) {
  absl::Status status;
  for (int i = 1; i < group_.world && status.ok(); ++i) {
    const int peer = (group_.rank + group_.world - i) % group_.world;
    if (pending->exchange.recv_from[peer] == 0) continue;
    absl::StatusOr<Message> message = ReceiveFrame(pending->exchange, peer);
    if (message.ok()) {
      (*received)[peer] = *std::move(message);
    } else {
      status = message.status();
      pending->late_peer = peer;
    }
  }
  for (const Transfer& transfer : pending->sends) {
    if (status.ok()) status = AwaitTransfer(transfer, false, pending->exchange);
  }
  // A frame's rest before the frame, whose message is the memory of both.
  while (!pending->sends.empty()) pending->sends.pop_back();
  return status;
}

void GlooLane::Abort() {
  {
    absl::MutexLock lock(&mu_);
    if (aborted_) return;
    aborted_ = true;
    for (const auto& [buffer, peer] : active_) {
      buffer->abortWaitRecv();
      buffer->abortWaitSend();
    }
  }
  try {
    context_->closeConnections();
  } catch (const std::exception&) {
    // Already closed: that is what was wanted.
  }
}

void GlooLane::FreeOrphans() {
  const std::vector<int> closed = sentinels_->NewlyClosed();
  if (closed.empty()) return;
  absl::MutexLock lock(&mu_);
  if (aborted_) return;
  for (const auto& [buffer, peer] : active_) {
    if (std::find(closed.begin(), closed.end(), peer) == closed.end()) continue;
    buffer->abortWaitRecv();
    buffer->abortWaitSend();
  }
}

std::optional<OpKey> GlooLane::Unclaimed(int peer) {
  for (auto& [split, channel] : channels_) {
    for (auto& [sequence, posted] : channel[peer].posted) {
      try {
        if (!posted.transfer.buffer->waitRecv(nullptr, std::chrono::milliseconds(1))) continue;
      } catch (const std::exception&) {
        return std::nullopt;  // nothing there, and the wait closed the lane
      }
      FrameHeader header;
      std::memcpy(&header, posted.transfer.message.frame(), sizeof(header));
      return header.key();
    }
  }
  return std::nullopt;
}

}  // namespace switchyard
