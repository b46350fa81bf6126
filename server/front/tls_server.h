// The server's end of TLS: certificate, key, and the authorities whose clients may connect, read again when they
// change.
//
// TLS 1.2 or 1.3, with ECDHE and an AEAD; no renegotiation, compression or resumption.  Thread-safe.  Does no I/O but
// reading its files: who has a session moves its bytes (SSL_set_fd, SSL_read, SSL_write).
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

using SSL = struct ssl_st;          // of OpenSSL
using SSL_CTX = struct ssl_ctx_st;  // of OpenSSL

namespace switchyard::server {

struct FreeSsl {
  void operator()(SSL* session) const;
};
using SslPtr = std::unique_ptr<SSL, FreeSsl>;

class TlsServer {
 public:
  struct Files {
    std::string cert;       // PEM: the server's certificate, then those between it and its authority
    std::string key;        // PEM, without a password; others than owner and group may not read it
    std::string client_ca;  // PEM: authorities of clients; empty: no client can prove who it is
    const char* client_ca_flag = "tls_client_ca";  // names that file in errors
  };
  struct Session {
    bool asks_clients = false;  // clients must present a certificate.  REQUIRES: Files::client_ca
    bool http1 = false;         // speaks HTTP/1.1, whatever the client offers, instead of HTTP/2 alone
  };

  // InvalidArgument names the file and what is wrong: missing, not PEM, expired or not yet valid, a key that is
  // another certificate's or that others may read.
  static absl::StatusOr<std::unique_ptr<TlsServer>> Load(Files files);
  ~TlsServer();
  TlsServer(const TlsServer&) = delete;
  TlsServer& operator=(const TlsServer&) = delete;

  // Makes a session that awaits a client's handshake; null when memory is lacking.  Keeps what it needs of today's
  // files, so a later Reload changes nothing for it.
  SslPtr NewSession(Session session) const;

  // Reads the files again; new sessions use what they have.  An error (see Load) leaves the old.
  absl::Status Reload();
  // Whether a file has changed (time, size or inode) since Load or Reload last read it, successfully or not.  A program
  // that replaces both files does not do so at once: call Reload when this is true, and again when it is true again.
  bool FilesChanged() const;

  absl::Time expiry() const;  // of the server's own certificate
  bool can_ask_clients() const { return !files_.client_ca.empty(); }

  // Describes why an operation of this thread on a session failed, and forgets that.
  static std::string LastError();

 private:
  struct Stamp {
    dev_t device = 0;
    ino_t inode = 0;
    off_t size = -1;
    int64_t changed_ns = 0;
    bool operator==(const Stamp&) const = default;
  };
  struct FreeContext {
    void operator()(SSL_CTX* context) const;
  };
  struct Loaded {
    std::unique_ptr<SSL_CTX, FreeContext> context;
    absl::Time expiry;
  };
  static absl::StatusOr<Loaded> Read(const Files& files);
  static Stamp StampOf(const std::string& path);
  std::vector<Stamp> Stamps() const;

  explicit TlsServer(Files files) : files_(std::move(files)) {}

  const Files files_;
  mutable absl::Mutex mu_;
  Loaded loaded_ ABSL_GUARDED_BY(mu_);
  std::vector<Stamp> stamps_ ABSL_GUARDED_BY(mu_);
};

}  // namespace switchyard::server
