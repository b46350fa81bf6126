// One frame's way over a lane: posted room, what goes at once, what follows, and waiting for it.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"
#include "workers/comm/gloo/gloo_lane.h"

namespace switchyard::comm {
namespace {

// Both are whole KiB, doubled from the first on, as headers say them.
constexpr int32_t kFirstFrameBytes = 16 << 10;  // posted before anything was seen; and always for one-way messages
constexpr int32_t kMaxFrameBytes = 8 << 20;     // posted buffers do not grow beyond

// Gloo's 64-bit slot: what a frame belongs to.  `place`: a one-way message's sequence, a collective's place.
uint64_t SlotOf(const Communicator::Exchange& exchange, int64_t place, bool rest) {
  return static_cast<uint64_t>(exchange.split) << 48 | static_cast<uint64_t>(exchange.key.op == CommOp::kSend) << 47 |
         static_cast<uint64_t>(rest) << 46 | static_cast<uint64_t>(place);
}

// One-way messages are kept apart, below every collective.
int64_t KeptAt(const Communicator::Exchange& exchange, int64_t place) {
  return exchange.key.op == CommOp::kSend ? INT64_MIN + place : place;
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

GlooLane::Place GlooLane::Take(int64_t sequence, std::map<int64_t, Place>* places) {
  const auto it = places->find(sequence);
  SY_CHECK(it != places->end());
  const Place place = it->second;
  places->erase(it);
  return place;
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

absl::Status GlooLane::Post(const Communicator::Exchange& exchange, int peer, int64_t place) {
  Peer& state = ChannelOf(exchange.split)[peer];
  if (state.posted.count(KeptAt(exchange, place)) > 0) return absl::OkStatus();
  Posted posted;
  posted.frame_bytes = exchange.key.op == CommOp::kSend ? kFirstFrameBytes : state.frame_bytes;
  Message message = pool_->Take(posted.frame_bytes - kFrameHeaderBytes);
  char* begin = message.frame();
  std::memset(begin, 0, kFrameHeaderBytes);  // so that less than a header from a stranger is none
  ASSIGN_OR_RETURN(posted.transfer, Register(peer, std::move(message), begin, posted.frame_bytes));
  try {
    posted.transfer.buffer->recv(peer, SlotOf(exchange, place, false));
  } catch (const std::exception&) {
    return Gone(peer, exchange.key);
  }
  state.posted.emplace(KeptAt(exchange, place), std::move(posted));
  return absl::OkStatus();
}

absl::Status GlooLane::SendFrame(Pending* pending, int peer) {
  Communicator::Exchange& exchange = pending->exchange;
  Peer& state = ChannelOf(exchange.split)[peer];
  Message message = std::move(exchange.out[peer]);
  if (message.capacity() == 0) message = pool_->Take(0);
  const bool one_way = exchange.key.op == CommOp::kSend;
  FrameHeader header = MakeFrameHeader(group_, exchange.key, exchange.split, message.bytes());
  int32_t posted_bytes = state.frame_bytes, room_bytes = kFirstFrameBytes;
  Place place{.at = exchange.key.sequence};
  if (!one_way) {
    place = Take(exchange.key.sequence, &state.send_at);
    // Promise no more than the smallest buffer that is already out.
    for (auto it = state.posted.lower_bound(place.other_next); it != state.posted.end(); ++it) {
      posted_bytes = std::min(posted_bytes, it->second.frame_bytes);
    }
    room_bytes = std::prev(state.room_from.upper_bound(place.at))->second;
  }
  header.posted_kib = static_cast<uint16_t>(posted_bytes / 1024);
  header.room_kib = static_cast<uint16_t>(room_bytes / 1024);
  char* frame = message.frame();
  std::memcpy(frame, &header, sizeof(header));
  const int64_t total = kFrameHeaderBytes + message.bytes();
  const int64_t first = std::min<int64_t>(total, room_bytes);
  ASSIGN_OR_RETURN(Transfer transfer, Register(peer, std::move(message), frame, total));
  try {
    transfer.buffer->send(peer, SlotOf(exchange, place.at, false), 0, first);
    pending->sends.push_back(std::move(transfer));
    if (first < total) {
      // The same memory under a second registration: Gloo allows one operation per buffer.
      ASSIGN_OR_RETURN(Transfer rest, Register(peer, Message(), frame + first, total - first));
      rest.buffer->send(peer, SlotOf(exchange, place.at, true));
      pending->sends.push_back(std::move(rest));
    }
  } catch (const std::exception&) {
    return Gone(peer, exchange.key);
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
      receive ? Communicator::NothingFrom(peer, exchange)
              : absl::StrCat("rank ", peer, " did not take its part of ", exchange.key.ToString(), " in time"));
}

absl::StatusOr<Message> GlooLane::ReceiveRest(const Communicator::Exchange& exchange, int64_t place, int64_t first,
                                              Posted posted) {
  const int peer = posted.transfer.peer;
  Message message = std::move(posted.transfer.message);
  FrameHeader header;
  std::memcpy(&header, message.frame(), sizeof(header));
  const int64_t total = kFrameHeaderBytes + header.payload_bytes;
  if (message.capacity() + kFrameHeaderBytes < total) {
    Message larger = pool_->Take(total - kFrameHeaderBytes);
    std::memcpy(larger.frame(), message.frame(), static_cast<size_t>(first));
    message = std::move(larger);
  }
  char* frame = message.frame();
  ASSIGN_OR_RETURN(Transfer rest, Register(peer, std::move(message), frame + first, total - first));
  absl::Status status;
  try {
    rest.buffer->recv(peer, SlotOf(exchange, place, true));
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
  const Place place = one_way ? Place{.at = exchange.key.sequence} : Take(exchange.key.sequence, &state.recv_at);
  const auto it = state.posted.find(KeptAt(exchange, place.at));
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
    state.room_from[place.other_next] = int32_t{header.posted_kib} * 1024;
    // The first entry holds for ever; of the others, a few cover whatever is started next.
    while (state.room_from.size() > 4) state.room_from.erase(std::next(state.room_from.begin()));
    while (state.frame_bytes < std::min<int64_t>(total, kMaxFrameBytes)) state.frame_bytes *= 2;
  }
  const int64_t room_bytes = int64_t{header.room_kib} * 1024;
  const int64_t first = std::min(total, room_bytes);
  if (first < kFrameHeaderBytes || first > posted.frame_bytes) {
    return absl::InternalError(
        absl::StrCat("rank ", peer, " took this rank's buffer of ", posted.frame_bytes, " bytes for ", room_bytes));
  }
  Message message;
  if (first < total) {
    ASSIGN_OR_RETURN(message, ReceiveRest(exchange, place.at, first, std::move(posted)));
  } else {
    message = std::move(posted.transfer.message);
  }
  message.SetBytes(header.payload_bytes);
  return message;
}

}  // namespace switchyard::comm
