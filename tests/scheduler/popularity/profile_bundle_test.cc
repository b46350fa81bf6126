#include "scheduler/popularity/profile_bundle.h"

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/base/io/byte_io.h"
#include "scheduler/base/io/fnv1a.h"
#include "tests/scheduler/popularity/small_batch.h"

namespace switchyard::popularity {
namespace {

using testing::HasSubstr;

constexpr RoutingShape kShape{.num_layers = 3, .num_experts = 4, .top_k = 1};

PathProfile Counted(Phase phase, const std::vector<std::vector<int16_t>>& tokens) {
  PathProfile profile({.model = "weights", .shape = kShape, .phase = phase, .num_choices = 1}, {});
  const SmallBatch batch(kShape, tokens);
  for (int layer = 0; layer < kShape.num_layers; ++layer) profile.Observe(batch.View(), layer);
  return profile;
}

ProbeMap Map(int layer, int ahead, int64_t rows, float value) {
  return {.layer = layer, .ahead = ahead, .num_rows = rows, .values = std::vector<float>(4 * 3, value)};
}

ProfileBundle Sample() {
  return {.model = "weights",
          .shape = kShape,
          .hidden = 2,
          .profiles = {Counted(Phase::kPrefill, {{0, 1, 2}, {0, 1, 3}}), Counted(Phase::kDecode, {{3, 3, 3}})},
          .maps = {Map(0, 1, 100, 0.5f), Map(1, 1, 100, -2)}};
}

// As if written so: the checksum is right.
std::string Sealed(std::string bytes) {
  bytes.resize(bytes.size() - 8);
  AppendInt(Fnv1a(bytes), &bytes);
  return bytes;
}

std::string ErrorOf(const std::string& bytes) {
  const absl::StatusOr<ProfileBundle> bundle = ProfileBundle::Parse(bytes);
  EXPECT_FALSE(bundle.ok());
  return std::string(bundle.status().message());
}

TEST(ProfileBundleTest, WhatWasWrittenIsRead) {
  const std::string bytes = Sample().Serialize();
  const absl::StatusOr<ProfileBundle> read = ProfileBundle::Parse(bytes);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->Serialize(), bytes);
  EXPECT_EQ(read->profiles[0].MarginalCounts(2)[3], 1);
  EXPECT_EQ(read->maps[1].values[5], -2);
  EXPECT_EQ(read->maps[0].num_rows, 100);
}

TEST(ProfileBundleTest, OtherVersionsAreRefused) {
  std::string bytes = Sample().Serialize();
  bytes[7] = '3';
  EXPECT_THAT(
      ErrorOf(Sealed(bytes)),
      HasSubstr(
          "byte 0: SYBUND03: of another version; make it anew, with `switchyard profile` or a server's --profile_out"));
  bytes[7] = '4';
  EXPECT_THAT(ErrorOf(Sealed(bytes)), HasSubstr("does not begin with SYBUND01"));
}

TEST(ProfileBundleTest, EveryCutAndEveryFlippedByteIsRefused) {
  const std::string bytes = Sample().Serialize();
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_THAT(ErrorOf(bytes.substr(0, length)), HasSubstr("profile bundle: byte ")) << length;
  }
  for (size_t at = 0; at < bytes.size(); ++at) {
    std::string flipped = bytes;
    flipped[at] = static_cast<char>(flipped[at] ^ 0x40);
    EXPECT_FALSE(ProfileBundle::Parse(flipped).ok()) << at;
    // The same with a checksum that fits: refused or read, but nothing beyond the bytes is.
    ProfileBundle::Parse(Sealed(flipped)).IgnoreError();
  }
}

TEST(ProfileBundleTest, WhatIsWrongIsNamed) {
  ProfileBundle bundle = Sample();
  bundle.profiles.push_back(bundle.profiles[1]);
  EXPECT_THAT(ErrorOf(bundle.Serialize()), HasSubstr("profile 2 is the second one of its phase"));
  bundle = Sample();
  bundle.model = "others";
  EXPECT_THAT(ErrorOf(bundle.Serialize()), HasSubstr("profile 0 is of another model or shape"));
  bundle = Sample();
  bundle.maps[0].values[7] = std::numeric_limits<float>::infinity();
  EXPECT_THAT(ErrorOf(bundle.Serialize()), HasSubstr("not a finite number"));
  bundle = Sample();
  bundle.maps[1].layer = 2;
  EXPECT_THAT(ErrorOf(bundle.Serialize()), HasSubstr("a map of layer 3 of 3"));
  bundle = Sample();
  std::swap(bundle.maps[0], bundle.maps[1]);
  EXPECT_THAT(ErrorOf(bundle.Serialize()), HasSubstr("maps do not rise"));
  bundle = Sample();
  bundle.hidden = 0;
  EXPECT_THAT(ErrorOf(bundle.Serialize()), HasSubstr("number of maps is 2, not in [0, 0]"));
  std::string longer = Sample().Serialize();
  longer.insert(longer.size() - 8, "x");
  EXPECT_THAT(ErrorOf(Sealed(longer)), HasSubstr("1 bytes too many after the last map"));
}

TEST(ProfileBundleTest, MergingAddsCountsAndWeighsMapsByTheirRows) {
  ProfileBundle bundle = Sample(), other = Sample();
  other.maps = {Map(0, 1, 300, 2.5f), Map(0, 2, 300, 7)};
  other.profiles.pop_back();
  ASSERT_TRUE(bundle.Merge(other).ok());
  EXPECT_EQ(bundle.profiles.size(), 2u);
  EXPECT_EQ(bundle.profiles[0].MarginalCounts(0)[0], 4);
  EXPECT_EQ(bundle.profiles[1].MarginalCounts(0)[3], 1);
  ASSERT_EQ(bundle.maps.size(), 3u);
  EXPECT_EQ(bundle.maps[0].values[0], 2);  // (100 * 0.5 + 300 * 2.5) / 400
  EXPECT_EQ(bundle.maps[0].num_rows, 400);
  EXPECT_EQ(bundle.maps[1].ahead, 2);
  EXPECT_TRUE(ProfileBundle::Parse(bundle.Serialize()).ok());
}

TEST(ProfileBundleTest, WhatCouldNotBeReadIsNotMerged) {
  ProfileBundle bundle = Sample(), other = Sample();
  constexpr int64_t kMost = int64_t{1} << 48;
  bundle.maps[1].num_rows = kMost - 100;
  ASSERT_TRUE(bundle.Merge(other).ok());
  ASSERT_EQ(bundle.maps[1].num_rows, kMost);
  EXPECT_TRUE(ProfileBundle::Parse(bundle.Serialize()).ok());
  const std::string before = bundle.Serialize();
  EXPECT_THAT(std::string(bundle.Merge(other).message()),
              HasSubstr("the probe map of MoE layer 1 for 1 ahead would be of 281474976710756 rows, at most "
                        "281474976710656"));
  EXPECT_EQ(bundle.Serialize(), before);
}

TEST(ProfileBundleTest, CountsThatCouldNotBeReadAreNotMerged) {
  ProfileBundle bundle = Sample();
  absl::Status status;
  // Doubled until it is refused.
  for (int i = 0; i < 64 && status.ok(); ++i) {
    ASSERT_TRUE(ProfileBundle::Parse(bundle.Serialize()).ok()) << i;
    for (ProbeMap& map : bundle.maps) map.num_rows = 1;
    status = bundle.Merge(ProfileBundle(bundle));
  }
  EXPECT_THAT(std::string(status.message()), HasSubstr("path profile: sum of tokens is "));
}

TEST(ProfileBundleTest, AnotherModelsBundleIsNotMerged) {
  ProfileBundle bundle = Sample(), other = Sample();
  other.model = "others";
  EXPECT_THAT(std::string(bundle.Merge(other).message()),
              HasSubstr("model is others, this model's bundle has weights"));
  other = Sample();
  other.hidden = 3;
  EXPECT_THAT(std::string(bundle.Merge(other).message()), HasSubstr("hidden is 3"));
  EXPECT_EQ(bundle.Serialize(), Sample().Serialize());
}

}  // namespace
}  // namespace switchyard::popularity
