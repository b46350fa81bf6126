#include "server/front/tls_server.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>

#include <ctime>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "proto/support/secret_file.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::server {
namespace {

constexpr size_t kMostFileBytes = 1 << 20;
constexpr char kCiphersOfTls12[] = "ECDHE+AESGCM:ECDHE+CHACHA20";

template <auto kFree>
struct FreeBy {
  template <class Object>
  void operator()(Object* object) const {
    kFree(object);
  }
};
using BioPtr = std::unique_ptr<BIO, FreeBy<BIO_free>>;
using X509Ptr = std::unique_ptr<X509, FreeBy<X509_free>>;
using KeyPtr = std::unique_ptr<EVP_PKEY, FreeBy<EVP_PKEY_free>>;

absl::Status Bad(absl::string_view flag, const std::string& path, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("--", flag, "=", path, ": ", why));
}

absl::StatusOr<BioPtr> BytesOf(absl::string_view flag, const std::string& path, bool is_secret) {
  struct stat found = {};
  if (is_secret && stat(path.c_str(), &found) == 0 && (found.st_mode & S_IRWXO) != 0) {
    return Bad(flag, path, "a private key that everyone may use; chmod 600 it");
  }
  const absl::StatusOr<std::string> bytes = rpc::ReadPublicFile(path, kMostFileBytes);
  if (!bytes.ok()) return absl::InvalidArgumentError(absl::StrCat("--", flag, "=", bytes.status().message()));
  BioPtr bio(BIO_new(BIO_s_mem()));
  if (bio == nullptr || BIO_write(bio.get(), bytes->data(), static_cast<int>(bytes->size())) < 0) {
    return Bad(flag, path, bytes->empty() ? "empty" : "no memory for it");
  }
  return bio;
}

absl::StatusOr<std::vector<X509Ptr>> Certificates(absl::string_view flag, const std::string& path) {
  ASSIGN_OR_RETURN(const BioPtr bio, BytesOf(flag, path, /*is_secret=*/false));
  std::vector<X509Ptr> all;
  while (X509* const next = PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr)) all.emplace_back(next);
  const bool is_end = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  const std::string error = TlsServer::LastError();
  if (all.empty() || !is_end) return Bad(flag, path, absl::StrCat("not certificates in PEM: ", error));
  return all;
}

absl::StatusOr<KeyPtr> PrivateKey(const std::string& path) {
  ASSIGN_OR_RETURN(const BioPtr bio, BytesOf("tls_key", path, /*is_secret=*/true));
  // Or OpenSSL asks for a password on the terminal.
  const auto no_password = [](char*, int, int, void*) { return 0; };
  KeyPtr key(PEM_read_bio_PrivateKey(bio.get(), nullptr, no_password, nullptr));
  const std::string error = TlsServer::LastError();
  if (key == nullptr) {
    return Bad("tls_key", path, absl::StrCat("not a private key in PEM without a password: ", error));
  }
  return key;
}

absl::Time TimeOf(const ASN1_TIME* time) {
  std::tm fields = {};
  return ASN1_TIME_to_tm(time, &fields) == 1 ? absl::FromTimeT(timegm(&fields)) : absl::InfinitePast();
}

absl::Status CheckDates(const X509* certificate, const std::string& path) {
  const absl::Time begin = TimeOf(X509_get0_notBefore(certificate)), end = TimeOf(X509_get0_notAfter(certificate));
  const absl::TimeZone utc = absl::UTCTimeZone();
  if (absl::Now() >= end) return Bad("tls_cert", path, absl::StrCat("expired on ", absl::FormatTime(end, utc)));
  if (absl::Now() < begin)
    return Bad("tls_cert", path, absl::StrCat("valid from ", absl::FormatTime(begin, utc), " on"));
  return absl::OkStatus();
}

// Chooses what connection and client speak.
int SelectProtocol(SSL* session, const unsigned char** chosen, unsigned char* size, const unsigned char* offered,
                   unsigned int offered_size, void*) {
  static constexpr unsigned char kHttp2[] = {2, 'h', '2'}, kHttp1[] = {8, 'h', 't', 't', 'p', '/', '1', '.', '1'};
  const bool http1 = SSL_get_app_data(session) != nullptr;
  unsigned char* found = nullptr;
  const int result =
      SSL_select_next_proto(&found, size, http1 ? kHttp1 : kHttp2, http1 ? sizeof(kHttp1) : 3, offered, offered_size);
  *chosen = found;
  if (result == OPENSSL_NPN_NEGOTIATED) return SSL_TLSEXT_ERR_OK;
  return http1 ? SSL_TLSEXT_ERR_NOACK : SSL_TLSEXT_ERR_ALERT_FATAL;
}

void SetOptions(SSL_CTX* context) {
  SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
  SSL_CTX_set_cipher_list(context, kCiphersOfTls12);
  SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_NO_TICKET);
  SSL_CTX_set_num_tickets(context, 0);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  // An idle connection holds no buffers of 16 KB.
  SSL_CTX_set_mode(context,
                   SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_set_alpn_select_cb(context, &SelectProtocol, nullptr);
}

absl::Status AddClientAuthorities(absl::string_view flag, const std::string& path, SSL_CTX* context) {
  ASSIGN_OR_RETURN(const std::vector<X509Ptr> authorities, Certificates(flag, path));
  for (const X509Ptr& authority : authorities) {
    if (X509_STORE_add_cert(SSL_CTX_get_cert_store(context), authority.get()) != 1 ||
        SSL_CTX_add_client_CA(context, authority.get()) != 1) {
      return Bad(flag, path, TlsServer::LastError());
    }
  }
  return absl::OkStatus();
}

}  // namespace

void FreeSsl::operator()(SSL* session) const { SSL_free(session); }
void TlsServer::FreeContext::operator()(SSL_CTX* context) const { SSL_CTX_free(context); }

TlsServer::~TlsServer() = default;

absl::StatusOr<std::unique_ptr<TlsServer>> TlsServer::Load(Files files) {
  std::unique_ptr<TlsServer> server(new TlsServer(std::move(files)));
  RETURN_IF_ERROR(server->Reload());
  return server;
}

absl::StatusOr<TlsServer::Loaded> TlsServer::Read(const Files& files) {
  ERR_clear_error();
  ASSIGN_OR_RETURN(const std::vector<X509Ptr> chain, Certificates("tls_cert", files.cert));
  RETURN_IF_ERROR(CheckDates(chain[0].get(), files.cert));
  ASSIGN_OR_RETURN(const KeyPtr key, PrivateKey(files.key));
  if (X509_check_private_key(chain[0].get(), key.get()) != 1) {
    LastError();
    return Bad("tls_key", files.key, absl::StrCat("is not the key of --tls_cert=", files.cert));
  }
  Loaded loaded = {.context = decltype(Loaded::context)(SSL_CTX_new(TLS_server_method())),
                   .expiry = TimeOf(X509_get0_notAfter(chain[0].get()))};
  SSL_CTX* const context = loaded.context.get();
  if (context == nullptr) return absl::ResourceExhaustedError(absl::StrCat("TLS: ", LastError()));
  SetOptions(context);
  bool used = SSL_CTX_use_certificate(context, chain[0].get()) == 1 && SSL_CTX_use_PrivateKey(context, key.get()) == 1;
  for (size_t i = 1; used && i < chain.size(); ++i) used = SSL_CTX_add1_chain_cert(context, chain[i].get()) == 1;
  if (!used) return Bad("tls_cert", files.cert, LastError());
  if (!files.client_ca.empty()) RETURN_IF_ERROR(AddClientAuthorities(files.client_ca_flag, files.client_ca, context));
  return loaded;
}

absl::Status TlsServer::Reload() {
  std::vector<Stamp> stamps = Stamps();  // first: what changes from here on is read again
  absl::StatusOr<Loaded> loaded = Read(files_);
  absl::MutexLock lock(&mu_);
  stamps_ = std::move(stamps);
  if (!loaded.ok()) return loaded.status();
  loaded_ = *std::move(loaded);
  return absl::OkStatus();
}

bool TlsServer::FilesChanged() const {
  const std::vector<Stamp> stamps = Stamps();
  absl::MutexLock lock(&mu_);
  return stamps != stamps_;
}

std::vector<TlsServer::Stamp> TlsServer::Stamps() const {
  return {StampOf(files_.cert), StampOf(files_.key), StampOf(files_.client_ca)};
}

TlsServer::Stamp TlsServer::StampOf(const std::string& path) {
  struct stat found = {};
  if (stat(path.c_str(), &found) != 0) return {};
  return {.device = found.st_dev,
          .inode = found.st_ino,
          .size = found.st_size,
          .changed_ns = absl::ToUnixNanos(absl::TimeFromTimespec(found.st_mtim))};
}

absl::Time TlsServer::expiry() const {
  absl::MutexLock lock(&mu_);
  return loaded_.expiry;
}

SslPtr TlsServer::NewSession(Session wanted) const {
  SslPtr session;
  {
    absl::MutexLock lock(&mu_);
    session.reset(SSL_new(loaded_.context.get()));
  }
  if (session == nullptr) return nullptr;
  static char http1 = 0;
  SSL_set_app_data(session.get(), wanted.http1 ? &http1 : nullptr);
  if (wanted.asks_clients) {
    SSL_set_verify(session.get(), SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  }
  SSL_set_accept_state(session.get());
  return session;
}

std::string TlsServer::LastError() {
  const unsigned long code = ERR_peek_last_error();  // NOLINT(runtime/int): OpenSSL's type
  ERR_clear_error();
  const char* const reason = code == 0 ? nullptr : ERR_reason_error_string(code);
  return reason != nullptr ? reason : code == 0 ? "no reason given" : absl::StrCat("error ", code);
}

}  // namespace switchyard::server
