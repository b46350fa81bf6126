// A server with TLS that asks clients for certificates: who is not let in, and what it does not start with.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/support/host_port.h"
#include "tests/e2e/http2_frames.h"
#include "tests/e2e/raw_connection.h"
#include "tests/half_requests.h"
#include "tests/security/attempts.h"
#include "tests/server/front/certificates.h"

namespace switchyard {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);

std::string TextAfter(const std::string& text, const std::string& mark, const char* ends) {
  const size_t at = text.find(mark);
  return at == std::string::npos
             ? ""
             : text.substr(at + mark.size(), text.find_first_of(ends, at + mark.size()) - at - mark.size());
}

// The server and its certificates; it has no workers.
struct TlsPlace {
  std::string folder;
  std::unique_ptr<TestAuthority> authority, stranger;
  TestAuthority::Files good;  // of a client
  std::unique_ptr<Process> server;
  std::string address, metrics_address, http_address;

  TestAuthority::Files Make(const TestAuthority::Certificate& wanted) const { return authority->Issue(wanted); }
};

std::vector<std::string> TlsServerArgs(const AttackedServers& servers, const TestAuthority::Files& own,
                                       const std::string& client_ca) {
  std::vector<std::string> args = {Binary("switchyard-server"),
                                   std::string("--model=") + kDemoModel,
                                   "--port=0",
                                   "--metrics_port=0",
                                   "--http_port=0",
                                   "--local_workers=0",
                                   "--workers=1",
                                   "--join_token_file=" + servers.folder() + "/token"};
  if (!own.cert.empty()) args.push_back("--tls_cert=" + own.cert);
  if (!own.key.empty()) args.push_back("--tls_key=" + own.key);
  if (!client_ca.empty()) args.push_back("--tls_client_ca=" + client_ca);
  return args;
}

TlsPlace& Place(AttackedServers& servers) {
  static TlsPlace place;
  if (place.server != nullptr) return place;
  place.folder = servers.folder() + "/tls";
  std::filesystem::create_directory(place.folder);
  place.authority = std::make_unique<TestAuthority>(place.folder, "own");
  place.stranger = std::make_unique<TestAuthority>(place.folder, "other");
  place.good = place.Make({.name = "alice"});
  place.server = Process::Start(TlsServerArgs(servers, place.Make({.name = "localhost"}), place.authority->file()));
  EXPECT_TRUE(place.server->WaitForOutput("metrics on https://", kPatience)) << place.server->Output();
  place.address = TextAfter(place.server->Output(), "gRPC on ", ",\n");
  place.http_address = TextAfter(place.server->Output(), "HTTP on https://", "/, \n");
  place.metrics_address = TextAfter(place.server->Output(), "metrics on https://", "/\n");
  servers.OnStop([] { place = TlsPlace(); });
  return place;
}

// A client of TLS.
struct TlsClient {
  TestAuthority::Files own = {};
  std::string alpn = std::string("\x02h2", 3);
  int lowest = 0, highest = 0;  // versions; 0: OpenSSL's
  const char* ciphers = nullptr;
  bool renegotiates = false;
};

struct Freed {
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  void operator()(SSL* session) const { SSL_free(session); }
};

std::string WhyNot() {
  const unsigned long code = ERR_peek_last_error();
  const char* const reason = ERR_reason_error_string(code);
  ERR_clear_error();
  return reason == nullptr ? "the connection ended" : reason;
}

std::unique_ptr<SSL_CTX, Freed> ContextOf(const TlsClient& client) {
  std::unique_ptr<SSL_CTX, Freed> context(SSL_CTX_new(TLS_client_method()));
  SSL_CTX_set_security_level(context.get(), 0);  // this client would do anything
  SSL_CTX_set_min_proto_version(context.get(), client.lowest == 0 ? TLS1_VERSION : client.lowest);
  if (client.highest != 0) SSL_CTX_set_max_proto_version(context.get(), client.highest);
  if (client.ciphers != nullptr) SSL_CTX_set_cipher_list(context.get(), client.ciphers);
  if (!client.own.cert.empty()) {
    SSL_CTX_use_certificate_file(context.get(), client.own.cert.c_str(), SSL_FILETYPE_PEM);
    SSL_CTX_use_PrivateKey_file(context.get(), client.own.key.c_str(), SSL_FILETYPE_PEM);
  }
  return context;
}

// Shakes hands, then says `bytes` and waits for something: "let in" or "refused: why".  TLS 1.3 tells a client only
// then that its certificate is not good.
std::string Shake(const std::string& address, const TlsClient& client, const std::string& bytes = http2::Preface()) {
  const int fd = ConnectTo(rpc::SplitHostPort(address)->port);
  const timeval limit = {8, 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  const auto context = ContextOf(client);
  const std::unique_ptr<SSL, Freed> session(SSL_new(context.get()));
  SSL_set_fd(session.get(), fd);
  if (!client.alpn.empty()) {
    SSL_set_alpn_protos(session.get(), reinterpret_cast<const unsigned char*>(client.alpn.data()),
                        static_cast<unsigned>(client.alpn.size()));
  }
  std::string answer = "let in";
  char buffer[100] = "";
  if (SSL_connect(session.get()) != 1) {
    answer = absl::StrCat("refused: ", WhyNot());
  } else if (client.renegotiates && (SSL_renegotiate(session.get()) != 1 || SSL_do_handshake(session.get()) != 1)) {
    answer = absl::StrCat("refused: ", WhyNot());
  } else if (SSL_write(session.get(), bytes.data(), static_cast<int>(bytes.size())) <= 0 ||
             SSL_read(session.get(), buffer, sizeof(buffer)) <= 0) {
    answer = absl::StrCat("refused: ", WhyNot());
  } else if (buffer[3] == http2::kGoAway) {
    answer = "refused: goaway";
  }
  close(fd);
  return answer;
}

// Makes a client with the place's certificates.
using ClientFn = std::function<TlsClient(TlsPlace&)>;
std::function<std::string(AttackedServers&)> By(ClientFn make) {
  return [make = std::move(make)](AttackedServers& servers) {
    TlsPlace& place = Place(servers);
    if (const std::string good = Shake(place.address, {.own = place.good}); good != "let in")
      return absl::StrCat("a good client is ", good);
    return Shake(place.address, make(place));
  };
}
std::function<std::string(AttackedServers&)> With(TestAuthority::Certificate wanted) {
  return By([wanted = std::move(wanted)](TlsPlace& place) { return TlsClient{.own = place.Make(wanted)}; });
}
std::function<std::string(AttackedServers&)> Plain(std::string bytes, std::string TlsPlace::*to = &TlsPlace::address) {
  return [=](AttackedServers& servers) { return AfterFrames(Place(servers).*to, bytes, false); };
}
// A request to the port of HTTP.
std::function<std::string(AttackedServers&)> AskHttp(ClientFn make) {
  return [make = std::move(make)](AttackedServers& servers) {
    static constexpr char kAsk[] = "GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n";
    TlsPlace& place = Place(servers);
    if (const std::string good = Shake(place.http_address, {.own = place.good, .alpn = ""}, kAsk); good != "let in")
      return absl::StrCat("a good client is ", good);
    TlsClient client = make(place);
    client.alpn = "";
    return Shake(place.http_address, client, kAsk);
  };
}

// A certificate that nobody but itself has signed.
TestAuthority::Files SelfSigned(const TlsPlace& place) {
  const TestAuthority self(place.folder, "self");
  return {self.file(), self.file()};
}

// Starts another server with files that `make` returns.
using FilesFn = std::function<TestAuthority::Files(TlsPlace&)>;
std::function<std::string(AttackedServers&)> Start(FilesFn make, const char* client_ca = "") {
  return [=](AttackedServers& servers) {
    TlsPlace& place = Place(servers);
    return AfterStart(TlsServerArgs(servers, make(place), client_ca));
  };
}

std::vector<Attempt> Clients() {
  static constexpr char kNot[] = "^refused: ";
  return {
      {"TlsWithoutACertificate", kNot, By([](TlsPlace&) { return TlsClient(); })},
      {"TlsWithAStrangersCertificate", kNot,
       By([](TlsPlace& place) { return TlsClient{.own = place.stranger->Issue({.name = "alice"})}; })},
      {"TlsWithAnExpiredCertificate", kNot,
       With({.name = "alice", .from = -absl::Hours(48), .until = -absl::Hours(1)})},
      {"TlsWithACertificateOfTomorrow", kNot,
       With({.name = "alice", .from = absl::Hours(24), .until = absl::Hours(48)})},
      {"TlsWithASelfSignedCertificate", kNot, By([](TlsPlace& place) {
         TestAuthority::Files files = SelfSigned(place);
         files.key = place.good.key;  // which is not its own, so nothing is presented
         return TlsClient{.own = files};
       })},
      {"TlsWithAnothersKey", kNot, By([](TlsPlace& place) {
         return TlsClient{.own = {place.good.cert, place.Make({.name = "bob"}).key}};
       })},
      {"Tls10", kNot, By([](TlsPlace& place) {
         return TlsClient{.own = place.good, .lowest = TLS1_VERSION, .highest = TLS1_VERSION};
       })},
      {"Tls11", kNot, By([](TlsPlace& place) {
         return TlsClient{.own = place.good, .lowest = TLS1_1_VERSION, .highest = TLS1_1_VERSION};
       })},
      {"TlsByCbc", kNot, By([](TlsPlace& place) {
         return TlsClient{.own = place.good, .highest = TLS1_2_VERSION, .ciphers = "ECDHE-ECDSA-AES128-SHA"};
       })},
      {"TlsWithoutForwardSecrecy", kNot, By([](TlsPlace& place) {
         return TlsClient{.own = place.good, .highest = TLS1_2_VERSION, .ciphers = "AES128-GCM-SHA256"};
       })},
      {"TlsWithoutEncryption", kNot, By([](TlsPlace& place) {
         return TlsClient{.own = place.good, .highest = TLS1_2_VERSION, .ciphers = "ECDHE-ECDSA-NULL-SHA:NULL-SHA256"};
       })},
      {"TlsWithoutAlpn", kNot, By([](TlsPlace& place) { return TlsClient{.own = place.good, .alpn = ""}; })},
      {"TlsForHttp1", kNot,
       By([](TlsPlace& place) { return TlsClient{.own = place.good, .alpn = std::string("\x08http/1.1", 9)}; })},
      {"TlsForH2c", kNot,
       By([](TlsPlace& place) { return TlsClient{.own = place.good, .alpn = std::string("\x03h2c", 4)}; })},
      {"TlsRenegotiation", kNot, By([](TlsPlace& place) {
         return TlsClient{.own = place.good, .highest = TLS1_2_VERSION, .renegotiates = true};
       })},
      // Its certificate is good; what it gets is a 400 that names the right port (PortsNameEachOther).
      {"Http1WithinTls", "^let in$",
       [](AttackedServers& servers) {
         TlsPlace& place = Place(servers);
         return Shake(place.address, {.own = place.good}, "GET / HTTP/1.1\r\nHost: here\r\n\r\n");
       }},
      {"PlaintextToTls", "ended|goaway", Plain(http2::Preface() + http2::CallHeaders(1, kGenerateMethod))},
      {"Http1ToTls", "ended|goaway", Plain("GET / HTTP/1.1\r\nHost: here\r\n\r\n")},
      {"SilenceToTls", "ended|goaway", Plain("")},
      {"HalfAHelloToTls", "ended|goaway", Plain(std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11))},
      {"JunkToTls", "ended|goaway", Plain(std::string(100000, '\xff'))},
  };
}

std::vector<Attempt> ClientsOfPages() {
  static constexpr char kNot[] = "^refused: ";
  return {
      {"PlaintextToTheMetricsOfTls", "ended",
       Plain("GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n", &TlsPlace::metrics_address)},
      {"PlaintextToTheHttpOfTls", "ended",
       Plain("GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n", &TlsPlace::http_address)},
      {"HttpOfTlsWithoutACertificate", kNot, AskHttp([](TlsPlace&) { return TlsClient(); })},
      {"HttpOfTlsWithAStrangersCertificate", kNot,
       AskHttp([](TlsPlace& place) { return TlsClient{.own = place.stranger->Issue({.name = "alice"})}; })},
      {"HttpOfTlsWithAnExpiredCertificate", kNot, AskHttp([](TlsPlace& place) {
         return TlsClient{.own = place.Make({.name = "alice", .from = -absl::Hours(48), .until = -absl::Hours(1)})};
       })},
      {"HttpOfTls11", kNot, AskHttp([](TlsPlace& place) {
         return TlsClient{.own = place.good, .lowest = TLS1_1_VERSION, .highest = TLS1_1_VERSION};
       })},
  };
}

std::vector<Attempt> Starts() {
  return {
      {"StartWithAnExpiredCertificate", "^exit 2: .*expired", Start([](TlsPlace& place) {
         return place.Make({.name = "localhost", .from = -absl::Hours(48), .until = -absl::Hours(1)});
       })},
      {"StartWithACertificateOfTomorrow", "^exit 2: .*not yet valid|^exit 2: .*valid from", Start([](TlsPlace& place) {
         return place.Make({.name = "localhost", .from = absl::Hours(24), .until = absl::Hours(48)});
       })},
      {"StartWithAnothersKey", "^exit 2: .*key", Start([](TlsPlace& place) {
         return TestAuthority::Files{place.Make({.name = "localhost"}).cert, place.good.key};
       })},
      {"StartWithAKeyThatAllMayRead", "^exit 2: .*everyone may use", Start([](TlsPlace& place) {
         const TestAuthority::Files files = place.Make({.name = "localhost"});
         EXPECT_EQ(chmod(files.key.c_str(), 0644), 0);
         return files;
       })},
      {"StartWithoutAKey", "^exit 2: .*tls_key", Start([](TlsPlace& place) {
         return TestAuthority::Files{place.Make({.name = "localhost"}).cert, ""};
       })},
      {"StartWithoutACertificate", "^exit 2: .*tls_cert", Start([](TlsPlace& place) {
         return TestAuthority::Files{"", place.good.key};
       })},
      {"StartWithAnAuthorityAlone", "^exit 2: .*tls_c",
       Start([](TlsPlace&) { return TestAuthority::Files(); }, "deploy/demo-model/config.json")},
      {"StartWithJunkForACertificate", "^exit 2: .*config.json", Start([](TlsPlace& place) {
         return TestAuthority::Files{"deploy/demo-model/config.json", place.good.key};
       })},
      {"StartWithJunkForAnAuthority", "^exit 2: .*config.json",
       Start([](TlsPlace& place) { return place.Make({.name = "localhost"}); }, "deploy/demo-model/config.json")},
  };
}

}  // namespace

std::vector<Attempt> TlsAttempts() {
  std::vector<Attempt> all = Clients();
  for (auto* more : {&ClientsOfPages, &Starts}) {
    for (Attempt& attempt : more()) all.push_back(std::move(attempt));
  }
  return all;
}

}  // namespace switchyard
