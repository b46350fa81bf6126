// packing.log: comes back as it was, is believed only whole, and a crash anywhere leaves the old one or the new.
#include "workers/train/packing/packing_journal.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/workers/checkpoint/simulated_file_system.h"

namespace switchyard::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

jobs::PackingDecision Decision(int64_t step, int32_t from, int32_t to) {
  return {.step = step, .world = 4, .from = from, .to = to, .times = {.step_ns = 7, .steps = 4}};
}

PackingJournal OneDecision() { return {.attempt = 1, .decisions = {Decision(10, 1, 2)}}; }
PackingJournal TwoDecisions() { return {.attempt = 2, .decisions = {Decision(10, 1, 2), Decision(14, 2, 4)}}; }

std::string TextOf(checkpoint::FileSystem* files) {
  const absl::StatusOr<std::string> text = ReadPackingJournal(files);
  EXPECT_TRUE(text.ok()) << text.status();
  return text.value_or("");
}

TEST(PackingJournalTest, ComesBackAsItWas) {
  const std::string text = EncodePackingJournal(TwoDecisions());
  EXPECT_THAT(text, StartsWith("switchyard-packing version=1 attempt=2 decisions=2 crc32c="));
  const absl::StatusOr<PackingJournal> back = DecodePackingJournal(text);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->attempt, 2);
  EXPECT_EQ(back->decisions, TwoDecisions().decisions);
  EXPECT_TRUE(DecodePackingJournal(EncodePackingJournal({.attempt = 3}))->decisions.empty());
  EXPECT_TRUE(DecodePackingJournal("")->decisions.empty());
}

TEST(PackingJournalTest, IsBelievedOnlyWhole) {
  const std::string good = EncodePackingJournal(TwoDecisions());
  for (size_t cut = 1; cut < good.size(); ++cut) {
    const absl::Status status = DecodePackingJournal(good.substr(0, cut)).status();
    EXPECT_THAT(std::string(status.message()),
                AllOf(StartsWith("packing.log: "), HasSubstr("if it is removed the job goes on")))
        << cut;
  }
  for (size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 1);
    EXPECT_FALSE(DecodePackingJournal(bad).ok()) << i << ": " << bad;
  }
  EXPECT_FALSE(DecodePackingJournal(good + "\n").ok());
  EXPECT_EQ(DecodePackingJournal(good.substr(0, good.size() - 1)).status().code(), absl::StatusCode::kDataLoss);
  const absl::Status foreign = DecodePackingJournal(std::string("\0\n\xff other text\n", 16)).status();
  EXPECT_EQ(foreign.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(foreign.message()), HasSubstr("packing.log: is no switchyard-packing"));
  const absl::Status newer = DecodePackingJournal("switchyard-packing version=2 anything").status();
  EXPECT_EQ(newer.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(newer.message()), HasSubstr("version 2, this program reads 1"));
}

TEST(PackingJournalTest, AnAttemptThatIsOverWritesNothing) {
  checkpoint::SimulatedFileSystem files;
  EXPECT_EQ(TextOf(&files), "");
  ASSERT_TRUE(WritePackingJournal(&files, TwoDecisions()).ok());
  const absl::Status late = WritePackingJournal(&files, OneDecision());
  EXPECT_EQ(late, absl::FailedPreconditionError("packing.log: attempt 1 is over: it was written by attempt 2"));
  EXPECT_EQ(TextOf(&files), EncodePackingJournal(TwoDecisions()));
  ASSERT_TRUE(WritePackingJournal(&files, {.attempt = 2}).ok());
  EXPECT_EQ(TextOf(&files), EncodePackingJournal({.attempt = 2}));
  *files.Contents("packing.log") = "";
  EXPECT_EQ(ReadPackingJournal(&files).status().code(), absl::StatusCode::kDataLoss);
}

constexpr checkpoint::CrashState kStates[] = {
    checkpoint::CrashState::kNothing,   checkpoint::CrashState::kEverything,      checkpoint::CrashState::kEmptyFiles,
    checkpoint::CrashState::kHalfFiles, checkpoint::CrashState::kContentsNoNames, checkpoint::CrashState::kRandom};

TEST(PackingJournalTest, ACrashLeavesTheOldOneOrTheNew) {
  checkpoint::SimulatedFileSystem begin;
  ASSERT_TRUE(WritePackingJournal(&begin, OneDecision()).ok());
  const std::string old_text = EncodePackingJournal(OneDecision()), new_text = EncodePackingJournal(TwoDecisions());
  const auto whole = begin.Restart(checkpoint::CrashState::kNothing);
  ASSERT_EQ(TextOf(whole.get()), old_text) << "it is durable";
  ASSERT_TRUE(WritePackingJournal(whole.get(), TwoDecisions()).ok());
  ASSERT_GE(whole->calls(), 4);
  for (const bool crashes : {true, false}) {
    for (int64_t at = 1; at <= whole->calls() + 1; ++at) {
      const auto files = begin.Restart(checkpoint::CrashState::kNothing);
      if (crashes) {
        files->CrashAt(at);
      } else {
        files->FailAt(at, absl::StatusCode::kResourceExhausted);
      }
      const bool written = WritePackingJournal(files.get(), TwoDecisions()).ok();
      for (const checkpoint::CrashState state : kStates) {
        for (uint64_t seed = 0; seed < (state == checkpoint::CrashState::kRandom ? 10 : 1); ++seed) {
          const std::string text = TextOf(files->Restart(state, seed).get());
          EXPECT_TRUE(text == new_text || (!written && text == old_text))
              << "call " << at << ", state " << static_cast<int>(state) << ": " << text;
        }
      }
      EXPECT_EQ(written, at > whole->calls()) << at;
    }
  }
}

}  // namespace
}  // namespace switchyard::train
