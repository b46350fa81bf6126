// HOST:PORT both ways, and which hosts are this machine alone.
#include "proto/support/host_port.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace switchyard::rpc {
namespace {

using testing::HasSubstr;

TEST(JoinHostPortTest, Ipv6StandsInBrackets) {
  EXPECT_EQ(JoinHostPort("127.0.0.1", 50051), "127.0.0.1:50051");
  EXPECT_EQ(JoinHostPort("localhost", 1), "localhost:1");
  EXPECT_EQ(JoinHostPort("::1", 50051), "[::1]:50051");
  EXPECT_EQ(JoinHostPort("[::1]", 50051), "[::1]:50051");
  EXPECT_EQ(JoinHostPort("::", 0), "[::]:0");
}

TEST(SplitHostPortTest, IsTheOtherWay) {
  for (const char* text : {"127.0.0.1:50051", "localhost:50051", "[::1]:50051", "[fd00::2]:50051"}) {
    const auto split = SplitHostPort(text);
    ASSERT_TRUE(split.ok()) << split.status();
    EXPECT_EQ(split->port, 50051);
    EXPECT_EQ(split->host.find('['), std::string::npos) << split->host;
    EXPECT_EQ(JoinHostPort(split->host, split->port), text);
  }
}

struct Bad {
  const char* text;
  const char* why;
};

TEST(SplitHostPortTest, SaysWhatIsWrong) {
  for (const Bad& bad : {Bad{"::1:50051", "stands in brackets: [::1]:50051"}, Bad{"::1", "stands in brackets"},
                         Bad{"fd00::2:50051", "stands in brackets"}, Bad{"[::1]", "port of 1 to 65535"},
                         Bad{"localhost", "port of 1 to 65535"}, Bad{"localhost:", "port of 1 to 65535"},
                         Bad{"localhost:0", "port of 1 to 65535"}, Bad{"localhost:65536", "port of 1 to 65535"},
                         Bad{"localhost:http", "port of 1 to 65535"}, Bad{":50051", "the host is missing"},
                         Bad{"[]:50051", "the host is missing"}, Bad{"", "port of 1 to 65535"}}) {
    const auto split = SplitHostPort(bad.text);
    EXPECT_EQ(split.status().code(), absl::StatusCode::kInvalidArgument) << bad.text;
    EXPECT_THAT(std::string(split.status().message()), HasSubstr(bad.why)) << bad.text;
    EXPECT_THAT(std::string(split.status().message()), HasSubstr(bad.text));
  }
}

TEST(IsLoopbackTest, KnowsBothFamilies) {
  for (const char* host :
       {"127.0.0.1", "127.9.9.9", "::1", "[::1]", "0:0:0:0:0:0:0:1", "::ffff:127.0.0.1", "localhost"}) {
    EXPECT_TRUE(IsLoopback(host)) << host;
  }
  for (const char* host : {"10.0.0.1", "128.0.0.1", "0.0.0.0", "::", "[::]", "::2", "fd00::1", "::ffff:10.0.0.1",
                           "127.example.org", "[::1", "::1]", "[]", ""}) {
    EXPECT_FALSE(IsLoopback(host)) << host;
  }
}

TEST(IsIpv6Test, AddressesNotNames) {
  for (const char* host : {"::1", "[::1]", "fd00::2", "::"}) EXPECT_TRUE(IsIpv6(host)) << host;
  for (const char* host : {"127.0.0.1", "localhost", "[127.0.0.1]", "::1:x", ""}) EXPECT_FALSE(IsIpv6(host)) << host;
}

TEST(IsEveryAddressTest, KnowsBothFamilies) {
  for (const char* host : {"0.0.0.0", "::", "[::]", "::ffff:0.0.0.0"}) EXPECT_TRUE(IsEveryAddress(host)) << host;
  for (const char* host : {"127.0.0.1", "::1", "localhost", ""}) EXPECT_FALSE(IsEveryAddress(host)) << host;
}

}  // namespace
}  // namespace switchyard::rpc
