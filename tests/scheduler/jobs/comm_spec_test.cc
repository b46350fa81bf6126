#include "scheduler/jobs/comm_spec.h"

#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace switchyard::jobs {
namespace {

TEST(CommSpecTest, EveryModeHasANameOfItsOwn) {
  std::set<std::string> names;
  for (int i = 0; i < kNumCommModes; ++i) {
    const CommMode mode = static_cast<CommMode>(i);
    const std::string name(CommModeName(mode));
    EXPECT_TRUE(names.insert(name).second) << name;
    ASSERT_TRUE(ParseCommMode(name).ok()) << name;
    EXPECT_EQ(*ParseCommMode(name), mode);
  }
  EXPECT_EQ(CommModeName(CommMode::kPreempt), "preempt");
}

TEST(CommSpecTest, AnotherNameIsRefusedWithAllThatThereAre) {
  const absl::Status status = ParseCommMode("Fair\n").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(),
            "\"Fair\\n\" is no mode; must be one of fair, fixed, ar_last, priority, priority_ticketed, partition, "
            "pipelining, full, preempt");
  EXPECT_FALSE(ParseCommMode("").ok());
}

TEST(CommSpecTest, AGranularityIsARuleOrANumber) {
  for (const char* name : {"auto", "1", "7", "64"}) {
    const absl::StatusOr<Granularity> granularity = ParseGranularity(name);
    ASSERT_TRUE(granularity.ok()) << granularity.status();
    EXPECT_EQ(GranularityName(*granularity), name);
  }
  for (const char* name : {"", "0", "65", "-1", "04", " 4", "4 ", "4.0", "Auto", "profile", "99999999999"}) {
    EXPECT_EQ(ParseGranularity(name).status(),
              absl::InvalidArgumentError(absl::StrCat("\"", name,
                                                      "\" is no granularity; must be auto or a number of "
                                                      "chunks in [1, 64]")));
  }
  CommunicationSpec spec = {.mode = CommMode::kFull, .granularity = {.rule = ChunkRule::kFixed, .chunks = 4}};
  EXPECT_TRUE(CheckGranularity(spec).ok());
  spec.granularity = {};
  EXPECT_TRUE(CheckGranularity(spec).ok());
  spec.granularity = {.rule = ChunkRule::kFixed, .chunks = 0};
  EXPECT_EQ(CheckGranularity(spec).message(), "0 chunks are outside [1, 64]");
}

TEST(CommSpecTest, TheDefaultsMeasureWhatTheyCan) {
  const CommunicationSpec spec;
  EXPECT_EQ(spec.mode, CommMode::kPreempt);
  EXPECT_EQ(spec.piece_bytes, kPiecesByLink);
  EXPECT_EQ(GranularityName(spec.granularity), "auto");
  EXPECT_EQ(PackingChoiceName(spec.packing), "1");
  EXPECT_TRUE(DecidesChunks(spec));
  EXPECT_FALSE(TriesPackings(spec));
}

// By the sizes of pieces pipelining and full cut all-to-alls, and the modes before them do not cut.
TEST(CommSpecTest, RanksDecideChunksInPreempt) {
  for (int i = 0; i < kNumCommModes; ++i) {
    const CommMode mode = static_cast<CommMode>(i);
    SCOPED_TRACE(CommModeName(mode));
    EXPECT_EQ(DecidesChunks({.mode = mode}), mode == CommMode::kPreempt);
    EXPECT_FALSE(DecidesChunks({.mode = mode, .granularity = {.rule = ChunkRule::kFixed, .chunks = 4}}));
  }
}

TEST(CommSpecTest, PiecesPassInFiveMilliseconds) {
  EXPECT_EQ(PieceBytesOf(1e9), 5'000'000);
  EXPECT_EQ(PieceBytesOf(250e6), 1'250'000);
  EXPECT_EQ(PieceBytesOf(1e12), kMostPiece);
  EXPECT_EQ(PieceBytesOf(1e300), kMostPiece);
  EXPECT_EQ(PieceBytesOf(1e6), kLeastPiece);
  EXPECT_EQ(PieceBytesOf(1e-300), kLeastPiece);
  EXPECT_EQ(kLeastPiece, 64 << 10);
  EXPECT_EQ(kMostPiece, 30 << 20);
  for (const double not_measured : {0.0, -1.0}) EXPECT_EQ(PieceBytesOf(not_measured), kMostPiece);
}

TEST(CommSpecTest, APackingIsARuleOrANumber) {
  for (const char* name : {"trials", "1", "3", "64"}) {
    const absl::StatusOr<PackingChoice> packing = ParsePackingChoice(name);
    ASSERT_TRUE(packing.ok()) << packing.status();
    EXPECT_EQ(PackingChoiceName(*packing), name);
  }
  for (const char* name : {"", "0", "65", "-1", "02", " 2", "2 ", "Trials", "Mode", "99999999999"}) {
    EXPECT_EQ(ParsePackingChoice(name).status(),
              absl::InvalidArgumentError(absl::StrCat("\"", name,
                                                      "\" is no packing of experts; must be trials or a number of "
                                                      "replicas in [1, 64]")));
  }
  for (const CommMode mode : {CommMode::kPreempt, CommMode::kFull}) {
    EXPECT_TRUE(TriesPackings({.mode = mode, .packing = {.rule = PackingRule::kTrials, .replicas = 0}}));
    EXPECT_FALSE(TriesPackings({.mode = mode, .packing = {.rule = PackingRule::kFixed, .replicas = 2}}));
  }
  CommunicationSpec spec;
  EXPECT_EQ(FirstPacking(spec), 1);
  EXPECT_TRUE(CheckPackingChoice(spec, 5).ok());
  spec.packing = {.rule = PackingRule::kFixed, .replicas = 3};
  EXPECT_EQ(FirstPacking(spec), 3);
  EXPECT_TRUE(CheckPackingChoice(spec, 6).ok());
  EXPECT_EQ(CheckPackingChoice(spec, 4).message(), "3 replicas of each expert do not divide 4 workers");
  spec.packing.replicas = 65;
  EXPECT_EQ(CheckPackingChoice(spec, 65).message(), "65 replicas of each expert are outside [1, 64]");
  spec.packing = {.rule = PackingRule::kTrials, .replicas = 0};
  EXPECT_EQ(FirstPacking(spec), 1);
  EXPECT_TRUE(CheckPackingChoice(spec, 5).ok());
}

}  // namespace
}  // namespace switchyard::jobs
