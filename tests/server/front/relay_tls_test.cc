// The relay with TLS: clients' certificates, plaintext, and certificates that change.
#include "tests/server/front/relay_fixture.h"

namespace switchyard::server {
namespace {

using ::testing::StartsWith;

TEST_F(RelayTest, LargeMessagesPassBothWaysAtOnceThroughTls) {
  const auto tls = Certificates(false);
  Start({.tls = tls.get()});
  PassLargeMessages(Tls({}, authority_));
}

TEST_F(RelayTest, TlsIsAskedForAndPlaintextIsNotAnswered) {
  const auto tls = Certificates(false);
  Start({.tls = tls.get()});
  EXPECT_EQ(Call(Tls({}, authority_), "/echo", "hello"), "hello");
  EXPECT_EQ(relay_.num_failed_handshakes(), 0);
  const RawClient plain(gate_->port());
  ASSERT_TRUE(plain.Send(kHttp2Preface + Frame(kSettingsFrame, 0, 0)));
  EXPECT_EQ(plain.ReadAll(), "");
  EXPECT_TRUE(Becomes([&] { return relay_.num_failed_handshakes() == 1; }));
  EXPECT_THAT(Call(Tls({}, stranger_), "/echo", "x", absl::Seconds(5)), StartsWith("error "));
  EXPECT_TRUE(Becomes([&] { return relay_.num_failed_handshakes() > 1; }));  // gRPC may try again
}

TEST_F(RelayTest, ClientsAreKnownByTheirCertificates) {
  const auto tls = Certificates(true);
  Start({.tls = tls.get(), .asks_clients = true});
  const auto alice = Tls(authority_.Issue({.name = "alice"}), authority_);
  const std::string peer = Call(alice, "/peer", "");
  EXPECT_EQ(AddressOfPeer(peer), "127.0.0.1");
  EXPECT_THAT(Call(Tls({}, authority_), "/echo", "x", absl::Seconds(5)), StartsWith("error "));
  EXPECT_THAT(Call(Tls(stranger_.Issue({.name = "alice"}), authority_), "/echo", "x", absl::Seconds(5)),
              StartsWith("error "));
  EXPECT_EQ(Call(alice, "/echo", "still"), "still");
  EXPECT_TRUE(Becomes([&] { return service_.open_calls() == 0; }));  // the server sees its end after the client
}

TEST_F(RelayTest, NewConnectionsGetNewCertificates) {
  const auto files = authority_.Issue({.name = "old", .file = "server"});
  auto tls = TlsServer::Load({files.cert, files.key, ""});
  ASSERT_TRUE(tls.ok());
  Start({.tls = tls->get()});
  const auto before = Tls({}, authority_);
  EXPECT_EQ(Call(before, "/echo", "1"), "1");
  // One of another authority, so that its clients alone get on.
  const auto other = stranger_.Issue({.name = "new"});
  ASSERT_EQ(rename(other.cert.c_str(), files.cert.c_str()), 0);
  ASSERT_EQ(rename(other.key.c_str(), files.key.c_str()), 0);
  ASSERT_TRUE((*tls)->FilesChanged());
  ASSERT_TRUE((*tls)->Reload().ok());
  EXPECT_EQ(Call(Tls({}, stranger_), "/echo", "2"), "2");
  EXPECT_EQ(Call(before, "/echo", "3"), "3") << "it was connected before";
}

}  // namespace
}  // namespace switchyard::server
