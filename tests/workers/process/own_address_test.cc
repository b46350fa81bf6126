// The address by which others reach this host.
#include "workers/process/own_address.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/support/host_port.h"
#include "tests/localhost.h"

namespace switchyard::worker {
namespace {

TEST(RouteTo, LoopbackIsReachedByLoopback) {
  std::vector<const char*> hosts = {"127.0.0.1", "127.0.0.9"};
  if (KnowsLocalhost()) hosts.push_back("localhost");
  for (const char* host : hosts) {
    const absl::StatusOr<Route> route = RouteTo(host, 50051);
    ASSERT_TRUE(route.ok()) << host << ": " << route.status();
    EXPECT_TRUE(rpc::IsLoopback(route->own)) << route->own;
    EXPECT_TRUE(rpc::IsLoopback(route->peer)) << route->peer;
  }
  EXPECT_EQ(RouteTo("127.0.0.9", 1)->peer, "127.0.0.9");
}

TEST(RouteTo, AnUnknownNameIsSaidToBe) {
  const absl::Status status = RouteTo("no-such-host.invalid", 1).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()),
              testing::HasSubstr("no address is known for \"no-such-host.invalid\" (DNS: "));
}

TEST(RouteTo, Ipv6LoopbackIsReachedByItself) {
  const absl::StatusOr<Route> route = RouteTo("::1", 50051);
  if (!route.ok()) GTEST_SKIP() << "this machine has no ::1: " << route.status();
  EXPECT_EQ(route->own, "::1");
  EXPECT_EQ(route->peer, "::1");
}

}  // namespace
}  // namespace switchyard::worker
