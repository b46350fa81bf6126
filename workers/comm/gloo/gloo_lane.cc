#include "workers/comm/gloo/gloo_lane.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gloo/transport/tcp/device.h"
#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"
#include "workers/comm/gloo/gloo_store.h"
#include "workers/comm/group/cancel_watch.h"
#include "workers/comm/group/peer_order.h"
#include "workers/tensor/yield_point.h"

namespace switchyard::comm {
namespace {

constexpr uint64_t kSentinelSlot = ~uint64_t{0};
// Posted behind what is launched.  With one, the second of two collectives that are started together waits until the
// peer's word that it has room has come behind the first one's bytes (README.md).
constexpr int64_t kFramesAhead = 2;

}  // namespace

GlooLane::GlooLane(const Options& options, std::shared_ptr<MessagePool> pool)
    : group_(options.group),
      comm_class_(options.comm_class),
      stride_(StrideOf(options.group.world)),
      pool_(std::move(pool)) {}

absl::StatusOr<std::unique_ptr<GlooLane>> GlooLane::Connect(const Options& options, RendezvousStore* store,
                                                            std::shared_ptr<MessagePool> pool) {
  std::unique_ptr<GlooLane> lane(new GlooLane(options, std::move(pool)));
  GlooStore adapter(store, options.key_prefix, options.deadline);
  try {
    lane->device_ = gloo::transport::tcp::CreateDevice(gloo::transport::tcp::attr(options.address.c_str()));
    lane->context_ = std::make_unique<GlooMesh>(options.group.rank, options.group.world);
    // Gloo gives a connection attempt five times its timeout.
    lane->context_->setTimeout(
        std::max(absl::ToChronoMilliseconds((options.deadline - absl::Now()) / 5), std::chrono::milliseconds(1)));
    {
      // The store tells of an abort; nothing else would free a wait for a peer that died or stopped while it connected.
      const CancelWatch watch(store, [mesh = lane->context_.get()](const absl::Status&) { mesh->Close(); });
      lane->context_->Connect(&adapter, lane->device_);
    }
    lane->sentinels_ = std::make_unique<GlooSentinels>(lane->context_.get(), kSentinelSlot);
  } catch (const std::exception&) {
    if (!adapter.status().ok()) return adapter.status();
    if (const absl::Status cancelled = store->Cancelled(); !cancelled.ok()) return cancelled;
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
  std::default_delete<gloo::transport::UnboundBuffer>()(buffer);  // as deploy/cmake/tsan.supp knows it
}

GlooLane::Channel& GlooLane::ChannelOf(uint32_t split) {
  const auto it = channels_.find(split);
  if (it != channels_.end()) return it->second;
  return channels_.emplace(split, Channel(group_.world)).first->second;
}

void GlooLane::TakePlaces(Channel* channel, const Communicator::LaterFrames& frames) {
  for (int r = 0; r < group_.world; ++r) {
    Peer& peer = (*channel)[r];
    const bool send = frames.send_to[r] != 0, recv = frames.recv_from[r] != 0;
    const int64_t send_at = peer.next_send, recv_at = peer.next_recv;
    if (send) ++peer.next_send;
    if (recv) ++peer.next_recv;
    if (send) peer.send_at[frames.sequence] = {send_at, peer.next_recv};
    if (recv) peer.recv_at[frames.sequence] = {recv_at, peer.next_send};
  }
}

absl::Status GlooLane::PostReceives(const Communicator::Exchange& exchange) {
  const bool one_way = exchange.key.op == CommOp::kSend;
  for (int r = 0; r < group_.world; ++r) {
    const Peer& peer = ChannelOf(exchange.split)[r];
    if (one_way && exchange.recv_from[r] != 0) RETURN_IF_ERROR(Post(exchange, r, exchange.key.sequence));
    if (one_way || peer.recv_at.empty()) continue;
    for (const auto& [sequence, place] : peer.recv_at) RETURN_IF_ERROR(Post(exchange, r, place.at));
    for (int64_t i = 0; i < kFramesAhead; ++i) RETURN_IF_ERROR(Post(exchange, r, peer.next_recv + i));
  }
  return absl::OkStatus();
}

absl::Status GlooLane::Start(Pending* pending) {
  absl::MutexLock use(&use_mu_);
  const Communicator::Exchange& exchange = pending->exchange;
  const bool one_way = exchange.key.op == CommOp::kSend;
  if (exchange.round == 0) {
    if (!one_way) {
      Channel* const channel = &ChannelOf(exchange.split);
      TakePlaces(channel, {exchange.key.sequence, exchange.send_to, exchange.recv_from});
      for (const Communicator::LaterFrames& later : exchange.later) TakePlaces(channel, later);
    }
    RETURN_IF_ERROR(PostReceives(exchange));
  }
  for (int i = 1; i < group_.world; ++i) {
    const int peer = (group_.rank + i * stride_) % group_.world;
    if (exchange.send_to[peer] != 0) RETURN_IF_ERROR(SendFrame(pending, peer));
  }
  return absl::OkStatus();
}

absl::Status GlooLane::Finish(Pending* pending, std::vector<Message>* received) {
  const NonYieldingScope outside;
  absl::MutexLock use(&use_mu_);
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
  context_->Close();
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
  if (!use_mu_.TryLock()) return std::nullopt;
  const absl::Cleanup unlock = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { use_mu_.Unlock(); };
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

}  // namespace switchyard::comm
