// Encrypted connections between two ranks: TLS 1.3 by OpenSSL, with a key that both know and no certificates.
//
// The key authenticates both sides, and a fresh Diffie-Hellman exchange (psk_dhe_ke) keeps what was sent secret from
// whoever learns the group's secret later.  Nothing else is accepted: no other version, key or certificate.
#pragma once

#include <openssl/types.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "workers/comm/group/group_secret.h"
#include "workers/comm/tcp/socket_stream.h"

namespace switchyard::comm {

// The first bytes of a connection that is encrypted: a TLS record of a handshake.
inline constexpr char kTlsBegins[] = "\x16\x03";

// After the handshake: SocketStream.  OpenSSL's connections are not thread-safe, so reading and writing take turns, a
// record (16 KiB) each.
class TlsStream final : public SocketStream {
 public:
  // After so many records the key of a direction is replaced: AES-GCM stays within its bound (RFC 8446, 5.5).
  static constexpr int64_t kRecordsOfKey = int64_t{1} << 22;

  TlsStream(UniqueFd fd, SSL* ssl, int64_t records_of_key);  // owns ssl
  ~TlsStream() override;

  // Goes on with the handshake as far as the socket allows.  True: it is done.  Before that only this may be called.
  // Errors: Unavailable (the connection has closed), FailedPrecondition (the peer does not know the key).
  absl::StatusOr<bool> Handshake() ABSL_LOCKS_EXCLUDED(mu_);
  // Whether it waits for room in the socket, and not for the peer.
  bool wants_write() const ABSL_LOCKS_EXCLUDED(mu_);

  absl::StatusOr<int64_t> Read(const iovec* parts, int num_parts) override ABSL_LOCKS_EXCLUDED(mu_);
  int64_t Write(const iovec* parts, int num_parts) override ABSL_LOCKS_EXCLUDED(mu_);
  // That this side has written under, the first included.
  int64_t num_keys() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  static constexpr size_t kRecordBytes = 16 << 10;

  absl::Status Ended(int result) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ReplaceKey() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const int64_t records_of_key_;
  mutable absl::Mutex mu_;
  SSL* const ssl_ ABSL_PT_GUARDED_BY(mu_);
  // The record that is being written: OpenSSL wants the same bytes again when the socket was full.
  char record_[kRecordBytes] ABSL_GUARDED_BY(mu_);
  size_t record_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t records_ ABSL_GUARDED_BY(mu_) = 0;  // written under the current key
  int64_t num_keys_ ABSL_GUARDED_BY(mu_) = 1;
  absl::Status end_ ABSL_GUARDED_BY(mu_);  // why nothing can be read any more
};

struct TlsKey {
  Digest bytes;
  std::string name;
};

// What the connections of one group have in common.  Outlives their handshakes.  Thread-compatible.
class TlsContext {
 public:
  // Errors: Unavailable (OpenSSL has no memory, or lacks TLS 1.3 on this machine).
  static absl::StatusOr<std::unique_ptr<TlsContext>> Make(const std::string& secret,
                                                          int64_t records_of_key = TlsStream::kRecordsOfKey);
  ~TlsContext();

  // fd: connected and non-blocking.  connects: this side speaks first.
  absl::StatusOr<std::unique_ptr<TlsStream>> NewStream(UniqueFd fd, bool connects) const;

 private:
  TlsContext(SSL_CTX* context, const std::string& secret, int64_t records_of_key);

  SSL_CTX* const context_;
  const TlsKey key_;
  const int64_t records_of_key_;
};

}  // namespace switchyard::comm
