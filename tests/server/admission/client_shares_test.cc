// Shares of clients, and the client and address of a peer's name.
#include "server/admission/client_shares.h"

#include "gtest/gtest.h"

namespace switchyard::server {
namespace {

TEST(ClientSharesTest, EachClientHasItsOwn) {
  ClientShares shares;
  EXPECT_TRUE(shares.Enter("a", 2));
  EXPECT_TRUE(shares.Enter("a", 2));
  EXPECT_FALSE(shares.Enter("a", 2));
  EXPECT_TRUE(shares.Enter("b", 2)) << "another client's share is whole";
  shares.Leave("a");
  EXPECT_TRUE(shares.Enter("a", 2));
  EXPECT_EQ(shares.num_clients(), 2u);
}

TEST(ClientSharesTest, WhoHoldsNothingIsForgotten) {
  ClientShares shares;
  for (const char* client : {"a", "b"}) EXPECT_TRUE(shares.Enter(client, 1));
  for (const char* client : {"a", "b", "nobody"}) shares.Leave(client);
  EXPECT_EQ(shares.num_clients(), 0u);
}

TEST(ClientOfPeerTest, IsTheAddressWithoutThePort) {
  EXPECT_EQ(ClientOfPeer("ipv4:10.0.0.1:4711"), ClientOfPeer("ipv4:10.0.0.1:4712"));
  EXPECT_NE(ClientOfPeer("ipv4:10.0.0.1:4711"), ClientOfPeer("ipv4:10.0.0.2:4711"));
  EXPECT_EQ(ClientOfPeer("ipv6:%5B::1%5D:1"), ClientOfPeer("ipv6:%5B::1%5D:2"));
  EXPECT_NE(ClientOfPeer("ipv6:%5B::1%5D:1"), ClientOfPeer("ipv6:%5B::2%5D:1"));
  EXPECT_EQ(ClientOfPeer("unix:/run/x"), "unix:/run/x");
}

TEST(AddressOfPeerTest, IsAsTheSystemWritesIt) {
  EXPECT_EQ(AddressOfPeer("ipv4:10.0.0.1:4711"), "10.0.0.1");
  EXPECT_EQ(AddressOfPeer("ipv6:%5Bfd00::1%5D:4711"), "fd00::1");
  EXPECT_EQ(AddressOfPeer("ipv6:[fd00::1]:4711"), "fd00::1");
  EXPECT_EQ(AddressOfPeer("unix:"), "");
}

}  // namespace
}  // namespace switchyard::server
