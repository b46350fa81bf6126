// The address by which others reach this host.
#include "workers/own_address.h"

#include "gtest/gtest.h"

namespace switchyard {
namespace {

TEST(RouteTo, LoopbackIsReachedByLoopback) {
  for (const char* target : {"127.0.0.1:50051", "127.0.0.9:1", "localhost:50051"}) {
    const absl::StatusOr<Route> route = RouteTo(target);
    ASSERT_TRUE(route.ok()) << target << ": " << route.status();
    EXPECT_TRUE(IsLoopbackAddress(route->own)) << route->own;
    EXPECT_TRUE(IsLoopbackAddress(route->peer)) << route->peer;
  }
  EXPECT_EQ(RouteTo("127.0.0.9:1")->peer, "127.0.0.9");
}

TEST(RouteTo, WhatIsNoAddressIsRefused) {
  for (const char* target : {"", "127.0.0.1", ":5", "localhost:"}) {
    EXPECT_EQ(RouteTo(target).status().code(), absl::StatusCode::kInvalidArgument) << target;
  }
  EXPECT_EQ(RouteTo("no-such-host.invalid:1").status().code(), absl::StatusCode::kUnavailable);
}

TEST(IsLoopbackAddress, AddressesNotNames) {
  EXPECT_TRUE(IsLoopbackAddress("127.3.2.1"));
  EXPECT_TRUE(IsLoopbackAddress("::1"));
  for (const char* address : {"10.0.0.1", "128.0.0.1", "::", "localhost", "127.example.org", ""}) {
    EXPECT_FALSE(IsLoopbackAddress(address)) << address;
  }
}

}  // namespace
}  // namespace switchyard
