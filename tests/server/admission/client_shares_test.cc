// Shares of clients.
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

}  // namespace
}  // namespace switchyard::server
