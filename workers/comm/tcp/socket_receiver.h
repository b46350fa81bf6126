// The receiving direction of a connection: reads what a peer sends into the messages that calls wait for.
//
// The group's I/O thread reads; callers launch and wait.  It never stops reading: there is memory for everything that a
// peer may send (socket_receive_table.h), so a message without a waiting call delays no other.  Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "workers/comm/core/op_key.h"
#include "workers/comm/local/message.h"
#include "workers/comm/tcp/socket_receive_table.h"
#include "workers/comm/tcp/socket_sender.h"
#include "workers/comm/tcp/socket_stream.h"
#include "workers/comm/tcp/socket_wire.h"

namespace switchyard::comm {

class SocketReceiver {
 public:
  // stream: borrowed.
  SocketReceiver(SocketStream* stream, std::shared_ptr<MessagePool> pool) : stream_(*stream), table_(std::move(pool)) {}

  // Called by one thread.  Returns whether there is more to read now.  Appends the peer's grants.  Errors: Unavailable
  // (the connection has closed), FailedPrecondition (the bytes are no record, break the rules, or are not the peer's).
  absl::StatusOr<bool> Read(std::vector<MessageId>* grants) ABSL_LOCKS_EXCLUDED(mu_);

  // Records that the call that receives the message is launched.  False: it was recorded before.
  bool Post(const MessageId& id) ABSL_LOCKS_EXCLUDED(mu_);
  // Blocks until the whole message is here (kDone); other values say why it is not.  What arrived before the connection
  // closed counts.  elsewhere: how many other connections the caller knows to have closed; if there are more, Await
  // returns kElsewhere and the new number.  Null: the caller does not ask.  message: null leaves it here.
  SocketEnd Await(const MessageId& id, absl::Time deadline, Message* message, int* elsewhere = nullptr)
      ABSL_LOCKS_EXCLUDED(mu_);
  SocketReceiveTable::Share Came(const MessageId& id) ABSL_LOCKS_EXCLUDED(mu_);
  std::optional<OpKey> Unclaimed() ABSL_LOCKS_EXCLUDED(mu_);
  // The same as SocketSender::End.
  void End(SocketEnd why) ABSL_LOCKS_EXCLUDED(mu_);
  // Another peer's connection has closed.
  void EndedElsewhere() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // Room for several records that follow a frame in the same read.
  static constexpr size_t kStagedBytes = 8 << 10;

  absl::StatusOr<int64_t> ReadOnce() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status TakeStaged(std::vector<MessageId>* grants) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  SocketStream& stream_;
  absl::Mutex mu_;
  SocketReceiveTable table_ ABSL_GUARDED_BY(mu_);
  char staged_[kStagedBytes] ABSL_GUARDED_BY(mu_);
  size_t num_staged_ ABSL_GUARDED_BY(mu_) = 0;  // less than a header, between calls
  bool more_ ABSL_GUARDED_BY(mu_) = false;      // of the last ReadOnce
  SocketEnd end_ ABSL_GUARDED_BY(mu_) = SocketEnd::kDone;
  int ended_elsewhere_ ABSL_GUARDED_BY(mu_) = 0;  // connections
};

}  // namespace switchyard::comm
