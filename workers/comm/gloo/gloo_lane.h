// One class's connections of a Gloo group: a full mesh with an I/O thread of its own, and the receives posted on it.
//
// Gloo hands a message over in one latency only if the receiver has already posted room for it.  So each rank keeps
// buffers posted per peer for the collective under way and for the next two (chunks of a pipelined layer are two in
// flight), and every frame says how large the sender's own posted buffers are from then on.  What fits goes at once;
// the rest of a longer frame follows when the receiver, who knows the length from the header by then, has made room.
// Posted buffers grow to what was seen, up to a bound.
//
// One thread starts and finishes exchanges; Abort, FreeOrphans and Unclaimed may come from any.  Gloo's exceptions end
// here.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "workers/comm/core/communicator.h"
#include "workers/comm/core/frame_header.h"
#include "workers/comm/gloo/gloo_mesh.h"
#include "workers/comm/gloo/gloo_sentinels.h"
#include "workers/comm/group/rendezvous_store.h"

namespace switchyard::comm {

class GlooLane {
 public:
  struct Options {
    GroupId group;
    CommClass comm_class = CommClass::kControl;
    std::string address;
    std::string key_prefix;
    absl::Time deadline;
  };
  // Blocks until every peer is connected, or the store is cancelled.
  // Errors: the store's, DeadlineExceeded, Unavailable.
  static absl::StatusOr<std::unique_ptr<GlooLane>> Connect(const Options& options, RendezvousStore* store,
                                                           std::shared_ptr<MessagePool> pool);

  // Memory that Gloo's I/O thread reads or writes.  Taking it back waits until that thread has let go.
  struct Unregister {
    Unregister() : lane(nullptr) {}
    explicit Unregister(GlooLane* registered_at) : lane(registered_at) {}
    GlooLane* lane;
    void operator()(gloo::transport::UnboundBuffer* buffer) const;
  };
  struct Transfer {
    int peer = 0;
    Message message;  // outlives the registration; empty: the memory is another transfer's
    std::unique_ptr<gloo::transport::UnboundBuffer, Unregister> buffer;
  };
  // An exchange under way.  Must not outlive the lane.
  struct Pending {
    Communicator::Exchange exchange;
    std::vector<Transfer> sends;  // one frame may be two
    int late_peer = -1;           // after a failed Finish: who was waited for
  };

  // Posts receives and sends; blocks on nobody.
  absl::Status Start(Pending* pending) ABSL_LOCKS_EXCLUDED(use_mu_);
  // Waits for what comes and for what goes.
  absl::Status Finish(Pending* pending, std::vector<Message>* received) ABSL_LOCKS_EXCLUDED(use_mu_);
  // Frees whoever waits and closes the connections.  Any thread; again: nothing.
  void Abort();
  // Wakes whoever waits for a peer whose connection has closed; to be called every now and then.  One thread at a time.
  void FreeOrphans();
  // What `peer` launched on this lane and this rank did not, if such a frame lies here and no thread is at work on the
  // lane.  The lane is unusable afterwards.
  std::optional<OpKey> Unclaimed(int peer) ABSL_LOCKS_EXCLUDED(use_mu_);

 private:
  struct Posted {
    Transfer transfer;
    int32_t frame_bytes = 0;  // room
  };
  // A frame's place among those of its pair and direction: given when its collective is launched, in an order that both
  // ends share, and so the same on both.
  struct Place {
    int64_t at = 0;
    int64_t other_next = 0;  // the other direction's first place behind this launch: room is promised from there on
  };
  struct Peer {
    std::map<int64_t, Posted> posted;  // by place
    int32_t frame_bytes;               // of what is posted from now on
    int64_t next_send = 0, next_recv = 0;
    std::map<int64_t, Place> send_at, recv_at;  // by sequence: launched, and not yet sent or received
    std::map<int64_t, int32_t> room_from;       // the peer's room for our frames, from a place on
    Peer();
  };
  using Channel = std::vector<Peer>;  // [R]

  GlooLane(const Options& options, std::shared_ptr<MessagePool> pool);
  Channel& ChannelOf(uint32_t split) ABSL_EXCLUSIVE_LOCKS_REQUIRED(use_mu_);

  // gloo_lane_frames.cc
  // All of what is launched, and kFramesAhead (gloo_lane.cc).
  absl::Status PostReceives(const Communicator::Exchange& exchange) ABSL_EXCLUSIVE_LOCKS_REQUIRED(use_mu_);
  void TakePlaces(Channel* channel, const Communicator::LaterFrames& frames);
  static Place Take(int64_t sequence, std::map<int64_t, Place>* places);
  absl::Status Post(const Communicator::Exchange& exchange, int peer, int64_t place)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(use_mu_);
  absl::Status SendFrame(Pending* pending, int peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(use_mu_);
  absl::StatusOr<Message> ReceiveFrame(const Communicator::Exchange& exchange, int peer)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(use_mu_);
  absl::StatusOr<Message> ReceiveRest(const Communicator::Exchange& exchange, int64_t place, int64_t first,
                                      Posted posted);
  absl::StatusOr<Transfer> Register(int peer, Message message, char* begin, int64_t bytes);
  absl::Status AwaitTransfer(const Transfer& transfer, bool receive, const Communicator::Exchange& exchange);

  const GroupId group_;
  const CommClass comm_class_;
  const int stride_;                         // peer_order.h
  const std::shared_ptr<MessagePool> pool_;  // shared with the communicator and all messages

  absl::Mutex use_mu_ ABSL_ACQUIRED_BEFORE(mu_);  // held by the lane's thread while it is at work on it
  absl::Mutex mu_;
  std::map<gloo::transport::UnboundBuffer*, int> active_ ABSL_GUARDED_BY(mu_);  // what may be waited for, and its peer
  bool aborted_ ABSL_GUARDED_BY(mu_) = false;

  // Destroyed from the last: buffers, then connections, then the device, which joins its thread.
  std::shared_ptr<gloo::transport::Device> device_;  // shared with the context, as Gloo wants it
  std::unique_ptr<GlooMesh> context_;
  std::unique_ptr<GlooSentinels> sentinels_;
  std::map<uint32_t, Channel> channels_ ABSL_GUARDED_BY(use_mu_);  // by split
};

}  // namespace switchyard::comm
