#include "workers/comm/tcp/socket_communicator.h"

#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"
#include "workers/comm/core/frame_header.h"
#include "workers/comm/group/peer_order.h"
#include "workers/comm/local/local_communicator.h"
#include "workers/comm/tcp/socket_io.h"

namespace switchyard::comm {
namespace {

using Exchange = Communicator::Exchange;

// The connections of one rank in one epoch, and why they ended.
class SocketGroup {
 public:
  static absl::StatusOr<std::shared_ptr<SocketGroup>> Make(const SocketGroupOptions& options, SocketIo::Streams streams,
                                                           std::shared_ptr<MessagePool> pool) {
    auto group = std::make_shared<SocketGroup>(options, pool);
    const SocketIo::Options io = {.framing = options.framing,
                                  .traffic = options.traffic != nullptr ? options.traffic : &group->own_traffic_,
                                  .on_broken = [broken = group.get()](int peer, const absl::Status& status) {
                                    (void)broken->Fail(absl::FailedPreconditionError(absl::StrCat(
                                        "what came on rank ", peer, "'s connection: ", std::string(status.message()))));
                                  }};
    // (The thread may look at io_ before this returns: it waits for the lock.)
    absl::MutexLock lock(&group->mu_);
    ASSIGN_OR_RETURN(group->io_, SocketIo::Start(std::move(streams), std::move(pool), io));
    return group;
  }
  SocketGroup(const SocketGroupOptions& options, std::shared_ptr<MessagePool> pool)
      : id_(IdOfGroup(options.group)), stride_(StrideOf(options.group.world)), pool_(std::move(pool)) {}

  const GroupId& id() const { return id_; }

  absl::Status status() {
    absl::MutexLock lock(&mu_);
    return status_;
  }
  // Closes everything at the first error and keeps it.  Any thread.  Returns the first error.
  absl::Status Fail(const absl::Status& status) {
    absl::MutexLock lock(&mu_);
    if (!status_.ok()) return status_;
    status_ = status;
    if (io_ != nullptr) io_->Abort();
    return status_;
  }

  // Grants the messages that this rank receives, and sends; does not wait for a peer.
  absl::Status Start(Exchange* exchange) {
    RETURN_IF_ERROR(status());
    RETURN_IF_ERROR(CheckLengths(*exchange));
    const MessageId id = IdOf(*exchange);
    for (int i = 1; i < id_.world; ++i) {
      const int peer = (id_.rank + i * stride_) % id_.world;
      const std::vector<MessageId> grants = Post(*exchange, peer);
      const bool send = exchange->send_to[static_cast<size_t>(peer)] != 0;
      if (grants.empty() && !send) continue;
      const bool more = send ? io_->sender(peer).Send(grants, &id, FrameTo(exchange, peer))
                             : io_->sender(peer).Send(grants, nullptr, Message());
      if (more) io_->WriteSoon(peer);
    }
    return absl::OkStatus();
  }

  // Waits for messages to arrive, at most until then, and returns the ranks whose have not.  None: all are here, or the
  // connection of one that is not has closed, which Finish explains.
  std::vector<int> AwaitMessages(const Exchange& exchange, absl::Time until) {
    std::vector<int> missing;
    for (int peer = 0; peer < id_.world; ++peer) {
      if (exchange.recv_from[static_cast<size_t>(peer)] == 0) continue;
      const SocketEnd end = io_->receiver(peer).Await(IdOf(exchange), until, nullptr);
      if (end == SocketEnd::kLate) {
        missing.push_back(peer);
      } else if (end != SocketEnd::kDone) {
        return {};
      }
    }
    return missing;
  }

  // Waits for messages to arrive and for own messages to be sent.
  absl::Status Finish(const Exchange& exchange, std::vector<Message>* received) {
    const MessageId id = IdOf(exchange);
    for (int i = 1; i < id_.world; ++i) {
      const int peer = (id_.rank + id_.world - i) % id_.world;
      if (!Lacks(exchange, *received, peer)) continue;
      Message* const message = &(*received)[static_cast<size_t>(peer)];
      int elsewhere = 0;
      SocketEnd end = SocketEnd::kElsewhere;
      while (end == SocketEnd::kElsewhere) {
        end = io_->receiver(peer).Await(id, exchange.deadline, message, &elsewhere);
        if (end != SocketEnd::kElsewhere) break;
        if (const absl::Status status = LookAround(exchange, peer, received); !status.ok()) return Fail(status);
      }
      const absl::Status status =
          end == SocketEnd::kDone ? CheckReceived(*message, peer, exchange) : WhyNothingCame(end, peer, exchange);
      if (!status.ok()) return Fail(status);
    }
    for (int peer = 0; peer < id_.world; ++peer) {
      if (exchange.send_to[static_cast<size_t>(peer)] == 0) continue;
      const SocketEnd end = io_->sender(peer).AwaitSent(id, exchange.deadline);
      if (end == SocketEnd::kDone) continue;
      return Fail(end == SocketEnd::kLate
                      ? absl::DeadlineExceededError(absl::StrCat("rank ", peer, " did not take its part of ",
                                                                 exchange.key.ToString(), " in time"))
                      : EndOf(end, peer, exchange));
    }
    return absl::OkStatus();
  }

 private:
  static bool Lacks(const Exchange& exchange, const std::vector<Message>& received, int peer) {
    return exchange.recv_from[static_cast<size_t>(peer)] != 0 && received[static_cast<size_t>(peer)].capacity() == 0;
  }

  // A peer has gone while this rank waits for another: if its part is missing, or ours cannot be sent, the wait ends.
  absl::Status LookAround(const Exchange& exchange, int waiting_for, std::vector<Message>* received) {
    const MessageId id = IdOf(exchange);
    for (int peer = 0; peer < id_.world; ++peer) {
      if (peer == waiting_for) continue;
      if (Lacks(exchange, *received, peer)) {
        Message* const message = &(*received)[static_cast<size_t>(peer)];
        const SocketEnd end = io_->receiver(peer).Await(id, absl::InfinitePast(), message);
        if (end == SocketEnd::kDone) RETURN_IF_ERROR(CheckReceived(*message, peer, exchange));
        if (end == SocketEnd::kClosed || end == SocketEnd::kAborted) return EndOf(end, peer, exchange);
      }
      if (exchange.send_to[static_cast<size_t>(peer)] == 0) continue;
      const SocketEnd end = io_->sender(peer).AwaitSent(id, absl::InfinitePast());
      if (end == SocketEnd::kClosed || end == SocketEnd::kAborted) return EndOf(end, peer, exchange);
    }
    return absl::OkStatus();
  }

  // Refuses messages that a peer would not accept as they are too long.
  absl::Status CheckLengths(const Exchange& exchange) {
    for (size_t peer = 0; peer < exchange.out.size(); ++peer) {
      const int64_t bytes = exchange.out[peer].bytes();
      if (exchange.send_to[peer] == 0 || bytes <= kMaxPayloadBytes) continue;
      return Fail(absl::InvalidArgumentError(absl::StrCat(exchange.key.ToString(), " has ", bytes, " bytes for rank ",
                                                          peer, "; a message has at most ", kMaxPayloadBytes)));
    }
    return absl::OkStatus();
  }

  // Messages of launched calls that the peer is to send and that were not granted yet.
  std::vector<MessageId> Post(const Exchange& exchange, int peer) {
    std::vector<MessageId> grants;
    const auto post = [&](int64_t sequence, const std::vector<uint8_t>& recv_from) {
      MessageId id = IdOf(exchange);
      id.sequence = sequence;
      if (recv_from[static_cast<size_t>(peer)] != 0 && io_->receiver(peer).Post(id)) grants.push_back(id);
    };
    post(exchange.key.sequence, exchange.recv_from);
    for (const Communicator::LaterFrames& later : exchange.later) post(later.sequence, later.recv_from);
    return grants;
  }

  Message FrameTo(Exchange* exchange, int peer) {
    Message message = std::move(exchange->out[static_cast<size_t>(peer)]);
    if (message.capacity() == 0) message = pool_->Take(0);
    const FrameHeader header = MakeFrameHeader(id_, exchange->key, exchange->split, message.bytes());
    std::memcpy(message.frame(), &header, sizeof(header));
    return message;
  }

  absl::Status CheckReceived(const Message& message, int peer, const Exchange& exchange) const {
    FrameHeader header;
    std::memcpy(&header, message.frame(), sizeof(header));
    RETURN_IF_ERROR(CheckFrameHeader(header, id_, peer, exchange.key, exchange.split));
    if (header.payload_bytes == message.bytes()) return absl::OkStatus();
    return absl::InternalError(absl::StrCat("rank ", peer, " says ", header.payload_bytes, " bytes and sent ",
                                            message.bytes(), " in ", exchange.key.ToString()));
  }

  static absl::Status EndOf(SocketEnd end, int peer, const Exchange& exchange) {
    if (end == SocketEnd::kAborted) return absl::UnavailableError("the group was aborted");
    return absl::UnavailableError(
        absl::StrCat("rank ", peer, " is gone during ", exchange.key.ToString(), ": its connection closed"));
  }

  absl::Status WhyNothingCame(SocketEnd end, int peer, const Exchange& exchange) {
    if (end != SocketEnd::kLate) return EndOf(end, peer, exchange);
    const SocketReceiveTable::Share came = io_->receiver(peer).Came(IdOf(exchange));
    if (came.got > 0) {
      return absl::DeadlineExceededError(absl::StrCat("of ", came.bytes, " bytes that rank ", peer, " sends in ",
                                                      exchange.key.ToString(), " only ", came.got, " came in time"));
    }
    std::string text = Communicator::NothingFrom(peer, exchange);
    // A call that the peer launched instead, if any: the likely reason.
    if (const std::optional<OpKey> other = io_->receiver(peer).Unclaimed(); other.has_value()) {
      absl::StrAppend(&text, "; it launched ", other->ToString(), ", which rank ", id_.rank, " did not");
    }
    return absl::DeadlineExceededError(text);
  }

  const GroupId id_;
  const int stride_;                         // peer_order.h
  const std::shared_ptr<MessagePool> pool_;  // shared with the communicator and all messages
  SocketTraffic own_traffic_;
  absl::Mutex mu_;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<SocketIo>
      io_;  // set once, before the group is shared; destroyed first, as its thread uses the others
};

class SocketWork : public OnceWork {
 public:
  SocketWork(std::shared_ptr<SocketGroup> group, Exchange exchange)
      : group_(std::move(group)), exchange_(std::move(exchange)) {
    const GroupId& id = group_->id();
    received_.resize(static_cast<size_t>(id.world));
    received_[static_cast<size_t>(id.rank)] = std::move(exchange_.out[static_cast<size_t>(id.rank)]);
  }
  ~SocketWork() override {
    if (waited()) return;
    (void)group_->Fail(absl::UnavailableError(absl::StrCat(exchange_.key.ToString(), " was dropped unfinished")));
  }

  std::vector<int> AwaitMessages(absl::Time until) override {
    if (waited()) return {};
    return group_->AwaitMessages(exchange_, until);
  }

 private:
  absl::Status Finish() override { return group_->Finish(exchange_, &received_); }

  const std::shared_ptr<SocketGroup> group_;  // shared with the communicator
  Exchange exchange_;
};

class SocketCommunicator : public Communicator {
 public:
  SocketCommunicator(std::shared_ptr<MessagePool> pool, std::shared_ptr<SocketGroup> group)
      : Communicator(group->id(), std::move(pool)), group_(std::move(group)) {}

  void Abort(absl::string_view reason) override {
    (void)group_->Fail(absl::UnavailableError(absl::StrCat("aborted: ", reason)));
  }
  absl::Status status() const override { return group_->status(); }

  WorkOr StartExchange(Exchange exchange) override {
    RETURN_IF_ERROR(group_->Start(&exchange));
    return std::make_unique<SocketWork>(group_, std::move(exchange));
  }

 private:
  const std::shared_ptr<SocketGroup> group_;  // shared with works under way
};

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> FormSocketGroup(const SocketGroupOptions& options,
                                                              RendezvousStore* store) {
  RETURN_IF_ERROR(CheckGroupOptions(options.group));
  if (options.framing.bytes < kLeastFrameBytes || options.framing.bytes > kMostFrameBytes) {
    return absl::InvalidArgumentError(absl::StrCat("frames of ", options.framing.bytes, " bytes: must be from ",
                                                   kLeastFrameBytes, " to ", kMostFrameBytes));
  }
  if (options.group.world == 1) return MakeSoloCommunicator(options.group.epoch);
  RETURN_IF_ERROR(CallTheRoll(options.group, store));
  ASSIGN_OR_RETURN(SocketIo::Streams streams, ConnectMesh(options.group, options.socket, store));
  std::shared_ptr<MessagePool> pool = MessagePool::Create();
  ASSIGN_OR_RETURN(std::shared_ptr<SocketGroup> group, SocketGroup::Make(options, std::move(streams), pool));
  return std::make_unique<SocketCommunicator>(std::move(pool), std::move(group));
}

}  // namespace switchyard::comm
