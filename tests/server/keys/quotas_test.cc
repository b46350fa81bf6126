#include "server/keys/quotas.h"

#include "gtest/gtest.h"
#include "proto/support/errors.h"

namespace switchyard::server {
namespace {

const absl::Time kStart = absl::UnixEpoch() + absl::Hours(1);

Caller Alice(int64_t requests, int64_t tokens) { return {"alice", Role::kUser, requests, tokens}; }
absl::Duration RetryAfter(const absl::Status& status) {
  return rpc::ViewError(rpc::ToGrpcStatus(status, "")).retry_after;
}

TEST(KeyQuotasTest, RequestsOfAMinute) {
  KeyQuotas quotas;
  const Caller alice = Alice(6, 0);
  for (int i = 0; i < 6; ++i) EXPECT_TRUE(quotas.TakeRequest(alice, kStart).ok()) << i;
  const absl::Status refused = quotas.TakeRequest(alice, kStart);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(rpc::ReasonOf(refused), v1::QUOTA);
  EXPECT_EQ(refused.message(), "requests_per_minute of the key alice: limit 6, 0 left, 1 wanted; try again in 10s");
  EXPECT_EQ(RetryAfter(refused), absl::Seconds(10));
  EXPECT_FALSE(quotas.TakeRequest(alice, kStart + absl::Seconds(9.9)).ok());
  EXPECT_TRUE(quotas.TakeRequest(alice, kStart + absl::Seconds(10.1)).ok());  // and a refusal took nothing
  EXPECT_FALSE(quotas.TakeRequest(alice, kStart + absl::Seconds(10.1)).ok());
  // After an idle hour there is one minute's quota, not more.
  for (int i = 0; i < 6; ++i) EXPECT_TRUE(quotas.TakeRequest(alice, kStart + absl::Hours(1)).ok()) << i;
  EXPECT_FALSE(quotas.TakeRequest(alice, kStart + absl::Hours(1)).ok());
}

TEST(KeyQuotasTest, TokensThatWereNotUsedComeBack) {
  KeyQuotas quotas;
  const Caller alice = Alice(0, 600);
  EXPECT_TRUE(quotas.TakeTokens(alice, 500, kStart).ok());
  const absl::Status refused = quotas.TakeTokens(alice, 200, kStart);
  EXPECT_EQ(refused.message(), "tokens_per_minute of the key alice: limit 600, 100 left, 200 wanted; try again in 10s");
  const rpc::ErrorView view = rpc::ViewError(rpc::ToGrpcStatus(refused, ""));
  EXPECT_EQ(view.details.metadata().at("field"), "tokens_per_minute");
  EXPECT_EQ(view.details.metadata().at("limit"), "600");
  EXPECT_EQ(view.details.metadata().at("actual"), "200");
  EXPECT_EQ(view.details.metadata().at("retryable"), "true");
  EXPECT_TRUE(quotas.TakeTokens(alice, 100, kStart).ok());
  quotas.GiveBackTokens(alice, 450);
  EXPECT_TRUE(quotas.TakeTokens(alice, 450, kStart).ok());
  EXPECT_FALSE(quotas.TakeTokens(alice, 1, kStart).ok());
  // No more than a minute's quota comes back.
  quotas.GiveBackTokens(alice, 5000);
  EXPECT_TRUE(quotas.TakeTokens(alice, 600, kStart).ok());
  EXPECT_FALSE(quotas.TakeTokens(alice, 1, kStart).ok());
}

TEST(KeyQuotasTest, MoreThanAMinutesQuotaNeedsAFullBucketAndIsOwed) {
  KeyQuotas quotas;
  const Caller alice = Alice(0, 600);
  EXPECT_TRUE(quotas.TakeTokens(alice, 1200, kStart).ok());  // from a full bucket; 600 are owed
  const absl::Status refused = quotas.TakeTokens(alice, 10, kStart);
  EXPECT_EQ(RetryAfter(refused), absl::Seconds(61));
  EXPECT_TRUE(quotas.TakeTokens(alice, 10, kStart + absl::Seconds(61)).ok());
  EXPECT_EQ(RetryAfter(quotas.TakeTokens(alice, 1200, kStart + absl::Seconds(61))), absl::Minutes(1));
}

TEST(KeyQuotasTest, KeysDoNotShareAndALimitMayChange) {
  KeyQuotas quotas;
  const Caller bob = {"bob", Role::kUser, 1, 0};
  EXPECT_TRUE(quotas.TakeRequest(Alice(1, 0), kStart).ok());
  EXPECT_TRUE(quotas.TakeRequest(bob, kStart).ok());
  EXPECT_FALSE(quotas.TakeRequest(bob, kStart).ok());
  EXPECT_TRUE(quotas.TakeRequest({"bob", Role::kUser, 60, 0}, kStart + absl::Seconds(1)).ok());
  EXPECT_FALSE(quotas.TakeRequest({"bob", Role::kUser, 60, 0}, kStart + absl::Seconds(1)).ok());
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(quotas.TakeRequest({"bob", Role::kUser, 0, 0}, kStart).ok());
  EXPECT_TRUE(quotas.TakeTokens(bob, 1 << 30, kStart).ok());  // no limit
}

}  // namespace
}  // namespace switchyard::server
