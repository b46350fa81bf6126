// Collecting the ranks' profiles: in turn, part by part, with every way to end; and merging them.
#include "server/engine/profile_collector.h"

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/support/errors.h"
#include "scheduler/popularity/profile_bundle.h"
#include "switchyard/v1/admin.pb.h"

namespace switchyard::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class ProfileCollectorTest : public testing::Test {
 protected:
  void Start(int ranks) {
    ended_.reset();
    collector_.Start(ranks,
                     {.on_progress =
                          [this](const ProfileCollector::Progress& progress) {
                            log_.push_back(absl::StrCat(progress.rank, "/", progress.num_ranks, ": ", progress.bytes));
                          },
                      .done =
                          [this](absl::StatusOr<std::vector<std::string>> profiles) {
                            EXPECT_FALSE(ended_.has_value());
                            ended_ = std::move(profiles);
                          }},
                     now_);
  }
  void Part(int rank, int64_t offset, const std::string& data, int64_t total) {
    collector_.OnPart(rank, {.request = request_, .offset = offset, .total_bytes = total, .data = data, .error = ""},
                      now_);
  }
  std::vector<std::string> Log() { return std::exchange(log_, {}); }

  absl::Time now_ = absl::UnixEpoch();
  int64_t request_ = 1;
  std::vector<std::string> log_;
  std::optional<absl::StatusOr<std::vector<std::string>>> ended_;
  ProfileCollector collector_{[this](int rank, int64_t request, int64_t offset) {
    log_.push_back(absl::StrCat("ask ", rank, " ", request, " ", offset));
  }};
};

TEST_F(ProfileCollectorTest, AsksOneAfterTheOther) {
  Start(2);
  Part(0, 0, "abc", 5);
  Part(0, 3, "de", 5);
  EXPECT_FALSE(ended_.has_value());
  Part(1, 0, "f", 1);
  EXPECT_THAT(Log(), ElementsAre("ask 0 1 0", "0/2: 3", "ask 0 1 3", "0/2: 5", "ask 1 1 0", "1/2: 6"));
  ASSERT_TRUE(ended_.has_value() && ended_->ok());
  EXPECT_THAT(**ended_, ElementsAre("abcde", "f"));
  EXPECT_FALSE(collector_.busy());
  Start(1);
  EXPECT_THAT(Log(), ElementsAre("ask 0 2 0"));
}

TEST_F(ProfileCollectorTest, WhatAnswersAnotherQuestionIsNotReceived) {
  Part(0, 0, "nobody asked", 12);
  Start(2);
  Part(1, 0, "not its turn", 12);
  Part(0, 7, "not there", 16);
  request_ = 7;
  Part(0, 0, "of another", 10);
  request_ = 1;
  Part(0, 0, "a", 1);
  Part(1, 0, "b", 1);
  EXPECT_THAT(**ended_, ElementsAre("a", "b"));
}

TEST_F(ProfileCollectorTest, EveryFailureEndsItOnce) {
  const auto ended_with = [&](absl::StatusCode code, const std::string& text) {
    ASSERT_TRUE(ended_.has_value());
    EXPECT_EQ(ended_->status().code(), code) << ended_->status();
    EXPECT_THAT(std::string(ended_->status().message()), HasSubstr(text));
    EXPECT_FALSE(collector_.busy());
    ++request_;
  };
  Start(2);
  collector_.OnPart(0, {.request = request_, .offset = 0, .total_bytes = 0, .data = "", .error = "learns nothing"},
                    now_);
  ended_with(absl::StatusCode::kFailedPrecondition, "worker 0: learns nothing");
  Start(2);
  Part(0, 0, "abc", 2);
  ended_with(absl::StatusCode::kInternal, "a part of 3 bytes at 0 of a profile of 2");
  Start(2);
  Part(0, 0, "", 2);
  ended_with(absl::StatusCode::kInternal, "a part of 0 bytes");
  Start(2);
  Part(0, 0, "a", 1);
  Part(1, 0, "a", ProfileCollector::kMostBytes);
  ended_with(absl::StatusCode::kResourceExhausted, "after 1 of other workers: limit 1073741824");
  Start(2);
  Part(0, 0, "a", 1);
  now_ += ProfileCollector::kPatience - absl::Seconds(1);
  collector_.Tick(now_);
  EXPECT_TRUE(collector_.busy());
  now_ += absl::Seconds(1);
  collector_.Tick(now_);
  ended_with(absl::StatusCode::kDeadlineExceeded, "worker 1 did not tell what it learned within 1m");
  Start(2);
  collector_.Fail(absl::UnavailableError("the group was lost"));
  ended_with(absl::StatusCode::kUnavailable, "the group was lost");
  collector_.Fail(absl::UnavailableError("again"));
  collector_.Tick(now_ + absl::Hours(1));
}

// Returns a worker's bundle in which `tokens` tokens went to expert 0 of one layer.
std::string BundleOf(int tokens, const std::string& model = "hash") {
  const popularity::RoutingShape shape = {.num_layers = 2, .num_experts = 4, .top_k = 1};
  popularity::ProfileBundle bundle = {.model = model, .shape = shape, .hidden = 8, .profiles = {}, .maps = {}};
  if (tokens == 0) return bundle.Serialize();
  popularity::PathProfile profile(
      {.model = model, .shape = shape, .phase = popularity::Phase::kDecode, .path_length = 1, .num_choices = 1}, {});
  const std::vector<int16_t> experts(static_cast<size_t>(2 * tokens), 0);
  for (int layer = 0; layer < 2; ++layer) {
    profile.Observe(
        {.shape = shape, .num_tokens = tokens, .experts = experts.data(), .token_stride = 1, .layer_stride = tokens},
        layer);
  }
  bundle.profiles.push_back(std::move(profile));
  return bundle.Serialize();
}

TEST(MergeProfilesTest, CountsAdd) {
  const absl::StatusOr<std::string> merged = MergeProfiles({BundleOf(3), BundleOf(0), BundleOf(4)}, "hash");
  ASSERT_TRUE(merged.ok()) << merged.status();
  const absl::StatusOr<popularity::ProfileBundle> bundle = popularity::ProfileBundle::Parse(*merged);
  ASSERT_TRUE(bundle.ok()) << bundle.status();
  EXPECT_EQ(bundle->model, "hash");
  ASSERT_EQ(bundle->profiles.size(), 1u);
  EXPECT_EQ(bundle->profiles[0].num_tokens(0), 7);
}

TEST(MergeProfilesTest, RefusesWhatIsNone) {
  const auto refusal = [](const std::vector<std::string>& bundles) { return MergeProfiles(bundles, "hash").status(); };
  const absl::Status empty = refusal({BundleOf(0), BundleOf(0)});
  EXPECT_EQ(empty.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(rpc::ViewError(rpc::ToGrpcStatus(empty, "")).reason, "NO_PROFILE");
  const absl::Status foreign = refusal({BundleOf(1), BundleOf(1, "other")});
  EXPECT_EQ(foreign.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(foreign.message()),
              HasSubstr("worker 1's profile: it is of the weights other, the served model's are hash"));
  EXPECT_THAT(std::string(refusal({BundleOf(1).substr(0, 20)}).message()), HasSubstr("worker 0's profile: "));
}

TEST(MergeProfilesTest, ARequestMayNameTheWeights) {
  v1::GetProfileRequest request;
  EXPECT_TRUE(CheckProfileRequest(request, "hash").ok());
  request.set_weights_hash("hash");
  EXPECT_TRUE(CheckProfileRequest(request, "hash").ok());
  request.set_weights_hash("older");
  const absl::Status status = CheckProfileRequest(request, "hash");
  EXPECT_EQ(rpc::ViewError(rpc::ToGrpcStatus(status, "")).reason, "OTHER_WEIGHTS");
  EXPECT_EQ(std::string(status.message()), "weights_hash: is \"older\", the served model's is hash");
}

}  // namespace
}  // namespace switchyard::server
