// TLS without sockets: which clients are let in, what files are refused, and that changed files count.
#include "server/front/tls_server.h"

#include <openssl/ssl.h>
#include <sys/stat.h>

#include <fstream>
#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/front/certificates.h"
#include "tests/workers/model/temp_dir.h"

namespace switchyard::server {
namespace {

using ::testing::HasSubstr;

// How a handshake between a session and a client of this test ended.
struct Handshake {
  bool done = false;     // on both ends
  std::string protocol;  // chosen by ALPN
  std::string seen;      // the common name that the client saw
};

struct ClientSide {
  std::string trusted = {};  // the file of an authority
  TestAuthority::Files own = {};
  std::string alpn = std::string("\x02h2", 3);
  int version = 0;  // the newest
};

Handshake Shake(const TlsServer& tls, TlsServer::Session wanted, const ClientSide& client) {
  std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context(SSL_CTX_new(TLS_client_method()), &SSL_CTX_free);
  SSL_CTX_load_verify_file(context.get(), client.trusted.c_str());
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
  if (client.version != 0) SSL_CTX_set_max_proto_version(context.get(), client.version);
  if (!client.own.cert.empty()) {
    EXPECT_EQ(SSL_CTX_use_certificate_file(context.get(), client.own.cert.c_str(), SSL_FILETYPE_PEM), 1);
    EXPECT_EQ(SSL_CTX_use_PrivateKey_file(context.get(), client.own.key.c_str(), SSL_FILETYPE_PEM), 1);
  }
  const SslPtr there(SSL_new(context.get())), here = tls.NewSession(wanted);
  if (!client.alpn.empty()) {
    SSL_set_alpn_protos(there.get(), reinterpret_cast<const unsigned char*>(client.alpn.data()),
                        static_cast<unsigned>(client.alpn.size()));
  }
  BIO *ours = nullptr, *theirs = nullptr;
  EXPECT_EQ(BIO_new_bio_pair(&ours, 0, &theirs, 0), 1);
  SSL_set_bio(here.get(), ours, ours);
  SSL_set_bio(there.get(), theirs, theirs);
  SSL_set_connect_state(there.get());
  bool client_done = false, server_done = false;
  for (int i = 0; i < 20; ++i) {
    client_done = SSL_do_handshake(there.get()) == 1;
    server_done = SSL_do_handshake(here.get()) == 1;
  }
  Handshake result;
  result.done = client_done && server_done;
  if (!result.done) return result;
  const unsigned char* protocol = nullptr;
  unsigned size = 0;
  SSL_get0_alpn_selected(here.get(), &protocol, &size);
  result.protocol.assign(reinterpret_cast<const char*>(protocol), size);
  char name[64] = "";
  X509_NAME_get_text_by_NID(X509_get_subject_name(SSL_get0_peer_certificate(there.get())), NID_commonName, name, 64);
  result.seen = name;
  return result;
}

class TlsServerTest : public testing::Test {
 protected:
  std::unique_ptr<TlsServer> Load(const TestAuthority::Files& files, const std::string& client_ca = "") {
    auto tls = TlsServer::Load({files.cert, files.key, client_ca});
    EXPECT_TRUE(tls.ok()) << tls.status();
    return tls.ok() ? *std::move(tls) : nullptr;
  }
  static std::string WhyNot(const std::string& cert, const std::string& key, const std::string& ca = "") {
    const auto tls = TlsServer::Load({cert, key, ca});
    EXPECT_EQ(tls.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(tls.status().message());
  }
  std::string Written(const std::string& name, const std::string& text) {
    std::ofstream(dir_.path() + name) << text;
    chmod((dir_.path() + name).c_str(), 0600);
    return dir_.path() + name;
  }

  model::TempDir dir_;
  TestAuthority authority_{dir_.path(), "own"}, stranger_{dir_.path(), "strange"};
};

TEST_F(TlsServerTest, AClientWithoutCertificateIsLetInAndSeesTheServers) {
  const auto tls = Load(authority_.Issue({.name = "the server"}));
  for (const int version : {TLS1_2_VERSION, TLS1_3_VERSION}) {
    const Handshake result = Shake(*tls, {}, {.trusted = authority_.file(), .version = version});
    EXPECT_TRUE(result.done);
    EXPECT_EQ(result.protocol, "h2");
    EXPECT_EQ(result.seen, "the server");
  }
  EXPECT_FALSE(Shake(*tls, {}, {.trusted = stranger_.file()}).done) << "the client knows another authority";
  EXPECT_FALSE(Shake(*tls, {}, {.trusted = authority_.file(), .version = TLS1_1_VERSION}).done);
}

TEST_F(TlsServerTest, OnlyWhoSpeaksHttp2IsLetInUnlessHttp1IsSpoken) {
  const auto tls = Load(authority_.Issue({.name = "the server"}));
  const std::string http1 = "\x08http/1.1";
  EXPECT_FALSE(Shake(*tls, {}, {.trusted = authority_.file(), .alpn = http1}).done);
  EXPECT_EQ(Shake(*tls, {.http1 = true}, {.trusted = authority_.file(), .alpn = http1}).protocol, "http/1.1");
  EXPECT_TRUE(Shake(*tls, {.http1 = true}, {.trusted = authority_.file(), .alpn = ""}).done);
}

TEST_F(TlsServerTest, OnlyClientsOfTheAuthorityAreLetInWhereTheyAreAsked) {
  const auto tls = Load(authority_.Issue({.name = "the server"}), authority_.file());
  ASSERT_TRUE(tls->can_ask_clients());
  const auto shake = [&](const TestAuthority::Files& own) {
    // TLS 1.2: in 1.3 a client is done before the server has seen its certificate.
    return Shake(*tls, {.asks_clients = true}, {.trusted = authority_.file(), .own = own, .version = TLS1_2_VERSION});
  };
  EXPECT_FALSE(shake({}).done);
  EXPECT_FALSE(shake(stranger_.Issue({.name = "alice"})).done);
  EXPECT_FALSE(shake(authority_.Issue({.name = "alice", .from = -absl::Hours(2), .until = -absl::Hours(1)})).done);
  EXPECT_TRUE(shake(authority_.Issue({.name = "alice"})).done);
}

TEST_F(TlsServerTest, FilesThatCannotServeAreRefusedByName) {
  const auto good = authority_.Issue({.name = "a"}), other = authority_.Issue({.name = "b"});
  const auto old = authority_.Issue({.name = "old", .from = -absl::Hours(48), .until = -absl::Hours(24)});
  const auto early = authority_.Issue({.name = "early", .from = absl::Hours(1)});
  EXPECT_THAT(WhyNot(dir_.path() + "/none", good.key), HasSubstr("none: cannot be read: No such file"));
  EXPECT_THAT(WhyNot(dir_.path(), good.key), HasSubstr("not a regular file"));
  EXPECT_THAT(WhyNot(good.key, good.key), HasSubstr("not certificates in PEM"));
  EXPECT_THAT(WhyNot(good.cert, good.cert), HasSubstr("everyone may use"));
  chmod(other.cert.c_str(), 0600);
  EXPECT_THAT(WhyNot(good.cert, other.cert), HasSubstr(other.cert + ": not a private key"));
  EXPECT_THAT(WhyNot(good.cert, other.key), HasSubstr("--tls_key=" + other.key + ": is not the key of --tls_cert="));
  EXPECT_THAT(WhyNot(old.cert, old.key), HasSubstr(old.cert + ": expired on "));
  EXPECT_THAT(WhyNot(early.cert, early.key), HasSubstr("valid from "));
  EXPECT_THAT(WhyNot(good.cert, Written("/empty", "")), HasSubstr("empty"));
  EXPECT_THAT(WhyNot(good.cert, good.key, good.key), HasSubstr("--tls_client_ca=" + good.key));
  EXPECT_THAT(WhyNot(Written("/long", std::string(2 << 20, 'x')), good.key),
              HasSubstr("long: at most 1048576 bytes, has more"));
  // The second certificate of the chain is damaged.
  std::ifstream in(good.cert);
  const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  EXPECT_THAT(WhyNot(Written("/torn", text + text.substr(0, text.size() / 2)), good.key),
              HasSubstr("not certificates"));
  chmod(good.key.c_str(), 0644);
  EXPECT_THAT(WhyNot(good.cert, good.key), HasSubstr(good.key + ": a private key that everyone may use"));
}

TEST_F(TlsServerTest, ChangedFilesAreReadAgainAndBadOnesLeaveTheOld) {
  const auto files = authority_.Issue({.name = "old", .file = "server"});
  const auto tls = Load(files);
  const ClientSide client = {.trusted = authority_.file()};
  EXPECT_FALSE(tls->FilesChanged());
  EXPECT_EQ(Shake(*tls, {}, client).seen, "old");
  const absl::Time first_end = tls->expiry();
  authority_.Issue({.name = "new", .until = absl::Hours(48), .file = "server"});
  EXPECT_TRUE(tls->FilesChanged());
  EXPECT_EQ(Shake(*tls, {}, client).seen, "old") << "until somebody says so";
  EXPECT_TRUE(tls->Reload().ok());
  EXPECT_FALSE(tls->FilesChanged());
  EXPECT_EQ(Shake(*tls, {}, client).seen, "new");
  EXPECT_GE(tls->expiry() - first_end, absl::Hours(23));
  // A pair that does not match, as while somebody replaces both.
  const auto other = authority_.Issue({.name = "other", .file = "other"});
  ASSERT_EQ(rename(other.key.c_str(), files.key.c_str()), 0);
  EXPECT_TRUE(tls->FilesChanged());
  EXPECT_THAT(std::string(tls->Reload().message()), HasSubstr("is not the key of"));
  EXPECT_FALSE(tls->FilesChanged()) << "it is not read again until it changes again";
  EXPECT_EQ(Shake(*tls, {}, client).seen, "new");
  ASSERT_EQ(rename(other.cert.c_str(), files.cert.c_str()), 0);
  EXPECT_TRUE(tls->FilesChanged());
  EXPECT_TRUE(tls->Reload().ok());
  EXPECT_EQ(Shake(*tls, {}, client).seen, "other");
}

}  // namespace
}  // namespace switchyard::server
