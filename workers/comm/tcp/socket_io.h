// The connections of one rank of a socket group, and the thread that reads and writes them.
//
// One thread waits with epoll.  It gives arriving bytes to the connection's receiver, writes to sockets that accept
// more again, and ends the waits on a connection that closes or breaks the protocol.
// Thread-safe but for the destructor, which joins the thread and closes the connections.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "scheduler/base/io/unique_fd.h"
#include "workers/comm/local/message.h"
#include "workers/comm/tcp/socket_receiver.h"
#include "workers/comm/tcp/socket_sender.h"
#include "workers/comm/tcp/socket_stream.h"
#include "workers/comm/tcp/socket_traffic.h"

namespace switchyard::comm {

class SocketIo {
 public:
  struct Options {
    SocketFraming framing = {};
    SocketTraffic* traffic = nullptr;                       // borrowed
    std::function<void(int peer, absl::Status)> on_broken;  // called on the thread if a peer breaks the protocol
  };
  using Streams = std::vector<std::unique_ptr<SocketStream>>;
  // streams: [R]; null for this rank.  Errors: Unavailable (the system has no room for another epoll or event).
  static absl::StatusOr<std::unique_ptr<SocketIo>> Start(Streams streams, std::shared_ptr<MessagePool> pool,
                                                         const Options& options);
  ~SocketIo();

  SocketReceiver& receiver(int peer) { return connections_[static_cast<size_t>(peer)]->receiver; }
  SocketSender& sender(int peer) { return connections_[static_cast<size_t>(peer)]->sender; }
  // Makes the thread write what is queued for the peer.
  void WriteSoon(int peer);
  // Closes all connections for both sides and ends every wait with kAborted.  Idempotent.
  void Abort();

 private:
  struct Connection {
    Connection(int rank, std::unique_ptr<SocketStream> bytes, std::shared_ptr<MessagePool> pool, const Options& options)
        : peer(rank),
          stream(std::move(bytes)),
          receiver(stream.get(), std::move(pool)),
          sender(stream.get(), options.framing, options.traffic) {}
    int fd() const { return stream->fd(); }

    const int peer;
    const std::unique_ptr<SocketStream> stream;
    SocketReceiver receiver;
    SocketSender sender;
    std::atomic<bool> write_soon = false;
    // Used by the thread alone.
    bool open = true, hung_up = false;
    // The stream may have bytes to read (also from the beginning, beside the socket's), or accept more.
    bool may_read = true, may_write = false;
  };

  SocketIo(Streams streams, std::shared_ptr<MessagePool> pool, const Options& options, UniqueFd epoll, UniqueFd wake);
  absl::Status Watch();
  void Run();
  void AwaitEvents(bool block);
  // Reads and writes for one turn.  Returns whether there is more to do at once.
  bool Serve(Connection* connection);
  bool Read(Connection* connection);
  void Wake();

  const Options options_;
  const UniqueFd epoll_, wake_;
  std::vector<std::unique_ptr<Connection>> connections_;  // [R], null for this rank
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

}  // namespace switchyard::comm
