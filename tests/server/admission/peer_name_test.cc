// The client and address of a peer's name, and names of relayed connections.
#include "server/admission/peer_name.h"

#include "gtest/gtest.h"

namespace switchyard::server {
namespace {

TEST(ClientOfPeerTest, IsTheAddressWithoutThePort) {
  EXPECT_EQ(ClientOfPeer("ipv4:10.0.0.1:4711"), ClientOfPeer("ipv4:10.0.0.1:4712"));
  EXPECT_NE(ClientOfPeer("ipv4:10.0.0.1:4711"), ClientOfPeer("ipv4:10.0.0.2:4711"));
  EXPECT_EQ(ClientOfPeer("ipv6:%5B::1%5D:1"), ClientOfPeer("ipv6:%5B::1%5D:2"));
  EXPECT_NE(ClientOfPeer("ipv6:%5B::1%5D:1"), ClientOfPeer("ipv6:%5Bfd00::2%5D:1"));
  EXPECT_EQ(ClientOfPeer("unix:/run/x"), "unix:/run/x");
}

TEST(AddressOfPeerTest, IsAsTheSystemWritesIt) {
  EXPECT_EQ(AddressOfPeer("ipv4:10.0.0.1:4711"), "10.0.0.1");
  EXPECT_EQ(AddressOfPeer("ipv6:%5Bfd00::1%5D:4711"), "fd00::1");
  EXPECT_EQ(AddressOfPeer("ipv6:[fd00::1]:4711"), "fd00::1");
  EXPECT_EQ(AddressOfPeer("unix:"), "");
}

TEST(ClientOfAddressTest, IsOfIpv6ItsNetwork) {
  EXPECT_EQ(ClientOfAddress("10.0.0.1"), "10.0.0.1");
  EXPECT_EQ(ClientOfAddress("2001:db8:0:7::1"), "2001:db8:0:7::/64");
  EXPECT_EQ(ClientOfAddress("2001:db8:0:7:ffff:1:2:3"), "2001:db8:0:7::/64");
  EXPECT_EQ(ClientOfAddress("2001:db8:0:8::1"), "2001:db8:0:8::/64");
  EXPECT_EQ(ClientOfAddress("fe80::1%eth0"), "fe80::1%eth0") << "all hosts of a link have this /64";
  EXPECT_EQ(ClientOfAddress("::1"), "::1");
  EXPECT_EQ(ClientOfPeer("ipv6:%5B2001:db8::1%5D:4711"), "ipv6:2001:db8::/64");
  EXPECT_EQ(ClientOfPeer("ipv4:10.0.0.1:4711"), "ipv4:10.0.0.1");
}

// What gRPC says of a connection whose other end has the name (it encodes what may not stand in a URI).
TEST(RelayedNameTest, TellsTheAddress) {
  EXPECT_EQ(RelayedName("10.0.0.1", 4711, "ab-7"), "ipv4:10.0.0.1:4711#ab-7");
  EXPECT_EQ(RelayedName("fd00::1", 4711, "ab-7"), "ipv6:[fd00::1]:4711#ab-7");
  EXPECT_EQ(RelayedName("fe80::1%eth0", 1, "a"), "ipv6:[fe80::1%eth0]:1#a");
  const char kFour[] = "unix-abstract:ipv4:10.0.0.1:4711%23ab-7",
             kSix[] = "unix-abstract:ipv6:%5Bfe80::1%25eth0%5D:1%23a";
  EXPECT_EQ(RelayedNameOfPeer(kFour), "ipv4:10.0.0.1:4711#ab-7");
  EXPECT_EQ(DirectPeer(kFour), "ipv4:10.0.0.1:4711");
  EXPECT_EQ(AddressOfPeer(kFour), "10.0.0.1");
  EXPECT_EQ(ClientOfPeer(kFour), "ipv4:10.0.0.1");
  EXPECT_EQ(DirectPeer(kSix), "ipv6:[fe80::1%eth0]:1");
  EXPECT_EQ(AddressOfPeer(kSix), "fe80::1%eth0");
  EXPECT_EQ(ClientOfPeer(kSix), "ipv6:fe80::1%eth0");
  for (const char* direct : {"ipv4:10.0.0.1:4711", "unix:", "unix:/run/x"}) {
    EXPECT_EQ(RelayedNameOfPeer(direct), "");
    EXPECT_EQ(DirectPeer(direct), direct);
  }
}

}  // namespace
}  // namespace switchyard::server
