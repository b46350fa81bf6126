#include "server/front/relay_connection.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "scheduler/base/clock.h"

namespace switchyard::server {
namespace {

constexpr int kMostRounds = 8;  // then other connections have their turn
constexpr absl::Duration kLookAtMemoryEvery = absl::Milliseconds(5);
constexpr FrontLimit kFloods[] = {FrontLimit::kFrameSize, FrontLimit::kHeaderBytes,   FrontLimit::kContinuations,
                                  FrontLimit::kResets,    FrontLimit::kPings,         FrontLimit::kSettings,
                                  FrontLimit::kUnread,    FrontLimit::kWindowUpdates, FrontLimit::kOtherFrames,
                                  FrontLimit::kSequence,  FrontLimit::kOpenStreams};

// Whether a client that speaks no HTTP/2 speaks HTTP/1, such as a browser at the wrong port.
bool BeginsAsHttp1(absl::string_view bytes) {
  for (const absl::string_view method : {"GET /", "POST /", "HEAD /", "OPTIONS "}) {
    if (absl::StartsWith(bytes, method)) return true;
  }
  return false;
}

std::string AnswerToHttp1(int http_port) {
  const std::string body = absl::StrCat("switchyard: this port speaks gRPC",
                                        http_port >= 0 ? absl::StrCat("; HTTP is on port ", http_port) : "", "\n");
  return absl::StrCat("HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: ",
                      body.size(), "\r\nConnection: close\r\n\r\n", body);
}

bool IsFlood(FrontLimit limit) { return std::count(std::begin(kFloods), std::end(kFloods), limit) > 0; }

}  // namespace

RelayConnection::RelayConnection(const RelayListener* listener, UniqueFd client_fd, RelayClient client,
                                 std::string name, RelayShared* shared, absl::Time now)
    : listener_(listener),
      client_(std::move(client)),
      name_(std::move(name)),
      share_(client_.is_loopback ? name_ : client_.client),
      shared_(shared),
      client_fd_(std::move(client_fd)),
      stage_(Stage::kWaiting),
      deadline_(shared->offenders.WaitsUntil(client_.client)) {
  if (listener_->http2) {
    guard_.emplace(listener_->limits, now, shared_->offenders.BurstPart(client_.client, now),
                   shared_->calls.Of(client_.client, now));
  }
  SetDue(now);
}

RelayConnection::~RelayConnection() {
  shared_->memory.Add(share_, -accounted_);
  shared_->memory.Disclaim(name_);
}

void RelayConnection::Enter(Stage stage, absl::Time now) {
  stage_ = stage;
  switch (stage) {
    case Stage::kHandshake:
    case Stage::kSilent:
      deadline_ = now + kHandshakeLimit;
      break;
    case Stage::kFlushing:
      deadline_ = now + kLastBytesLimit;
      break;
    case Stage::kLingering:
      deadline_ = now + kLingerLimit;
      lingers_until_ = now + (listener_->http2 ? kLingerLimit : kHttp1LingerLimit);
      break;
    default:
      deadline_ = absl::InfiniteFuture();
  }
}

void RelayConnection::Run(bool gone, Readable readable, absl::Time now) {
  readable_ = readable;
  if (gone) {
    stage_ = Stage::kOver;
  } else {
    CheckDeadlines(now);
    Advance(now);
  }
  Account();
  if (stage_ == Stage::kOpen) CheckMemory(now);
  SetDue(now);
}

void RelayConnection::Advance(absl::Time now) {
  if (stage_ == Stage::kWaiting && now >= deadline_) {
    Enter(listener_->tls != nullptr ? Stage::kHandshake : Stage::kSilent, now);
  }
  if (stage_ == Stage::kHandshake) Shake(now);
  for (int round = 0; round < kMostRounds; ++round) {
    bool moved = false;
    if (stage_ == Stage::kSilent || stage_ == Stage::kOpen) {
      moved = ReadClient();
      moved = Judge(now) || moved;
      const bool speaks = guard_.has_value() ? guard_->begun() : !up_.empty();
      if (stage_ == Stage::kSilent && speaks) Enter(OpenInner() ? Stage::kOpen : Stage::kOver, now);
      if (stage_ == Stage::kSilent && client_ended_) stage_ = Stage::kOver;
    }
    if (stage_ == Stage::kOpen) {
      moved = WriteInner() || moved;
      moved = ReadInner() || moved;
    }
    if (stage_ >= Stage::kOpen && stage_ < Stage::kOver) moved = WriteClient() || moved;
    if (stage_ == Stage::kOpen && inner_ended_) {
      CloseInner();
      Enter(Stage::kFlushing, now);
    }
    if (stage_ == Stage::kFlushing && down_.empty()) Linger(now);
    if (stage_ == Stage::kLingering) moved = Discard(now);
    if (!moved || stage_ == Stage::kOver) return;
  }
  due_ = now;  // there may be more
}

void RelayConnection::Shake(absl::Time now) {
  if (ssl_ == nullptr) {
    ssl_ = listener_->tls->NewSession({.asks_clients = listener_->asks_clients, .http1 = !listener_->http2});
    if (ssl_ == nullptr || SSL_set_fd(ssl_.get(), client_fd_.get()) != 1) return FailHandshake("no memory", now);
  }
  char first[3] = "";
  const bool is_plaintext = recv(client_fd_.get(), first, sizeof(first), MSG_PEEK | MSG_DONTWAIT) == sizeof(first) &&
                            absl::string_view(first, sizeof(first)) == "PRI";
  if (is_plaintext) return FailHandshake("it speaks plaintext", now);
  ERR_clear_error();
  const Io io = AfterSsl(SSL_do_handshake(ssl_.get()));
  if (io == Io::kBlocked) return;
  if (io != Io::kMoved) return FailHandshake(TlsServer::LastError(), now);
  const unsigned char* protocol = nullptr;
  unsigned size = 0;
  SSL_get0_alpn_selected(ssl_.get(), &protocol, &size);
  if (listener_->http2 && size == 0) return FailHandshake("it does not offer HTTP/2 (ALPN h2)", now);
  Enter(Stage::kSilent, now);
}

void RelayConnection::FailHandshake(absl::string_view why, absl::Time now) {
  shared_->handshakes_failed.fetch_add(1);
  shared_->Warn(absl::StrCat("no TLS with ", name_.substr(0, name_.rfind('#')), ": ", why), now);
  stage_ = Stage::kOver;
}

bool RelayConnection::OpenInner() {
  UniqueFd opened(listener_->open(name_, ssl_ == nullptr ? client_fd_.get() : -1));
  if (opened.get() < 0) {
    shared_->Warn(absl::StrCat("the connection of ", name_.substr(0, name_.rfind('#')),
                               " is closed: no descriptor is left (ulimit -n)"),
                  MonotonicNow());
  }
  absl::MutexLock lock(&mu_);
  inner_ = std::move(opened);
  return inner_.get() >= 0;
}

void RelayConnection::CloseInner() {
  absl::MutexLock lock(&mu_);
  UniqueFd closed = std::move(inner_);
}

bool RelayConnection::ReadClient() {
  if (client_ended_ || full_since_ != absl::InfiniteFuture() || up_.size() >= kBufferBytes) return false;
  const bool is_plain = ssl_ == nullptr;  // else some of it may be in the session
  if (is_plain && !readable_.client) return false;
  const Io io = Receive(kBufferBytes - up_.size(), &up_);
  readable_.client = up_.size() >= kBufferBytes;
  if (io == Io::kFailed) stage_ = Stage::kOver;
  if (io == Io::kEnd) client_ended_ = true;
  return io == Io::kMoved;
}

bool RelayConnection::Judge(absl::Time now) {
  if (stage_ == Stage::kOver || up_judged_ == up_.size()) return false;
  if (!guard_.has_value()) {
    up_judged_ = up_.size();
    return true;
  }
  guard_->SetRoom(shared_->memory.Room(share_, name_));
  size_t passed = guard_->FromClient(absl::string_view(up_).substr(up_judged_), now);
  up_judged_ += passed;
  if (guard_->TakeAcknowledgement()) {
    constexpr size_t kBytes = sizeof(kSettingsAck) - 1;
    up_.insert(up_judged_, kSettingsAck, kBytes);
    up_judged_ += kBytes;
    passed += kBytes;
    up_judged_ += guard_->FromClient(absl::string_view(up_).substr(up_judged_), now);
  }
  if (guard_->violation().has_value()) End(*guard_->violation(), now);
  return passed > 0;
}

bool RelayConnection::WriteInner() {
  bool moved = false;
  if (up_sent_ < up_judged_ && !inner_ended_) {
    const ssize_t sent = send(inner_.get(), up_.data() + up_sent_, up_judged_ - up_sent_, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
      up_sent_ += static_cast<size_t>(sent);
      moved = true;
    } else if (sent < 0 && errno != EAGAIN && errno != EINTR) {
      up_sent_ = up_judged_;  // the server behind has closed; what it said is still to be read
    }
  }
  if (up_sent_ == up_.size()) {
    std::string().swap(up_);  // an idle connection holds no memory
    up_sent_ = up_judged_ = 0;
  } else if (up_sent_ >= kBufferBytes / 2) {
    up_.erase(0, up_sent_);
    up_judged_ -= up_sent_;
    up_sent_ = 0;
  }
  has_up_.store(!up_.empty(), std::memory_order_relaxed);
  if (client_ended_ && up_sent_ == up_judged_ && !std::exchange(inner_shut_, true)) shutdown(inner_.get(), SHUT_WR);
  return moved;
}

bool RelayConnection::ReadInner() {
  if (inner_ended_ || !readable_.inner || down_.size() >= kBufferBytes) return false;
  const size_t before = down_.size();
  const ssize_t got = recv(inner_.get(), Scratch(), kBufferBytes - before, MSG_DONTWAIT);
  if (got > 0) down_.append(Scratch(), static_cast<size_t>(got));
  readable_.inner = down_.size() >= kBufferBytes;
  if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) inner_ended_ = true;
  if (got > 0 && guard_.has_value()) guard_->FromServer(absl::string_view(down_).substr(before));
  return got > 0;
}

bool RelayConnection::WriteClient() {
  if (down_.empty()) return false;
  size_t sent = 0;
  const Io io = Send(absl::string_view(down_).substr(down_sent_), &sent);
  if (io == Io::kFailed || io == Io::kEnd) stage_ = Stage::kOver;
  down_sent_ += sent;
  if (down_sent_ == down_.size()) {
    std::string().swap(down_);
    down_sent_ = 0;
    if (stage_ == Stage::kLingering) SayEnd();
  } else if (down_sent_ >= kBufferBytes / 2) {
    down_.erase(0, down_sent_);
    down_sent_ = 0;
  }
  return sent > 0;
}

void RelayConnection::SayEnd() {
  if (ssl_ != nullptr) SSL_shutdown(ssl_.get());
  shutdown(client_fd_.get(), SHUT_WR);
}

void RelayConnection::Linger(absl::Time now) {
  Enter(Stage::kLingering, now);
  if (down_.empty()) SayEnd();
}

void RelayConnection::End(const FrontViolation& violation, absl::Time now) {
  shared_->ended[static_cast<size_t>(violation.limit)].fetch_add(1);
  if (IsFlood(violation.limit)) shared_->offenders.Punish(client_.client, client_.is_loopback, now);
  shared_->Warn(
      absl::StrCat("the connection of ", name_.substr(0, name_.rfind('#')), " is ended: ", violation.ToString()), now);
  CloseInner();  // the server behind ends its calls
  const bool is_http1 = violation.limit == FrontLimit::kPreface && BeginsAsHttp1(up_);
  std::string().swap(up_);
  up_judged_ = up_sent_ = 0;
  has_up_.store(false, std::memory_order_relaxed);
  if (stage_ < Stage::kSilent || !guard_.has_value()) {
    stage_ = Stage::kOver;
    return;
  }
  if (is_http1) {
    down_ = AnswerToHttp1(shared_->http_port);
    return Linger(now);
  }
  // A frame of which nothing is sent yet is dropped; behind one whose first bytes are, no other frame can be put.
  const size_t torn = guard_->server_frame_bytes();
  if (torn <= down_.size() - down_sent_) {
    down_.resize(down_.size() - torn);
    down_ += GoAway(guard_->last_stream(), violation.ToString());
  }
  Linger(now);
}

void RelayConnection::CheckMemory(absl::Time now) {
  const int64_t wanted = guard_.has_value() && guard_->wants_room() ? FrameGuard::kBytesOfStream : 1;
  const bool was_full = full_since_ != absl::InfiniteFuture();
  const int64_t answered = guard_.has_value() ? guard_->num_answered() : 0;
  const bool gets_on = answered != std::exchange(answered_, answered);
  if (!was_full && !has_claimed_ && shared_->memory.Room(share_, name_) >= wanted) return;
  const bool has_more = HasMore();
  if (has_claimed_ && (gets_on || !has_more)) {
    shared_->memory.Disclaim(name_);
    has_claimed_ = false;
  }
  if (has_more && shared_->memory.Room(share_, name_) < wanted) {
    shared_->memory.Claim(name_);
    has_claimed_ = true;
  }
  if (shared_->memory.Room(share_, name_) >= wanted) {
    full_since_ = absl::InfiniteFuture();
    if (was_full) due_ = now;  // what has waited may go on, and no event says so
    return;
  }
  // Time counts while the client has more to send and none of its calls is answered.
  if (!was_full || gets_on || !has_more) full_since_ = now;
  if (now - full_since_ < kMemoryLimit) return;
  End({.limit = FrontLimit::kMemory, .allowed = shared_->memory.limit(), .actual = shared_->memory.held()}, now);
  Account();
}

void RelayConnection::CheckDeadlines(absl::Time now) {
  if (now < deadline_ || stage_ == Stage::kWaiting) return;
  if (stage_ == Stage::kHandshake) {
    FailHandshake(absl::StrCat("it took longer than ", absl::FormatDuration(kHandshakeLimit)), now);
  }
  stage_ = Stage::kOver;
}

void RelayConnection::Account() {
  int64_t held = 0;
  for (const std::string* buffer : {&up_, &down_})
    held += buffer->empty() ? 0 : static_cast<int64_t>(buffer->capacity());
  if (guard_.has_value() && stage_ == Stage::kOpen) held += guard_->held_bytes();
  shared_->memory.Add(share_, held - std::exchange(accounted_, held));
}

void RelayConnection::SetDue(absl::Time now) {
  const bool more = due_ == now;
  due_ = more ? now : deadline_;
  if (stage_ != Stage::kOpen && stage_ != Stage::kSilent) return;
  if (guard_.has_value() && guard_->waits_until() > now) due_ = std::min(due_, guard_->waits_until());
  if (full_since_ != absl::InfiniteFuture()) due_ = std::min(due_, now + kLookAtMemoryEvery);
}

uint32_t RelayConnection::client_events() const {
  uint32_t events = 0;
  const bool reads = stage_ == Stage::kSilent || stage_ == Stage::kOpen;
  const bool paused = full_since_ != absl::InfiniteFuture() || up_.size() >= kBufferBytes ||
                      (guard_.has_value() && guard_->waits_until() > absl::InfinitePast());
  if (stage_ == Stage::kHandshake || stage_ == Stage::kLingering || (reads && !client_ended_ && !paused)) {
    events |= EPOLLIN;
  }
  if (!down_.empty() || ssl_wants_write_) events |= EPOLLOUT;
  return events;
}

uint32_t RelayConnection::inner_events() const {
  if (stage_ != Stage::kOpen) return 0;
  uint32_t events = down_.size() < kBufferBytes ? static_cast<uint32_t>(EPOLLIN) : 0;
  if (up_sent_ < up_judged_) events |= EPOLLOUT;
  return events;
}

}  // namespace switchyard::server
