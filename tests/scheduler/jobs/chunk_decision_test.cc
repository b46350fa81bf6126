#include "scheduler/jobs/chunk_decision.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace switchyard::jobs {
namespace {

using testing::HasSubstr;
using testing::Optional;

const ChunkDecision kDecision = {.world = 2, .rows = 1000, .chunks = 4, .ns = 3'000'000, .why = "4 chunks 3 ms"};
constexpr char kLine[] = "step=0 world=2 rows=1000 from=1 to=4 ns=3000000 reason=measured why=4 chunks 3 ms\n";

TEST(ChunkDecisionsTest, ALineComesBack) {
  EXPECT_EQ(EncodeChunkDecision(kDecision), kLine);
  ChunkDecision later = kDecision;
  later.step = 8;
  later.why = "two\nlines why=";
  for (const ChunkDecision& decision : {kDecision, later}) {
    const auto back = DecodeChunkDecision(EncodeChunkDecision(decision));
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_THAT(*back, Optional(decision));
  }
  EXPECT_FALSE(DecodeChunkDecision("")->has_value());
}

TEST(ChunkDecisionsTest, Text) {
  EXPECT_EQ(kDecision.ToString(), "after step 0: 1000 rows in 4 chunks, some layers took 3 ms (4 chunks 3 ms)");
  EXPECT_EQ((ChunkDecision{.step = 8, .rows = 9, .ns = 2'000'000'000}).ToString(),
            "after step 8: 9 rows in 1 chunk, some layers took 2000 ms");
}

// Journals of releases in which a formula decided.
TEST(ChunkDecisionsTest, WhatAModelDecidedCountsAsMeasured) {
  const auto old =
      DecodeChunkDecision("step=0 world=2 rows=1000 from=1 to=4 ns=3000000 reason=model why=4 chunks 3 ms\n");
  ASSERT_TRUE(old.ok()) << old.status();
  EXPECT_THAT(*old, Optional(kDecision));
}

// … and of those that had granularity profile.
TEST(ChunkDecisionsTest, ASearchDecidedNothingThatCounts) {
  const std::string tried = "step=4 world=2 rows=1000 from=1 to=8 ns=5 reason=tried why=\n";
  const std::string found = "step=8 world=2 rows=1000 from=8 to=1 ns=7 reason=found why=\n";
  for (const std::string& lines : {tried, found, tried + found}) {
    const auto old = DecodeChunkDecision(lines);
    ASSERT_TRUE(old.ok()) << old.status();
    EXPECT_FALSE(old->has_value());
  }
}

TEST(ChunkDecisionsTest, AnotherTextIsNone) {
  for (const std::string& bad :
       {std::string("step=1"), absl::StrCat(kLine, kLine), std::string(kLine, sizeof(kLine) - 2),
        std::string("step=1 world=2 rows=0 from=1 to=4 ns=5 reason=measured why=\n"),
        std::string("step=1 world=2 rows=9 from=2 to=4 ns=5 reason=measured why=\n"),
        std::string("step=1 world=2 rows=9 from=1 to=4 ns=5 reason=none why=\n"),
        std::string("step=01 world=2 rows=9 from=1 to=4 ns=5 reason=measured why=\n"),
        std::string("step=1 world=2 from=1 rows=9 to=4 ns=5 reason=measured why=\n"),
        std::string("step=1 world=2 rows=9 from=1 to=4 ns=5 more=1 reason=measured why=\n")}) {
    const absl::Status status = DecodeChunkDecision(bad).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_THAT(std::string(status.message()), HasSubstr("is no decision")) << bad;
  }
}

TEST(ChunkDecisionsTest, ItCountsOnAsManyRanks) {
  EXPECT_EQ(CheckCounts(kDecision, 2), absl::OkStatus());
  EXPECT_EQ(CheckCounts(kDecision, 4),
            absl::FailedPreconditionError(absl::StrCat("it is of 2 ranks, there are 4: ", kDecision.ToString())));
  for (const int32_t chunks : {0, 65}) {
    ChunkDecision wrong = kDecision;
    wrong.chunks = chunks;
    EXPECT_EQ(CheckCounts(wrong, 2),
              absl::FailedPreconditionError(absl::StrCat(chunks, " chunks are outside [1, 64]: ", wrong.ToString())));
  }
}

}  // namespace
}  // namespace switchyard::jobs
