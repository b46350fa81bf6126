// Errors' way to the client and back: details, retry advice, length and escaping.
#include "proto/support/errors.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "google/rpc/status.pb.h"
#include "gtest/gtest.h"

namespace switchyard::rpc {
namespace {

TEST(Errors, DetailsSurviveTheWire) {
  const absl::Status status = WithRetry(MakeError(absl::StatusCode::kResourceExhausted, v1::QUEUE_FULL, "queue is full",
                                                  {{"limit", "4"}, {"actual", "5"}}),
                                        absl::Milliseconds(1250));
  const grpc::Status wire = ToGrpcStatus(status, "req-1");
  EXPECT_EQ(wire.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(wire.error_message(), "queue is full");
  const ErrorView view = ViewError(wire);
  EXPECT_EQ(view.reason, "QUEUE_FULL");
  EXPECT_EQ(view.details.domain(), "switchyard");
  EXPECT_EQ(view.details.metadata().at("limit"), "4");
  EXPECT_EQ(view.details.metadata().at("actual"), "5");
  EXPECT_EQ(view.details.metadata().at("requestId"), "req-1");
  EXPECT_EQ(view.retry_after, absl::Milliseconds(1250));
  google::rpc::Status details;
  ASSERT_TRUE(details.ParseFromString(wire.error_details()));
  EXPECT_EQ(details.code(), static_cast<int>(grpc::StatusCode::RESOURCE_EXHAUSTED));
  EXPECT_EQ(details.message(), wire.error_message());
}

TEST(Errors, BadFieldNamesFieldLimitAndActual) {
  const absl::Status status = BadField("n", "must be within [1, 64], is 65", "[1, 64]", "65");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(std::string(status.message()), "n: must be within [1, 64], is 65");
  const ErrorView view = ViewError(ToGrpcStatus(status, ""));
  EXPECT_EQ(view.reason, "BAD_FIELD");
  EXPECT_EQ(view.details.metadata().at("field"), "n");
  EXPECT_EQ(view.details.metadata().at("limit"), "[1, 64]");
  EXPECT_EQ(view.details.metadata().at("actual"), "65");
  EXPECT_EQ(view.details.metadata().count("requestId"), 0u);
  EXPECT_EQ(view.retry_after, absl::ZeroDuration());
}

TEST(Errors, EveryErrorGetsAReason) {
  EXPECT_TRUE(ToGrpcStatus(absl::OkStatus(), "r").ok());
  EXPECT_EQ(ViewError(ToGrpcStatus(absl::DeadlineExceededError("late"), "")).reason, "DEADLINE");
  EXPECT_EQ(ViewError(ToGrpcStatus(absl::InvalidArgumentError("bad"), "")).reason, "BAD_FIELD");
  EXPECT_EQ(ViewError(ToGrpcStatus(absl::UnavailableError("gone"), "")).reason, "ENGINE_ERROR");
}

TEST(Errors, SayWhetherAnotherTryMaySucceed) {
  const auto retryable = [](const absl::Status& status) {
    return ViewError(ToGrpcStatus(status, "")).details.metadata().at("retryable");
  };
  EXPECT_EQ(retryable(BadField("n", "is 65", "[1, 64]", "65")), "false");
  EXPECT_EQ(retryable(absl::DeadlineExceededError("late")), "false");
  EXPECT_EQ(retryable(MakeError(absl::StatusCode::kResourceExhausted, v1::SLOW_READER, "slow")), "false");
  EXPECT_EQ(
      retryable(WithRetry(MakeError(absl::StatusCode::kResourceExhausted, v1::QUEUE_FULL, "full"), absl::Seconds(1))),
      "true");
  EXPECT_EQ(retryable(MakeError(absl::StatusCode::kUnavailable, v1::DRAINING, "stopping")), "true");
}

TEST(Errors, ForeignStatusesGiveAnEmptyView) {
  EXPECT_EQ(ViewError(grpc::Status(grpc::StatusCode::UNAVAILABLE, "no connection")).reason, "");
  EXPECT_EQ(ViewError(grpc::Status(grpc::StatusCode::UNAVAILABLE, "x", "\xff\xff")).reason, "");
}

TEST(Errors, LongMessagesAreCutBetweenCharacters) {
  // 2047 bytes, then a character of three: the cut at 2048 falls into it.
  const std::string message = absl::StrCat(std::string(2047, 'a'), "\xe2\x82\xac", std::string(5000, 'b'));
  const grpc::Status wire = ToGrpcStatus(absl::InternalError(message), "");
  EXPECT_EQ(wire.error_message(), absl::StrCat(std::string(2047, 'a'), "..."));
  google::rpc::Status details;
  ASSERT_TRUE(details.ParseFromString(wire.error_details()));
  EXPECT_EQ(details.message(), wire.error_message());
  const std::string fits(2048, 'x');
  EXPECT_EQ(ToGrpcStatus(absl::InternalError(fits), "").error_message(), fits);
  const absl::Status long_metadata =
      MakeError(absl::StatusCode::kInternal, v1::ENGINE_ERROR, "m", {{"actual", std::string(9000, 'y')}});
  EXPECT_EQ(ViewError(ToGrpcStatus(long_metadata, "")).details.metadata().at("actual").size(), 2048u + 3);
}

TEST(Errors, QuoteEscapesAndCuts) {
  EXPECT_EQ(Quote("plain"), "\"plain\"");
  EXPECT_EQ(Quote("a\"\n\xff"), "\"a\\\"\\n\\xff\"");
  EXPECT_EQ(Quote(std::string(64, 'a')), absl::StrCat("\"", std::string(64, 'a'), "\""));
  EXPECT_EQ(Quote(std::string(65, 'a')), absl::StrCat("\"", std::string(64, 'a'), "\"..."));
}

}  // namespace
}  // namespace switchyard::rpc
