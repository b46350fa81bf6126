#include "proto/support/channel_tls.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "proto/support/secret_file.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::rpc {
namespace {

constexpr size_t kMostBytes = 1 << 20;

using Bio = std::unique_ptr<BIO, decltype(&BIO_free)>;
using Certificate = std::unique_ptr<X509, decltype(&X509_free)>;
using PrivateKey = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;

Bio Reading(const std::string& pem) { return {BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())), &BIO_free}; }

Certificate FirstCertificate(const std::string& pem) {
  return {PEM_read_bio_X509(Reading(pem).get(), nullptr, nullptr, nullptr), &X509_free};
}

absl::StatusOr<std::string> ReadCertificates(const std::string& path) {
  ASSIGN_OR_RETURN(std::string pem, ReadPublicFile(path, kMostBytes));
  if (FirstCertificate(pem) == nullptr) {
    ERR_clear_error();
    return absl::InvalidArgumentError(absl::StrCat(path, ": has no certificate in PEM form"));
  }
  return pem;
}

// Keys with a password are not read: nobody is there to give it.
int NoPassword(char*, int, int, void*) { return 0; }

absl::StatusOr<std::string> ReadKeyOf(const std::string& path, const std::string& cert_path, const std::string& cert) {
  ASSIGN_OR_RETURN(std::string pem, ReadSecretFile(path, kMostBytes));
  const PrivateKey key(PEM_read_bio_PrivateKey(Reading(pem).get(), nullptr, &NoPassword, nullptr), &EVP_PKEY_free);
  const bool fits = key != nullptr && X509_check_private_key(FirstCertificate(cert).get(), key.get()) == 1;
  ERR_clear_error();
  if (key == nullptr)
    return absl::InvalidArgumentError(absl::StrCat(path, ": has no private key in PEM form without a password"));
  if (!fits)
    return absl::InvalidArgumentError(absl::StrCat(path, ": is not the key of the certificate in ", cert_path));
  return pem;
}

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeChannelCredentials(const TlsFiles& files) {
  if (!files.used()) return grpc::InsecureChannelCredentials();
  if (files.cert.empty() != files.key.empty()) {
    return absl::InvalidArgumentError(files.cert.empty() ? absl::StrCat(files.key, ": a key without its certificate")
                                                         : absl::StrCat(files.cert, ": a certificate without its key"));
  }
  grpc::SslCredentialsOptions options;
  if (!files.ca.empty()) {
    ASSIGN_OR_RETURN(options.pem_root_certs, ReadCertificates(files.ca));
  }
  if (!files.cert.empty()) {
    ASSIGN_OR_RETURN(options.pem_cert_chain, ReadCertificates(files.cert));
    ASSIGN_OR_RETURN(options.pem_private_key, ReadKeyOf(files.key, files.cert, options.pem_cert_chain));
  }
  return grpc::SslCredentials(options);
}

}  // namespace switchyard::rpc
