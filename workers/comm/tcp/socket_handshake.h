// How two ranks that have connected prove to each other that they are of one group: both know its secret, and neither
// sends it.
//
//   the connecting rank                      the accepting rank
//   Hello: who I am, a nonce          ──►    of no such peer: refused without an answer
//                                     ◄──    Answer: who I am, a nonce, HMAC of both
//   HMAC of both, another label       ──►    connected
// A nonce is used once, so bytes of an earlier connection prove nothing.  Where links are encrypted, the same goes
// through a TLS connection whose key is the secret's, too (socket_tls.h).
// Thread-compatible; never blocks.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "scheduler/base/io/unique_fd.h"
#include "workers/comm/core/frame_header.h"
#include "workers/comm/core/op_key.h"
#include "workers/comm/group/group_secret.h"
#include "workers/comm/tcp/socket_stream.h"
#include "workers/comm/tcp/socket_tls.h"

namespace switchyard::comm {

// The messages; plain data.
struct HelloMessage {
  FrameHeader header;
  Digest nonce;
};
struct AnswerMessage {
  HelloMessage hello;
  Digest proof;
};
static_assert(sizeof(HelloMessage) == 96 && sizeof(AnswerMessage) == 128);
static_assert(std::is_trivially_copyable_v<AnswerMessage>);

class SocketHandshake {
 public:
  struct Self {
    GroupId id;
    std::string secret;
    const TlsContext* tls = nullptr;  // null: plain
  };

  // self: borrowed.  fd: non-blocking, connecting to `peer`, or accepted (-1).
  SocketHandshake(const Self* self, UniqueFd fd, int peer);

  // Goes on as far as the socket allows.  True: the peer is proven.  Errors: Unavailable (the connection was refused or
  // has closed), FailedPrecondition (it is no peer; says why).
  absl::StatusOr<bool> Advance();
  int fd() const { return stream_ == nullptr ? fd_.get() : stream_->fd(); }
  // The poll events to wait for before the next Advance.
  short events() const;
  bool accepted() const { return accepted_; }
  // Of an accepted connection -1 until it has said who it is.
  int peer() const { return peer_; }
  // REQUIRES: proven.
  std::unique_ptr<SocketStream> Take() { return std::move(stream_); }

 private:
  enum class Step { kConnect, kEncrypt, kHello, kAnswer, kProof };

  absl::Status Open();
  // Whether all `bytes` have come; they are in in_.
  absl::StatusOr<bool> Receive(size_t bytes);
  absl::Status Send(absl::string_view bytes);
  absl::Status TakeHello();
  absl::Status TakeAnswer();
  absl::Status TakeProof();
  HelloMessage OwnHello() const;
  Digest Proof(bool of_connecting) const;

  const Self* const self_;
  const bool accepted_;
  int peer_;
  Step step_ = Step::kConnect;
  UniqueFd fd_;               // until stream_ owns it
  TlsStream* tls_ = nullptr;  // stream_, if it is encrypted
  std::unique_ptr<SocketStream> stream_;
  char in_[sizeof(AnswerMessage)];
  size_t got_ = 0;
  HelloMessage connecting_ = {}, accepting_ = {};  // what was said
};

}  // namespace switchyard::comm
