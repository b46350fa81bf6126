#include "workers/comm/tcp/socket_tls.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::comm {
namespace {

constexpr unsigned char kAes128GcmSha256[] = {0x13, 0x01};
constexpr size_t kReadAheadBytes = 128 << 10;

absl::Status NoTls(absl::string_view what) {
  const char* const reason = ERR_reason_error_string(ERR_peek_last_error());
  return absl::UnavailableError(
      absl::StrCat("OpenSSL: ", what, ": ", reason == nullptr ? "it does not say why" : reason));
}

// OpenSSL's own BIO of sockets raises SIGPIPE when the peer is gone.
int FdOf(BIO* bio) { return static_cast<int>(reinterpret_cast<intptr_t>(BIO_get_data(bio))); }

int Receive(BIO* bio, char* to, int bytes) {
  BIO_clear_retry_flags(bio);
  ssize_t got = 0;
  do {
    got = recv(FdOf(bio), to, static_cast<size_t>(bytes), MSG_DONTWAIT);
  } while (got < 0 && errno == EINTR);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) BIO_set_retry_read(bio);
  return static_cast<int>(got);
}

int Send(BIO* bio, const char* from, int bytes) {
  BIO_clear_retry_flags(bio);
  ssize_t sent = 0;
  do {
    sent = send(FdOf(bio), from, static_cast<size_t>(bytes), MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) BIO_set_retry_write(bio);
  return static_cast<int>(sent);
}

long Control(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1 : 0; }

BIO* NewBio(int fd) {
  static const BIO_METHOD* const method = [] {
    BIO_METHOD* const made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "switchyard");
    if (made != nullptr) {
      BIO_meth_set_read(made, Receive);
      BIO_meth_set_write(made, Send);
      BIO_meth_set_ctrl(made, Control);
    }
    return made;
  }();
  BIO* const bio = method == nullptr ? nullptr : BIO_new(method);
  if (bio == nullptr) return nullptr;
  BIO_set_data(bio, reinterpret_cast<void*>(static_cast<intptr_t>(fd)));
  BIO_set_init(bio, 1);
  return bio;
}

SSL_SESSION* NewSession(SSL* ssl, const Digest& key) {
  SSL_SESSION* const session = SSL_SESSION_new();
  const SSL_CIPHER* const cipher = SSL_CIPHER_find(ssl, kAes128GcmSha256);
  if (session != nullptr && cipher != nullptr &&
      SSL_SESSION_set1_master_key(session, reinterpret_cast<const unsigned char*>(key.data()), key.size()) == 1 &&
      SSL_SESSION_set_cipher(session, cipher) == 1 && SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1) {
    return session;
  }
  SSL_SESSION_free(session);
  return nullptr;
}

// OpenSSL's callbacks: which key the connecting side offers, and what the accepting side knows by that name.
int OfferKey(SSL* ssl, const EVP_MD* digest, const unsigned char** name, size_t* name_bytes, SSL_SESSION** session) {
  const auto& key = *static_cast<const TlsKey*>(SSL_get_app_data(ssl));
  *session = nullptr;
  if (digest != nullptr && !EVP_MD_is_a(digest, "SHA256")) return 1;
  *name = reinterpret_cast<const unsigned char*>(key.name.data());
  *name_bytes = key.name.size();
  *session = NewSession(ssl, key.bytes);
  return *session != nullptr ? 1 : 0;
}

int FindKey(SSL* ssl, const unsigned char* name, size_t name_bytes, SSL_SESSION** session) {
  const auto& key = *static_cast<const TlsKey*>(SSL_get_app_data(ssl));
  *session = nullptr;
  if (absl::string_view(reinterpret_cast<const char*>(name), name_bytes) != key.name) return 1;  // no such key
  *session = NewSession(ssl, key.bytes);
  return *session != nullptr ? 1 : 0;
}

bool Waits(int error) { return error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE; }

}  // namespace

TlsStream::TlsStream(UniqueFd fd, SSL* ssl, int64_t records_of_key)
    : SocketStream(std::move(fd)), records_of_key_(records_of_key), ssl_(ssl) {}

TlsStream::~TlsStream() { SSL_free(ssl_); }

absl::Status TlsStream::Ended(int result) const {
  if (SSL_get_error(ssl_, result) != SSL_ERROR_SSL) return absl::UnavailableError("the connection has closed");
  const unsigned long error = ERR_peek_error();
  switch (ERR_GET_REASON(error)) {
    case SSL_R_WRONG_VERSION_NUMBER:
    case SSL_R_HTTP_REQUEST:
    case SSL_R_UNEXPECTED_MESSAGE:
    case SSL_R_BAD_RECORD_TYPE:
      return absl::FailedPreconditionError("it does not encrypt, as --encrypt_links wants it");
    case SSL_R_BINDER_DOES_NOT_VERIFY:
    case SSL_R_BAD_PSK:
    case SSL_R_NO_SUITABLE_SIGNATURE_ALGORITHM:  // and has no key of that name
      return absl::FailedPreconditionError("it does not know the group's secret: a stranger");
    default: {
      const char* const reason = ERR_reason_error_string(error);
      return absl::FailedPreconditionError(absl::StrCat("TLS: ", reason == nullptr ? "an error" : reason));
    }
  }
}

absl::StatusOr<bool> TlsStream::Handshake() {
  absl::MutexLock lock(&mu_);
  ERR_clear_error();
  const int result = SSL_do_handshake(ssl_);
  if (result == 1) {
    if (SSL_session_reused(ssl_) == 1) return true;  // the key was used
    return absl::FailedPreconditionError("it did not use the group's secret: a stranger");
  }
  if (Waits(SSL_get_error(ssl_, result))) return false;
  return Ended(result);
}

bool TlsStream::wants_write() const {
  absl::MutexLock lock(&mu_);
  return SSL_want_write(ssl_);
}

absl::StatusOr<int64_t> TlsStream::Read(const iovec* parts, int num_parts) {
  int64_t all = 0;
  for (int i = 0; i < num_parts; ++i) {
    auto* const to = static_cast<char*>(parts[i].iov_base);
    for (size_t filled = 0; filled < parts[i].iov_len;) {
      absl::MutexLock lock(&mu_);  // unlocked between two records, so that a writer can enter
      if (!end_.ok()) return end_;
      ERR_clear_error();
      size_t got = 0;
      const int result = SSL_read_ex(ssl_, to + filled, parts[i].iov_len - filled, &got);
      if (result != 1) {
        if (Waits(SSL_get_error(ssl_, result))) return all;
        end_ = Ended(result);
        if (all == 0) return end_;
        shutdown(fd(), SHUT_RD);  // an event follows, and the next Read says why
        return all;
      }
      filled += got;
      all += static_cast<int64_t>(got);
    }
  }
  return all;
}

int64_t TlsStream::Write(const iovec* parts, int num_parts) {
  absl::MutexLock lock(&mu_);
  const bool again = record_bytes_ > 0;
  for (int i = 0; !again && i < num_parts; ++i) {
    const size_t bytes = std::min(parts[i].iov_len, kRecordBytes - record_bytes_);
    std::memcpy(record_ + record_bytes_, parts[i].iov_base, bytes);
    record_bytes_ += bytes;
  }
  ERR_clear_error();
  size_t sent = 0;
  // (The reading direction reports that the connection is gone.)
  if (record_bytes_ == 0 || SSL_write_ex(ssl_, record_, record_bytes_, &sent) != 1) return 0;
  record_bytes_ = 0;
  if (++records_ >= records_of_key_) ReplaceKey();
  return static_cast<int64_t>(sent);
}

// Only while the socket has room, as a half-sent replacement would also stop the reading direction.
void TlsStream::ReplaceKey() {
  pollfd socket = {fd(), POLLOUT, 0};
  if (poll(&socket, 1, 0) != 1 || socket.revents != POLLOUT) return;
  if (SSL_key_update(ssl_, SSL_KEY_UPDATE_NOT_REQUESTED) != 1 || SSL_do_handshake(ssl_) != 1) return;
  records_ = 0;
  ++num_keys_;
}

int64_t TlsStream::num_keys() const {
  absl::MutexLock lock(&mu_);
  return num_keys_;
}

absl::StatusOr<std::unique_ptr<TlsContext>> TlsContext::Make(const std::string& secret, int64_t records_of_key) {
  ERR_clear_error();
  SSL_CTX* const context = SSL_CTX_new(TLS_method());
  if (context == nullptr) return NoTls("no context");
  std::unique_ptr<TlsContext> made(new TlsContext(context, secret, records_of_key));
  if (SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_ciphersuites(context, "TLS_AES_128_GCM_SHA256") != 1 || SSL_CTX_set_num_tickets(context, 0) != 1) {
    return NoTls("TLS 1.3 with AES-128-GCM");
  }
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_read_ahead(context, 1);
  SSL_CTX_set_default_read_buffer_len(context, kReadAheadBytes);
  SSL_CTX_set_psk_use_session_callback(context, OfferKey);
  SSL_CTX_set_psk_find_session_callback(context, FindKey);
  return made;
}

TlsContext::TlsContext(SSL_CTX* context, const std::string& secret, int64_t records_of_key)
    : context_(context),
      key_{LinkKey(secret), absl::StrCat("switchyard ", absl::Hex(GroupTag(secret), absl::kZeroPad16))},
      records_of_key_(records_of_key) {}

TlsContext::~TlsContext() { SSL_CTX_free(context_); }

absl::StatusOr<std::unique_ptr<TlsStream>> TlsContext::NewStream(UniqueFd fd, bool connects) const {
  ERR_clear_error();
  SSL* const ssl = SSL_new(context_);
  if (ssl == nullptr) return NoTls("no connection");
  BIO* const bio = NewBio(fd.get());
  auto stream = std::make_unique<TlsStream>(std::move(fd), ssl, records_of_key_);
  if (bio == nullptr) return NoTls("no input and output");
  SSL_set_bio(ssl, bio, bio);
  SSL_set_app_data(ssl, const_cast<TlsKey*>(&key_));
  if (connects) {
    // A certificate in place of the key is refused: no authority is known.
    SSL_set_verify(ssl, SSL_VERIFY_PEER, nullptr);
    SSL_set_connect_state(ssl);
  } else {
    SSL_set_accept_state(ssl);
  }
  return stream;
}

}  // namespace switchyard::comm
