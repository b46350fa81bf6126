// One client's connection, between its socket and the socket that the server behind it has.
//
// Moves bytes both ways, through TLS if its listener has it, at most 64 KB each way at a time: who does not read stops
// who writes.  HTTP/2 frames of the client pass a FrameGuard.  The server behind gets its socket only once the client
// has begun to speak, so silent connections cost it nothing.
//
// Used by one thread (of relay.h), but for HasUnread.  No call blocks.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "scheduler/base/io/unique_fd.h"
#include "scheduler/base/log.h"
#include "server/front/frame_guard.h"
#include "server/front/memory_budget.h"
#include "server/front/offenders.h"
#include "server/front/rate_limit.h"
#include "server/front/tls_server.h"

namespace switchyard::server {

// What all connections of one listener have in common.
struct RelayListener {
  // Returns a connection to the server behind, whose socket has the abstract name `name`; -1: none can be made.  That
  // server may write to a copy of `client_fd`, rather than through the relay, if it never does both; with TLS it is -1.
  std::function<int(const std::string& name, int client_fd)> open = {};
  const TlsServer* tls = nullptr;  // null: plaintext
  bool asks_clients = false;       // for certificates.  REQUIRES: tls->can_ask_clients()
  bool http2 = true;               // false: any bytes pass unread
  FrameGuard::Limits limits = {};  // of HTTP/2
};

// A client's address, and what its connections share.
struct RelayClient {
  std::string address;
  int port = 0;
  std::string client;  // who waits for its violations, and whose share of memory it uses; on loopback each connection's
  bool is_loopback = false;
};

// What the connections of a relay share.
struct RelayShared {
  RelayShared(int64_t bytes, double calls_a_second, double call_burst)
      : memory(bytes), calls(calls_a_second, call_burst) {}
  MemoryBudget memory;
  ClientRates calls;
  Offenders offenders;
  int http_port = -1;  // -1: none; set before there are connections
  std::atomic<int64_t> ended[static_cast<size_t>(FrontLimit::kNumLimits)] = {};
  std::atomic<int64_t> handshakes_failed{0}, turned_away{0};

  // Logs, but of a flood of lines only some.
  void Warn(absl::string_view line, absl::Time now) {
    absl::MutexLock lock(&mu);
    if (lines.Take(now)) LogWarn(line);
  }
  absl::Mutex mu;
  RateLimit lines ABSL_GUARDED_BY(mu){/*rate=*/1, /*burst=*/20, absl::InfinitePast()};
};

class RelayConnection {
 public:
  static constexpr absl::Duration kHandshakeLimit = absl::Seconds(5);  // of TLS, and then of the first bytes
  // For holding too much without getting on.  Shorter than gRPC's keepalive (2 s), whose answers then wait, too.
  static constexpr absl::Duration kMemoryLimit = absl::Milliseconds(1500);
  static constexpr absl::Duration kLastBytesLimit = absl::Seconds(5);  // for reading what is left at the end
  // What an ended client still sends is dropped, so that it can read why, until it sends less than kLeastDropped in
  // that time.
  static constexpr absl::Duration kLingerLimit = absl::Seconds(1);
  // A client of HTTP/1 may send all of its body before it reads that this was too large.  One of HTTP/2 reads
  // meanwhile: it gets kLingerLimit together, and a MB.
  static constexpr absl::Duration kHttp1LingerLimit = absl::Seconds(30);
  static constexpr size_t kHttp1MostDropped = size_t{128} << 20;
  static constexpr size_t kLeastDropped = 16 << 10;
  static constexpr size_t kBufferBytes = 64 << 10;  // each way

  // `client_fd` does not block.  `name`: its abstract name for the server behind.
  RelayConnection(const RelayListener* listener, UniqueFd client_fd, RelayClient client, std::string name,
                  RelayShared* shared, absl::Time now);
  ~RelayConnection();

  // Which sockets may have something to read.
  struct Readable {
    bool client = true, inner = true;
  };
  // Moves what can be moved now.  `gone`: the client's socket has failed or is closed in both directions.  A plain
  // socket is read while `readable` says so, until it gives less than was asked for: epoll says when there is more.
  void Run(bool gone, Readable readable, absl::Time now);
  // The server behind has closed its end, but the client may not have read what it said.  Call Run next.
  void InnerGone(absl::Time now) { deadline_ = std::min(deadline_, now + kLastBytesLimit); }
  bool is_over() const { return stage_ == Stage::kOver; }
  // When Run is to be called without an event; InfiniteFuture: never.
  absl::Time due() const { return due_; }
  // Events of epoll to wait for on either socket.
  uint32_t client_events() const;
  uint32_t inner_events() const;

  int client_fd() const { return client_fd_.get(); }
  int inner_fd() const { return inner_.get(); }  // -1 before the client speaks, and near the end
  const std::string& name() const { return name_; }
  // Of any thread: whether bytes of the client are here, or with the server behind but not yet read.
  bool HasUnread();

 private:
  enum class Stage {
    kWaiting,    // for the end of its client's wait
    kHandshake,  // of TLS
    kSilent,     // the client has not said what it speaks
    kOpen,
    kFlushing,   // the server behind has closed: the client gets the rest
    kLingering,  // ended: the client gets the reason
    kOver,
  };
  enum class Io { kMoved, kBlocked, kEnd, kFailed };

  void Advance(absl::Time now);
  void Shake(absl::Time now);
  void FailHandshake(absl::string_view why, absl::Time now);
  bool OpenInner();
  void CloseInner();
  // Each returns whether something was moved.
  bool ReadClient();
  bool Judge(absl::Time now);
  bool WriteInner();
  bool ReadInner();
  bool WriteClient();
  bool Discard(absl::Time now);
  void SayEnd();
  void Linger(absl::Time now);
  void CheckMemory(absl::Time now);
  // Whether bytes of the client wait, here or unread, or are still to come.
  bool HasMore() const;
  void CheckDeadlines(absl::Time now);
  void Enter(Stage stage, absl::Time now);
  // Ends the connection for breaking a limit.
  void End(const FrontViolation& violation, absl::Time now);
  void Account();
  void SetDue(absl::Time now);
  static char* Scratch();  // kBufferBytes, of this thread
  Io Receive(size_t most, std::string* bytes);
  Io Send(absl::string_view bytes, size_t* sent);
  Io AfterSsl(int result);

  const RelayListener* const listener_;
  const RelayClient client_;
  const std::string name_;
  const std::string share_;  // of memory
  RelayShared* const shared_;
  UniqueFd client_fd_;
  absl::Mutex mu_;  // keeps inner_ open while HasUnread looks
  UniqueFd inner_;  // changed by the one thread, under mu_
  SslPtr ssl_;
  Stage stage_;
  std::optional<FrameGuard> guard_;

  std::string up_, down_;  // towards the server behind, and back
  size_t up_judged_ = 0;   // of up_, which may go on
  size_t up_sent_ = 0, down_sent_ = 0;
  std::atomic<bool> has_up_{false};
  bool client_ended_ = false, inner_ended_ = false, inner_shut_ = false;
  bool ssl_wants_write_ = false;                       // to go on reading or shaking hands
  size_t dropped_ = 0;                                 // while lingering
  absl::Time lingers_until_ = absl::InfiniteFuture();  // at most
  size_t lingers_beyond_ = kLeastDropped;              // so many dropped bytes give it more time
  Readable readable_;                                  // of this Run

  absl::Time deadline_;  // of the stage
  absl::Time full_since_ = absl::InfiniteFuture();
  int64_t answered_ = 0;      // calls, when that was last looked at
  bool has_claimed_ = false;  // tried to, of memory
  absl::Time due_ = absl::InfiniteFuture();
  int64_t accounted_ = 0;
};

}  // namespace switchyard::server
