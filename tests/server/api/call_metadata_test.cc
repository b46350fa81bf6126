// What CheckMetadata lets through.
#include "server/api/call_metadata.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace switchyard::server {
namespace {

using Entries = std::vector<std::pair<std::string, std::string>>;

absl::Status Check(const Entries& entries) {
  std::multimap<grpc::string_ref, grpc::string_ref> metadata;
  for (const auto& [name, value] : entries) metadata.emplace(name, value);
  return CheckMetadata(metadata);
}

TEST(CallMetadataTest, WhatClientsSendIsFine) {
  EXPECT_TRUE(Check({}).ok());
  EXPECT_TRUE(Check({{"user-agent", "grpc-c++/1.51.1 grpc-c/29.0.0 (linux; chttp2)"},
                     {"authorization", "Bearer key"},
                     {"traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
                     {"x-b3_trace.id-bin", std::string("\0\n\xff", 3)},
                     {"content-length", "17"},
                     {"x-empty", ""}})
                  .ok());
}

TEST(CallMetadataTest, NamesAndValuesThatHttp2ForbidsAreNamed) {
  const std::pair<std::string, std::string> bad[] = {
      {"X-Upper", "1"},   {"", "1"},           {"x name", "1"},          {"x-a\r\nx-b", "1"},
      {":protocol", "1"}, {"x\xc3\xa4", "1"},  {"x-a", "1\r\nx-b: 2"},   {"x-a", std::string("1\0", 2)},
      {"x-a", "\x7f"},    {"x-a", "\xc3\xa4"}, {"connection", "close"},  {"transfer-encoding", "chunked"},
      {"upgrade", "h2c"}, {"keep-alive", "5"}, {"proxy-connection", "5"}};
  for (const auto& entry : bad) {
    const absl::Status status = Check({{"x-good", "1"}, entry});
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << entry.first;
    EXPECT_THAT(std::string(status.message()), testing::StartsWith("metadata: \""));
  }
  EXPECT_FALSE(Check({{"content-length", "3"}, {"content-length", "3"}}).ok());
}

TEST(CallMetadataTest, ItIsCountedAsHttp2Does) {
  const Entries most = {{"x-most", std::string(kMostMetadataBytes - 32 - 6, 'x')}};
  EXPECT_TRUE(Check(most).ok());
  for (const Entries& more : {Entries{{"x-most", most[0].second + "x"}}, Entries(250, {"x", ""})}) {
    const absl::Status status = Check(more);
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr("more than 8192 bytes"));
  }
}

}  // namespace
}  // namespace switchyard::server
