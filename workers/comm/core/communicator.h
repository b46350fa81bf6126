// Communicator: the collectives of the ranks of one group, in one epoch.
//
// Rules that keep ranks in step:
// - All ranks launch the collectives of one class in the same order.  Each has a sequence number in its class; every
//   frame carries (op, class, sequence, bytes, tag, epoch, ranks), and a rank that receives one that does not fit its
//   own call fails and names both calls.  Nothing ever hangs: every wait ends at its call's deadline.
// - Classes are independent: an all-to-all is never held behind an all-reduce, nor a layer's sum behind gradients.
// - The first error ends the group on this rank: it is sticky, every later call returns it, and the peers notice
//   within milliseconds (their connections close).  A new epoch is a new communicator.
// - Launched collectives are folded into a ledger hash that is equal on all ranks (launch_ledger.h).
//
// A collective is started (never blocks on a peer) and finished by Work::Wait.  Works of one class are waited for in
// the same order on all ranks: a long message's end may need the receiver's Wait.  A group of one rank copies nothing
// and waits for nothing: it receives the messages that it sent. Reductions add in rank order, so all ranks get the same
// bits, the same in every run.
//
// Collectives on views may be on device memory, and are then ordered by streams, not by the host: they start after
// the work that call.stream holds, Work::Wait makes that stream wait for them and returns at once, and both can be
// captured into a graph.  So OK from Wait says nothing about the peers: errors and expired deadlines show in status(),
// which is sticky, and in every later call.  A step therefore ends with: wait for the stream, at most until a deadline;
// then look at status(), and throw the step's results away unless it is OK.  (status() is set before anything frees the
// stream.) Stream-ordered collectives have one order over all classes, the same on all ranks and backends.  A graph's
// replay launches its collectives again without a call: a Fence after it gives them a deadline.  Views must stay until
// the stream has passed the Wait.  On the CPU the same calls are done when Wait returns.
//
// Thread-compatible, but for Abort and status(), which any thread may call at any time, also while another waits; and
// on the CPU each class may have a thread of its own, for its calls and their works.  (ledger() is to be read while
// none calls; Split is a call of class control.) Errors: Unavailable (a peer is gone; aborted), DeadlineExceeded (names
// the late ranks), Internal (mismatch: names rank, op and sequence on both sides), InvalidArgument (the call
// itself).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "workers/comm/core/device_collective.h"
#include "workers/comm/core/launch_ledger.h"
#include "workers/comm/core/op_key.h"
#include "workers/comm/local/message.h"
#include "workers/tensor/tensor.h"

namespace switchyard::comm {

class WorkThread;

inline constexpr int64_t kNextSequence = -1;

struct CommCall {
  const Stream* stream =
      nullptr;  // the call starts after its work; a CPU stream has nothing to wait for and may be null
  CommClass comm_class = CommClass::kAllToAll;
  int64_t sequence = kNextSequence;              // or the number that a plan gives it, which must be the class's next
  absl::Time deadline = absl::InfiniteFuture();  // must be finite where the group has peers
  // What the call is for (call_tag.h), the same on all ranks: an error then shows that two ranks took calls of one
  // shape in different orders.
  uint32_t tag = 0;
};

// A collective under way.  Thread-compatible.  Dropping one that was not waited for breaks the group (Abort).
class Work {
 public:
  virtual ~Work() = default;
  // Blocks until the collective is done on this rank, at most until its deadline.  A second call returns the same at
  // once. On device memory: makes the call's stream wait; OK = the wait is enqueued.
  virtual absl::Status Wait() = 0;
  // Blocks the host, also for device memory, until the collective is done on this rank, at most until its deadline.
  // Not while the stream is captured (FailedPrecondition).
  virtual absl::Status WaitOnHost() { return Wait(); }
  // Blocks until the messages that Wait needs are here, at most until then, and returns the ranks that have not sent
  // theirs.  None: Wait says what there is, or the work does not know.
  virtual std::vector<int> AwaitMessages(absl::Time) { return {}; }
  // After an OK Wait.  received()[r]: what rank r sent here (empty where the op has none).  Owned by the work; take
  // with std::move.
  std::vector<Message>& received() { return received_; }

 protected:
  std::vector<Message> received_;  // [R]
};

// A work that calls Finish in its first Wait.
class OnceWork : public Work {
 public:
  absl::Status Wait() final {
    if (!std::exchange(waited_, true)) status_ = Finish();
    return status_;
  }

 protected:
  virtual absl::Status Finish() = 0;
  bool waited() const { return waited_; }

 private:
  bool waited_ = false;
  absl::Status status_;
};

using WorkOr = absl::StatusOr<std::unique_ptr<Work>>;

class Communicator {
 public:
  virtual ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  const GroupId& group() const { return group_; }
  int rank() const { return group_.rank; }
  int world() const { return group_.world; }
  const LaunchLedger& ledger() const { return ledger_; }
  // A message to fill and send.
  Message NewMessage(int64_t bytes) { return pool_->Take(bytes); }
  // Of this rank's messages; where ranks are threads, of the group's.
  PoolBytes message_bytes() const { return pool_->bytes(); }

  // out[r] goes to rank r; sizes are free and need not be known to the receiver.  out[rank()] comes back as it is.
  // REQUIRES: out.size() == world().
  WorkOr AllToAllV(const CommCall& call, std::vector<Message> out);
  // Every rank's `mine`, of the same size on all; received()[rank()] holds a copy of this rank's.  A small one goes in
  // rounds (gather_work.h), which need every rank's Wait: wait for it before anything that a peer does behind its own.
  WorkOr AllGather(const CommCall& call, absl::Span<const char> mine);
  // values[i] = Σ over ranks, on every rank; fp32, fp64, int64, or bf16, which is added in fp32 and rounded once.
  // `values` must stay until Wait has returned, and not be touched.  A long one needs every rank's Wait, but in class
  // layer_sum, where a thread of this communicator's, started by the first, finishes it.  (On device memory as
  // described above; the device library decides the order of its sums, and may round bf16 after every addition.)
  WorkOr AllReduceSum(const CommCall& call, const TensorView& values);
  // received()[root] holds the root's bytes on every rank; `mine` is the root's, of a size known to all ranks.
  WorkOr Broadcast(const CommCall& call, int root, int64_t bytes, absl::Span<const char> mine);
  WorkOr Barrier(const CommCall& call);

  // Rank r's part of `send` becomes this rank's part of rank r's `recv`.  All sizes are known on both sides; where they
  // differ, Wait names both (on device memory: at the deadline).  This rank's own part is copied.
  WorkOr AllToAllSized(const CommCall& call, const SizedParts& send, const SizedParts& recv);
  // Every rank's part of one memory, on every rank and in place: this rank's own lies there already and is sent, the
  // others' arrive.  All sizes are known on all ranks, as above.
  WorkOr AllGatherSized(const CommCall& call, const SizedParts& parts);
  // In a group of two, which Split makes of a pair: this rank's view becomes the other's, of as many bytes; the other
  // calls RecvView in the same place of its order.  Both launch it, so it is in the ledger and ends as all collectives.
  // (Views for both directions at once are an AllToAllSized.)
  WorkOr SendView(const CommCall& call, const TensorView& view) { return StartView(call, rank(), view); }
  WorkOr RecvView(const CommCall& call, const TensorView& view) { return StartView(call, 1 - rank(), view); }
  // Not a collective: ends the group unless all that call.stream holds by now, such as the collectives of a replayed
  // graph, is done by the deadline.  It is in the ledger.
  WorkOr Fence(const CommCall& call);

  // To and from one peer.  They are numbered per (class, peer, direction) and are not part of the ledger, which is
  // equal on all ranks: the others launch nothing.
  WorkOr Send(const CommCall& call, int peer, Message message);
  WorkOr Recv(const CommCall& call, int peer);

  // A communicator over the ranks that give the same color, ranked by (key, rank).  Collective.  It uses this one's
  // connections, ends when this one ends, and must not outlive it.  Splits may overlap; their stream-ordered
  // collectives and this one's have one order.
  absl::StatusOr<std::unique_ptr<Communicator>> Split(int color, int key, absl::Time deadline);

  // Ends the group on this rank: every waiter returns Unavailable with the reason, at once; the peers notice.
  virtual void Abort(absl::string_view reason) = 0;
  // OK, or the first error.
  virtual absl::Status status() const = 0;

  // The one primitive under all of the above, for communicators that wrap another (Split, faults); not for users, as it
  // neither numbers nor records.  Sends out[r] to every rank r with send_to, expects one message from every rank with
  // recv_from, all under `key`; received messages have key.bytes bytes, or any number if that is kAnyBytes.
  //
  // Frames that later exchanges of a collective will bring.  They are numbered when it is launched: the rounds of a
  // gather have its number, the second half of a sum has a number of its own.
  struct LaterFrames {
    int64_t sequence = 0;
    std::vector<uint8_t> recv_from;  // [R] as in Exchange
  };
  struct Exchange {
    OpKey key;  // at most one frame from rank to rank under one number, over all its rounds
    int round = 0;
    uint32_t split = 0;  // which Split it belongs to; 0 = the whole group
    absl::Time deadline;
    std::vector<Message> out;        // [R]
    std::vector<uint8_t> send_to;    // [R] 0 or 1; 0 for this rank
    std::vector<uint8_t> recv_from;  // [R] 0 or 1; 0 for this rank, which receives its own `out`
    std::vector<LaterFrames> later;  // of the same collective, in the order of their exchanges
  };
  // Any thread may call it.
  virtual WorkOr StartExchange(Exchange exchange) = 0;
  // An exchange without any message yet.
  Exchange NewExchange(const OpKey& key, absl::Time deadline) const;
  Exchange ToAll(const OpKey& key, absl::Time deadline, std::vector<Message> out) const;
  // The message of the error when a deadline passes before rank `peer`'s frame has come.
  static std::string NothingFrom(int peer, const Exchange& exchange);
  // The same for collectives on views.  This implementation serves CPU views, by StartExchange.
  virtual WorkOr StartOnDevice(const DeviceCollective& collective);

 protected:
  Communicator(const GroupId& group, std::shared_ptr<MessagePool> pool);

  const std::shared_ptr<MessagePool>& pool() const { return pool_; }
  // For a communicator that wraps `inner` and continues its sequences: numbers follow those of `inner`.
  void ContinueNumberingOf(const Communicator& inner);
  // 0 for a whole group.
  virtual uint32_t split_id() const { return 0; }
  // The communicator of a Split.  members: ranks of this one, in the Split's order, this rank among them.
  virtual absl::StatusOr<std::unique_ptr<Communicator>> MakeSplit(const std::vector<int>& members, uint32_t split_id,
                                                                  absl::Time deadline);

 private:
  absl::StatusOr<int64_t> TakeSequence(const CommCall& call);
  WorkOr StartToAll(const CommCall& call, OpKey key, std::vector<Message> out);
  WorkOr StartStreamOrdered(const CommCall& call, DeviceCollective collective);
  WorkOr StartView(const CommCall& call, int root, const TensorView& view);
  WorkOr StartOneWay(const CommCall& call, int peer, bool send, Message message);
  std::vector<Message> Copies(absl::Span<const char> bytes);
  std::vector<Message> PartsOf(absl::Span<const char> bytes, int64_t element_bytes);

  GroupId group_;
  std::shared_ptr<MessagePool> pool_;
  LaunchLedger ledger_;
  int64_t next_sequence_[kNumCommClasses] = {};
  std::vector<int64_t> next_one_way_;  // [class][direction][R]
  uint32_t next_split_ = 1;
  std::unique_ptr<WorkThread> layer_sums_;  // finishes those of two halves; null: none yet
};

// OK if the message of rank `rank` in `what` came with as many bytes as this rank wants.  Else Internal with both
// numbers, and the group is aborted.
absl::Status ExpectBytes(Communicator* comm, absl::string_view what, int rank, int64_t came, int64_t wanted);

}  // namespace switchyard::comm
