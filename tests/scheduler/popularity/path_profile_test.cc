#include "scheduler/popularity/path_profile.h"

#include <sys/resource.h>

#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/base/io/byte_io.h"
#include "scheduler/base/io/fnv1a.h"
#include "scheduler/popularity/popularity.h"
#include "tests/scheduler/popularity/small_batch.h"

namespace switchyard::popularity {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr RoutingShape kTop1{.num_layers = 4, .num_experts = 3, .top_k = 1};
constexpr RoutingShape kTop2{.num_layers = 3, .num_experts = 5, .top_k = 2};
constexpr ProfileLimits kNoDecay{.max_bytes = 1 << 20, .halve_after_tokens = 0};

ProfileIdentity Of(RoutingShape shape) { return {.model = "weights-1", .shape = shape, .path_length = 3}; }

std::vector<int64_t> Shares(const PathProfile& profile, int layer, int32_t row) {
  std::vector<int64_t> shares(static_cast<size_t>(profile.identity().shape.num_experts), -1);
  EXPECT_TRUE(profile.SharesOf(layer, row, absl::MakeSpan(shares)));
  return shares;
}

SmallBatch Random(RoutingShape shape, int64_t tokens, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::vector<int16_t>> batch(static_cast<size_t>(tokens));
  for (std::vector<int16_t>& token : batch) {
    for (int l = 0; l < shape.num_layers; ++l) {
      const auto first = static_cast<int16_t>(random() % static_cast<uint64_t>(shape.num_experts));
      for (int k = 0; k < shape.top_k; ++k) token.push_back(static_cast<int16_t>((first + k) % shape.num_experts));
    }
  }
  return SmallBatch(shape, batch);
}

void ObserveAll(const SmallBatch& batch, PathProfile* profile) {
  for (int layer = 0; layer < batch.shape.num_layers; ++layer) profile->Observe(batch.View(), layer);
}

TEST(PathProfileTest, CountsWhatFollowedEachPathAndBacksOff) {
  PathProfile profile(Of(kTop1), kNoDecay);
  ObserveAll(SmallBatch(kTop1, {{0, 1, 2, 0}, {0, 1, 2, 0}, {1, 1, 2, 1}, {2, 2, 2, 2}}), &profile);
  const SmallBatch asked(kTop1, {{0, 1, 2, -1}, {1, 1, 2, -1}, {2, 1, 2, -1}, {0, 0, 1, -1}});
  const auto row = [&](int64_t t, int length, int min_tokens) {
    return profile.FindRow(asked.View(), t, 3, length, min_tokens);
  };
  EXPECT_THAT(Shares(profile, 3, row(0, 3, 1)), ElementsAre(kRow, 0, 0));
  EXPECT_THAT(Shares(profile, 3, row(1, 3, 1)), ElementsAre(0, kRow, 0));
  // Never seen: the path of two; asked for two tokens, token 1's own path has one only and backs off as well.
  const auto two_thirds = ElementsAre(kRow * 2 / 3, kRow / 3, 0);
  EXPECT_THAT(Shares(profile, 3, row(2, 3, 1)), two_thirds);
  EXPECT_THAT(Shares(profile, 3, row(1, 3, 2)), two_thirds);
  EXPECT_THAT(Shares(profile, 3, row(0, 2, 1)), two_thirds);
  EXPECT_THAT(Shares(profile, 3, row(0, 1, 1)), ElementsAre(kRow / 2, kRow / 4, kRow / 4));
  EXPECT_EQ(row(3, 3, 1), PathProfile::kMarginal);
  EXPECT_EQ(row(0, 0, 1), PathProfile::kMarginal);
  EXPECT_THAT(Shares(profile, 3, PathProfile::kMarginal), ElementsAre(kRow / 2, kRow / 4, kRow / 4));
  EXPECT_THAT(profile.MarginalCounts(3), ElementsAre(2, 1, 1));
}

TEST(PathProfileTest, AnElementIsTheSetOfTheFirstTwoChoicesOrTheFirst) {
  const SmallBatch seen(kTop2, {{1, 2, 0, 3, 4, 0}});
  const SmallBatch asked(kTop2, {{0, 1, 3, 0, -1, -1}, {0, 1, 0, 4, -1, -1}});
  ProfileIdentity sets = Of(kTop2), firsts = Of(kTop2);
  firsts.num_choices = 1;
  PathProfile by_set(sets, kNoDecay), by_first(firsts, kNoDecay);
  ObserveAll(seen, &by_set);
  ObserveAll(seen, &by_first);
  EXPECT_NE(by_set.FindRow(asked.View(), 0, 2, 1, 1), PathProfile::kMarginal);  // {0, 3} in another order
  EXPECT_EQ(by_set.FindRow(asked.View(), 1, 2, 1, 1), PathProfile::kMarginal);
  EXPECT_EQ(by_first.FindRow(asked.View(), 0, 2, 1, 1), PathProfile::kMarginal);
  EXPECT_NE(by_first.FindRow(asked.View(), 1, 2, 1, 1), PathProfile::kMarginal);  // 0 first
}

TEST(PathProfileTest, PathsOfSixLayersAreKeptApart) {
  constexpr RoutingShape kDeep{.num_layers = 7, .num_experts = 1022, .top_k = 2};
  ProfileIdentity identity = Of(kDeep);
  identity.path_length = 6;
  PathProfile profile(identity, kNoDecay);
  const std::vector<int16_t> base = {1021, 1020, 0, 1, 5, 6, 7, 8, 9, 10, 11, 12, 1, 2};
  ObserveAll(SmallBatch(kDeep, {base}), &profile);
  EXPECT_NE(profile.FindRow(SmallBatch(kDeep, {base}).View(), 0, 6, 6, 1), PathProfile::kMarginal);
  const int32_t longest = profile.FindRow(SmallBatch(kDeep, {base}).View(), 0, 6, 6, 1);
  for (size_t layer = 0; layer < 6; ++layer) {
    std::vector<int16_t> other = base;
    other[2 * layer] = 500;
    EXPECT_NE(profile.FindRow(SmallBatch(kDeep, {other}).View(), 0, 6, 6, 1), longest) << layer;
    other[2 * layer] = -1;  // dropped is an element of its own
    EXPECT_NE(profile.FindRow(SmallBatch(kDeep, {other}).View(), 0, 6, 6, 1), longest) << layer;
  }
}

TEST(PathProfileTest, TokenIdsAsContextKnowLayerZero) {
  ProfileIdentity identity = Of(kTop1);
  identity.context = ContextKind::kToken;
  identity.path_length = identity.num_choices = 1;
  PathProfile profile(identity, kNoDecay);
  ObserveAll(SmallBatch(kTop1, {{0, 1, 2, 0}, {1, 1, 1, 1}, {2, 2, 2, 2}}, {70, 80, 70}), &profile);
  const SmallBatch asked(kTop1, {{-1, -1, -1, -1}, {-1, -1, -1, -1}}, {70, 90});
  EXPECT_THAT(Shares(profile, 0, profile.FindRow(asked.View(), 0, 0, 1, 1)), ElementsAre(kRow / 2, 0, kRow / 2));
  EXPECT_EQ(profile.FindRow(asked.View(), 1, 0, 1, 1), PathProfile::kMarginal);
  EXPECT_EQ(profile.FindRow(asked.View(), 0, 0, 0, 1), PathProfile::kMarginal);
}

TEST(PathProfileTest, PredictedExpertsAsContextInTheirOrder) {
  ProfileIdentity identity = Of(kTop1);
  identity.context = ContextKind::kPredicted;
  identity.path_length = 2;
  identity.num_choices = 1;
  EXPECT_THAT(CheckProfile(identity, kNoDecay).message(), HasSubstr("length of channel is 0, not in [1, 4096]"));
  identity.channel = "probe";
  PathProfile profile(identity, kNoDecay);
  const SmallBatch batch(kTop1, {{0, 1, 2, 0}, {1, 1, 1, 1}, {2, 2, 2, 2}});
  profile.Observe(batch.View(), 0, {0, 1, 2, 1, 0, 2, 0, 2, 1});  // three predicted, two looked at
  const auto shares = [&](std::vector<int16_t> said) {
    return Shares(profile, 0, profile.FindRow(batch.View(), 0, 0, 6, 1, said));
  };
  EXPECT_THAT(shares({0, 1, 1}), ElementsAre(kRow, 0, 0));
  EXPECT_THAT(shares({1, 0}), ElementsAre(0, kRow, 0));
  EXPECT_THAT(shares({0, 0, 2}), ElementsAre(kRow / 2, 0, kRow / 2));
  EXPECT_EQ(profile.FindRow(batch.View(), 0, 0, 6, 1, {2, 0}), PathProfile::kMarginal);
  const auto parsed = PathProfile::Parse(profile.Serialize(), kNoDecay);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->identity().channel, "probe");
  identity.channel = "gate_ahead";
  EXPECT_THAT(profile.Merge(PathProfile(identity, kNoDecay)).message(),
              HasSubstr("channel is gate_ahead, this model's profile has probe"));
}

TEST(PathProfileTest, CountsHalveAtFixedNumbersOfTokensWhateverTheBatches) {
  const SmallBatch batch = Random(kTop2, 1000, 3);
  const ProfileLimits decay{.max_bytes = 1 << 20, .halve_after_tokens = 64};
  PathProfile whole(Of(kTop2), decay), in_pieces(Of(kTop2), decay);
  ObserveAll(batch, &whole);
  for (int64_t begin = 0; begin < 1000; begin += 37) {
    RoutingView piece = batch.View();
    piece.num_tokens = std::min<int64_t>(37, 1000 - begin);
    piece.token_ids += begin;
    piece.experts += begin * piece.token_stride;
    for (int layer = 0; layer < 3; ++layer) in_pieces.Observe(piece, layer);
  }
  EXPECT_EQ(whole.Serialize(), in_pieces.Serialize());
  EXPECT_EQ(whole.num_tokens(1), 1000 % 64);
  // 2 rows a token: less than the sum of the halvings' series, more than its last part.
  EXPECT_LT(TotalOf(whole.MarginalCounts(1)), 2 * 2 * 64);
  EXPECT_GT(TotalOf(whole.MarginalCounts(1)), 2 * 40 + 50);
}

TEST(PathProfileTest, RowsStayWithinTheBudget) {
  const int64_t per_row = CountTable::BytesPerRow(kTop2.num_experts);
  PathProfile profile(Of(kTop2), {.max_bytes = 3 * 20 * per_row, .halve_after_tokens = 0});
  EXPECT_EQ(profile.max_rows(), 20);
  ObserveAll(Random(kTop2, 3000, 4), &profile);
  for (int layer = 0; layer < 3; ++layer) EXPECT_LE(profile.num_rows(layer), 20);
  EXPECT_GT(profile.num_rows(2), 10);
}

TEST(PathProfileTest, MergingWorkersInAnyOrderIsCountingAllOfThem) {
  const SmallBatch parts[3] = {Random(kTop2, 100, 5), Random(kTop2, 200, 6), Random(kTop2, 50, 7)};
  PathProfile all(Of(kTop2), kNoDecay);
  std::vector<PathProfile> each(3, all);
  for (size_t i = 0; i < 3; ++i) {
    ObserveAll(parts[i], &all);
    ObserveAll(parts[i], &each[i]);
  }
  PathProfile left = each[0], right = each[2];
  ASSERT_TRUE(left.Merge(each[1]).ok() && left.Merge(each[2]).ok());
  ASSERT_TRUE(right.Merge(each[0]).ok() && right.Merge(each[1]).ok());
  EXPECT_EQ(left.Serialize(), all.Serialize());
  EXPECT_EQ(right.Serialize(), all.Serialize());
}

TEST(PathProfileTest, AProfileOfAnotherModelNamesTheFieldAndBothValues) {
  PathProfile profile(Of(kTop1), kNoDecay);
  ProfileIdentity other = Of(kTop1);
  other.model = "weights-2";
  EXPECT_THAT(profile.Merge(PathProfile(other, kNoDecay)).message(),
              HasSubstr("model is weights-2, this model's profile has weights-1"));
  other = Of(kTop1);
  other.shape.num_experts = 4;
  EXPECT_THAT(profile.Merge(PathProfile(other, kNoDecay)).message(), HasSubstr("num_experts is 4"));
  other = Of(kTop1);
  other.phase = Phase::kDecode;
  EXPECT_THAT(profile.Merge(PathProfile(other, kNoDecay)).message(),
              HasSubstr("phase is decode, this model's profile has prefill"));
  other = Of(kTop1);
  other.path_length = 2;
  EXPECT_THAT(profile.Merge(PathProfile(other, kNoDecay)).message(), HasSubstr("path_length is 2"));
  other = Of(kTop1);
  other.num_choices = 1;
  EXPECT_FALSE(profile.Merge(PathProfile(other, kNoDecay)).ok());
}

TEST(PathProfileTest, LimitsAreChecked) {
  ProfileIdentity identity = Of(kTop1);
  identity.path_length = 7;
  EXPECT_THAT(CheckProfile(identity, kNoDecay).message(), HasSubstr("path_length is 7, not in [1, 6]"));
  identity = Of(kTop1);
  identity.shape.num_experts = 1023;
  EXPECT_THAT(CheckProfile(identity, kNoDecay).message(), HasSubstr("num_experts is 1023, not in [1, 1022]"));
  EXPECT_THAT(CheckProfile(Of(kTop1), {.max_bytes = 100, .halve_after_tokens = 0}).message(),
              HasSubstr("max_bytes is 100"));
}

TEST(PathProfileTest, SetsOfTwoWhereThereIsRoomForThem) {
  const auto rows = [](int64_t n, int experts) {
    return ProfileLimits{.max_bytes = n * 4 * CountTable::BytesPerRow(experts), .halve_after_tokens = 0};
  };
  const RoutingShape small{.num_layers = 4, .num_experts = 16, .top_k = 2};
  EXPECT_EQ(ChoicesFor(small, rows(1920, 16)), 2);
  EXPECT_EQ(ChoicesFor(small, rows(1919, 16)), 1);
  EXPECT_EQ(ChoicesFor({.num_layers = 4, .num_experts = 16, .top_k = 1}, rows(5000, 16)), 1);
  EXPECT_EQ(ChoicesFor({.num_layers = 64, .num_experts = 256, .top_k = 8}, ProfileLimits()), 1);
}

PathProfile Counted() {
  PathProfile profile(Of(kTop2), kNoDecay);
  ObserveAll(Random(kTop2, 60, 8), &profile);
  return profile;
}

TEST(PathProfileTest, BytesGiveTheSameProfile) {
  const PathProfile profile = Counted();
  const std::string bytes = profile.Serialize();
  const absl::StatusOr<PathProfile> parsed = PathProfile::Parse(bytes, kNoDecay);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_TRUE(CheckSameProfile(profile.identity(), parsed->identity()).ok());
  EXPECT_EQ(parsed->Serialize(), bytes);
  EXPECT_EQ(parsed->num_tokens(1), 60);
  // A smaller budget keeps the rows that say most.
  const int64_t few = 3 * 5 * CountTable::BytesPerRow(5);
  const absl::StatusOr<PathProfile> cut = PathProfile::Parse(bytes, {.max_bytes = few, .halve_after_tokens = 0});
  ASSERT_TRUE(cut.ok()) << cut.status();
  EXPECT_EQ(cut->num_rows(2), 5);
  EXPECT_EQ(TotalOf(cut->MarginalCounts(2)), 120);
}

// A profile of one layer and 1022 experts, with a row for each of these keys: one count, 2 for each hundredth key.
std::string BytesOfRows(const std::vector<uint64_t>& keys, const ProfileLimits& limits) {
  constexpr RoutingShape kWide{.num_layers = 1, .num_experts = 1022, .top_k = 1};
  std::string bytes = PathProfile(Of(kWide), limits).Serialize();
  bytes.resize(bytes.size() - sizeof(uint32_t) - sizeof(uint64_t));  // no rows, the checksum
  AppendInt(static_cast<uint32_t>(keys.size()), &bytes);
  for (const uint64_t key : keys) {
    AppendInt(uint64_t{0}, &bytes);
    AppendInt(key, &bytes);
    AppendInt(uint16_t{1}, &bytes);
    AppendInt(static_cast<uint16_t>(key % 1022), &bytes);
    AppendInt(static_cast<uint16_t>(key % 100 == 0 ? 2 : 1), &bytes);
  }
  AppendInt(Fnv1a(bytes), &bytes);
  return bytes;
}

int64_t MostMemoryKb() {
  rusage usage = {};
  EXPECT_EQ(getrusage(RUSAGE_SELF, &usage), 0);
  return usage.ru_maxrss;
}

// Rows of 22 bytes in a file have 2 KB each in memory: 400 MB, if they were all there at once.
TEST(PathProfileTest, RowsBeyondTheLimitTakeNoMemory) {
  constexpr ProfileLimits kMegabyte{.max_bytes = 1 << 20, .halve_after_tokens = 0};
  std::vector<uint64_t> keys(200'000), kept;
  std::iota(keys.begin(), keys.end(), uint64_t{0});
  const std::string bytes = BytesOfRows(keys, kMegabyte);
  const int64_t before = MostMemoryKb();
  const absl::StatusOr<PathProfile> parsed = PathProfile::Parse(bytes, kMegabyte);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_LT(MostMemoryKb() - before, 64 << 10);
  for (uint64_t i = 0; i < static_cast<uint64_t>(parsed->max_rows()); ++i) kept.push_back(100 * i);
  EXPECT_EQ(parsed->num_rows(0), parsed->max_rows());
  EXPECT_TRUE(parsed->Serialize() == BytesOfRows(kept, kMegabyte));
}

TEST(PathProfileTest, EveryTruncationAndEveryFlippedByteIsRefused) {
  const std::string bytes = Counted().Serialize();
  for (size_t length = 0; length < bytes.size(); ++length) {
    const auto parsed = PathProfile::Parse(absl::string_view(bytes).substr(0, length), kNoDecay);
    ASSERT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument) << length;
  }
  for (size_t at = 0; at < bytes.size(); ++at) {
    std::string bad = bytes;
    bad[at] = static_cast<char>(bad[at] ^ 0x41);
    ASSERT_EQ(PathProfile::Parse(bad, kNoDecay).status().code(), absl::StatusCode::kInvalidArgument) << at;
  }
  EXPECT_THAT(PathProfile::Parse("SYTRACE1 and more", kNoDecay).status().message(),
              HasSubstr("byte 0: does not begin"));
  EXPECT_THAT(PathProfile::Parse(bytes + "x", kNoDecay).status().message(), HasSubstr("checksum"));
}

// Files that a wrong writer would produce, with the right checksum: nothing crashes, nothing absurd is allocated.
TEST(PathProfileTest, AbsurdFieldsUnderARightChecksumAreRefused) {
  const std::string bytes = Counted().Serialize();
  std::mt19937_64 random(9);
  int refused = 0, before_allocating = 0;
  for (size_t at = 8; at + 8 < bytes.size(); ++at) {
    for (const uint8_t value : {0xff, 0x7f, 0x80, 0x00, static_cast<int>(random() & 0xff)}) {
      std::string bad = bytes.substr(0, bytes.size() - 8);
      bad[at] = static_cast<char>(value);
      const uint64_t hash = Fnv1a(bad);
      for (int i = 0; i < 8; ++i) bad.push_back(static_cast<char>(hash >> (8 * i)));
      const auto parsed = PathProfile::Parse(bad, kNoDecay);
      if (!parsed.ok()) {
        EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument);
        ++refused;
        before_allocating += absl::StrContains(parsed.status().message(), "the layers want");
      } else {
        EXPECT_EQ(parsed->Serialize(), bad);
      }
    }
  }
  EXPECT_GT(refused, 100);
  EXPECT_GT(before_allocating, 0);
}

}  // namespace
}  // namespace switchyard::popularity
