#include "workers/comm/tcp/socket_handshake.h"

#include <poll.h>
#include <sys/socket.h>

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/constant_time.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::comm {
namespace {

constexpr OpKey kHello = {.op = CommOp::kHello, .comm_class = CommClass::kControl, .sequence = -1, .bytes = 0};

absl::string_view BytesOf(const HelloMessage& hello) { return {reinterpret_cast<const char*>(&hello), sizeof(hello)}; }

absl::Status Stranger() {
  return absl::FailedPreconditionError("it does not prove that it knows the group's secret: a stranger");
}

}  // namespace

SocketHandshake::SocketHandshake(const Self* self, UniqueFd fd, int peer)
    : self_(self), accepted_(peer < 0), peer_(peer), fd_(std::move(fd)) {}

short SocketHandshake::events() const {
  const bool writes = step_ == Step::kConnect || (tls_ != nullptr && step_ == Step::kEncrypt && tls_->wants_write());
  return writes ? POLLOUT : POLLIN;
}

absl::StatusOr<bool> SocketHandshake::Advance() {
  if (step_ == Step::kConnect) {
    RETURN_IF_ERROR(Open());
    step_ = Step::kEncrypt;
  }
  if (step_ == Step::kEncrypt) {
    ASSIGN_OR_RETURN(const bool encrypted, tls_ == nullptr ? true : tls_->Handshake());
    if (!encrypted) return false;
    step_ = accepted_ ? Step::kHello : Step::kAnswer;
    (accepted_ ? accepting_ : connecting_) = OwnHello();
    if (!accepted_) RETURN_IF_ERROR(Send(BytesOf(connecting_)));
  }
  if (step_ == Step::kHello) {
    ASSIGN_OR_RETURN(const bool whole, Receive(sizeof(HelloMessage)));
    if (!whole) return false;
    RETURN_IF_ERROR(TakeHello());
    step_ = Step::kProof;
  }
  ASSIGN_OR_RETURN(const bool whole, Receive(step_ == Step::kAnswer ? sizeof(AnswerMessage) : sizeof(Digest)));
  if (!whole) return false;
  RETURN_IF_ERROR(step_ == Step::kAnswer ? TakeAnswer() : TakeProof());
  return true;
}

absl::Status SocketHandshake::Open() {
  int error = 0;
  socklen_t size = sizeof(error);
  getsockopt(fd_.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  if (error != 0) return absl::UnavailableError(std::strerror(error));
  if (self_->tls == nullptr) {
    stream_ = MakePlainStream(std::move(fd_));
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(std::unique_ptr<TlsStream> encrypted, self_->tls->NewStream(std::move(fd_), !accepted_));
  tls_ = encrypted.get();
  stream_ = std::move(encrypted);
  return absl::OkStatus();
}

absl::StatusOr<bool> SocketHandshake::Receive(size_t bytes) {
  const iovec rest = {in_ + got_, bytes - got_};
  ASSIGN_OR_RETURN(const int64_t got, stream_->Read(&rest, 1));
  got_ += static_cast<size_t>(got);
  if (got_ < bytes) return false;
  got_ = 0;
  return true;
}

// The messages fit into a new connection's buffer.
absl::Status SocketHandshake::Send(absl::string_view bytes) {
  const iovec all = {const_cast<char*>(bytes.data()), bytes.size()};
  if (stream_->Write(&all, 1) == static_cast<int64_t>(bytes.size())) return absl::OkStatus();
  return absl::UnavailableError("it left at once");
}

HelloMessage SocketHandshake::OwnHello() const {
  return {.header = MakeFrameHeader(self_->id, kHello, 0, 0), .nonce = DrawNonce()};
}

Digest SocketHandshake::Proof(bool of_connecting) const {
  return DigestUnder(self_->secret, of_connecting ? "switchyard connecting" : "switchyard accepting",
                     absl::StrCat(BytesOf(connecting_), BytesOf(accepting_)));
}

absl::Status SocketHandshake::TakeHello() {
  if (std::memcmp(in_, kTlsBegins, 2) == 0) {
    return absl::FailedPreconditionError("it encrypts, and this group's links are plain (--encrypt_links)");
  }
  std::memcpy(&connecting_, in_, sizeof(connecting_));
  const int peer = connecting_.header.source;
  RETURN_IF_ERROR(CheckFrameHeader(connecting_.header, self_->id, peer, kHello, 0));
  if (peer <= self_->id.rank || peer >= self_->id.world) {
    return absl::FailedPreconditionError(absl::StrCat("it says it is rank ", peer));
  }
  peer_ = peer;
  const AnswerMessage answer = {.hello = accepting_, .proof = Proof(false)};
  return Send({reinterpret_cast<const char*>(&answer), sizeof(answer)});
}

absl::Status SocketHandshake::TakeAnswer() {
  AnswerMessage answer;
  std::memcpy(&answer, in_, sizeof(answer));
  accepting_ = answer.hello;
  RETURN_IF_ERROR(CheckFrameHeader(accepting_.header, self_->id, peer_, kHello, 0));
  if (!ConstantTimeEqual(comm::BytesOf(answer.proof), comm::BytesOf(Proof(false)))) return Stranger();
  return Send(comm::BytesOf(Proof(true)));
}

absl::Status SocketHandshake::TakeProof() {
  return ConstantTimeEqual({in_, sizeof(Digest)}, comm::BytesOf(Proof(true))) ? absl::OkStatus() : Stranger();
}

}  // namespace switchyard::comm
