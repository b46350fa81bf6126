// Certificates for tests: an authority of the test's own, and what it issues, as PEM files in a folder.
//
//   TestAuthority authority(dir, "one");
//   const TestAuthority::Files server = authority.Issue({.name = "localhost"});
//   const TestAuthority::Files client = authority.Issue({.name = "alice"});
//   ... --tls_cert=server.cert --tls_key=server.key --tls_client_ca=authority.file()
#pragma once

#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>

#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace switchyard {

class TestAuthority {
 public:
  struct Files {
    std::string cert, key;
  };
  struct Certificate {
    std::string name = {};  // its common name, if any
    std::vector<std::string> also = {"DNS:localhost", "IP:127.0.0.1", "IP:::1"};
    absl::Duration from = -absl::Hours(1), until = absl::Hours(24);  // from now on
    std::string file = {};                                           // begins the files' names; empty: a number
  };

  // `dir` exists; authorities of one folder differ in `name`.
  TestAuthority(std::string dir, const std::string& name) : path_(absl::StrCat(dir, "/", name)), key_(NewKey()) {
    own_ = Make({.name = name, .also = {}}, key_.get(), /*is_authority=*/true);
    WriteCertificate(file(), own_.get());
  }

  std::string file() const { return path_ + "-ca.pem"; }
  // Makes a key and a certificate for it, for servers and clients alike; replaces older files of that name.
  Files Issue(const Certificate& wanted) {
    const std::string number = absl::StrCat(++issued_);
    const std::string path = absl::StrCat(path_, "-", wanted.file.empty() ? number : wanted.file);
    const Files files = {path + ".pem", path + ".key"};
    const KeyPtr key = NewKey();
    WriteCertificate(files.cert, Make(wanted, key.get(), /*is_authority=*/false).get());
    std::FILE* const out = Open(files.key, 0600);
    EXPECT_EQ(PEM_write_PrivateKey(out, key.get(), nullptr, nullptr, 0, nullptr, nullptr), 1);
    std::fclose(out);
    return files;
  }

 private:
  struct Free {
    void operator()(X509* certificate) const { X509_free(certificate); }
    void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
  };
  using X509Ptr = std::unique_ptr<X509, Free>;
  using KeyPtr = std::unique_ptr<EVP_PKEY, Free>;

  static KeyPtr NewKey() { return KeyPtr(EVP_EC_gen("P-256")); }

  // A new file, which takes the place of an older one in one step.
  static std::FILE* Open(const std::string& path, mode_t mode) {
    std::remove(path.c_str());
    std::FILE* const out = std::fopen(path.c_str(), "wbe");
    EXPECT_NE(out, nullptr) << path;
    EXPECT_EQ(chmod(path.c_str(), mode), 0);
    return out;
  }
  static void WriteCertificate(const std::string& path, X509* certificate) {
    std::FILE* const out = Open(path, 0644);
    EXPECT_EQ(PEM_write_X509(out, certificate), 1);
    std::fclose(out);
  }
  static void Add(int nid, const std::string& value, X509V3_CTX* context, X509* certificate) {
    X509_EXTENSION* const extension = X509V3_EXT_conf_nid(nullptr, context, nid, value.c_str());
    EXPECT_NE(extension, nullptr) << value;
    X509_add_ext(certificate, extension, -1);
    X509_EXTENSION_free(extension);
  }

  X509Ptr Make(const Certificate& wanted, EVP_PKEY* key, bool is_authority) {
    X509Ptr made(X509_new());
    X509* const certificate = made.get();
    X509_set_version(certificate, X509_VERSION_3);
    ASN1_INTEGER_set_int64(X509_get_serialNumber(certificate), ++serial_);
    X509_time_adj_ex(X509_getm_notBefore(certificate), 0, absl::ToInt64Seconds(wanted.from), nullptr);
    X509_time_adj_ex(X509_getm_notAfter(certificate), 0, absl::ToInt64Seconds(wanted.until), nullptr);
    X509_set_pubkey(certificate, key);
    X509_NAME* const name = X509_get_subject_name(certificate);
    if (!wanted.name.empty()) {
      X509_NAME_add_entry_by_NID(name, NID_commonName, MBSTRING_UTF8,
                                 reinterpret_cast<const unsigned char*>(wanted.name.c_str()), -1, -1, 0);
    }
    X509* const issuer = is_authority ? certificate : own_.get();
    X509_set_issuer_name(certificate, X509_get_subject_name(issuer));
    X509V3_CTX context = {};
    X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
    Add(NID_basic_constraints, is_authority ? "critical,CA:TRUE" : "CA:FALSE", &context, certificate);
    Add(NID_subject_key_identifier, "hash", &context, certificate);
    if (!is_authority) Add(NID_ext_key_usage, "serverAuth,clientAuth", &context, certificate);
    if (!wanted.also.empty()) Add(NID_subject_alt_name, absl::StrJoin(wanted.also, ","), &context, certificate);
    EXPECT_GT(X509_sign(certificate, key_.get(), EVP_sha256()), 0);
    return made;
  }

  const std::string path_;
  const KeyPtr key_;
  X509Ptr own_;
  int64_t serial_ = 0;
  int issued_ = 0;
};

}  // namespace switchyard
