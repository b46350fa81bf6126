// FORMAT.md matches a job's files: it has every key of trainer_state.json, and its packing.log and chunks.log can be
// read.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/workers/train/job_fixture.h"
#include "workers/train/chunks/chunk_journal.h"
#include "workers/train/packing/packing_journal.h"
#include "workers/train/step/trainer_state.h"

namespace switchyard::train {
namespace {

using testing::HasSubstr;

// The text between a heading and the next one.
std::string Section(const std::string& heading) {
  const std::string text = ReadAll("workers/checkpoint/FORMAT.md");
  const size_t begin = text.find(absl::StrCat("\n## ", heading, "\n"));
  EXPECT_NE(begin, std::string::npos) << heading;
  return begin == std::string::npos ? "" : text.substr(begin, text.find("\n## ", begin + 1) - begin);
}

TEST(FormatMdTest, NamesEveryKeyOfTrainerState) {
  const std::string section = Section(kTrainerStateName);
  jobs::JobSpec spec;
  spec.datasets = {"a.bin"};
  spec.steps = 10;
  spec.batch_sequences = 4;
  spec.capacity_factor = 1.25;
  spec.balance_bias_rate = 0.5;
  spec.dropout.hidden = 0.5;
  spec.document_mask = true;
  spec.packing = jobs::WindowPacking::kBestFit;
  spec.dataset_weights = {1, 2};
  const TrainerState state = {.step = 2,
                              .skipped = 1,
                              .evaluations = {.best_step = 1},
                              .shape = ShapeOf(spec, "{}", std::vector<NamedTokens>{{"a.bin", {}}})};
  const nlohmann::json json = nlohmann::json::parse(EncodeTrainerState(state));
  for (const auto& [key, unused] : json.items()) EXPECT_THAT(section, HasSubstr(absl::StrCat("`", key, "`")));
  for (const auto& [key, unused] : json["evaluations"].items()) {
    EXPECT_THAT(section, HasSubstr(absl::StrCat("`", key, "`")));
  }
  for (const auto& [key, unused] : state.shape) EXPECT_THAT(section, HasSubstr(absl::StrCat("`", key, "`")));
  for (const absl::string_view part : absl::StrSplit(state.shape.at("optimizer"), ", ")) {
    const std::vector<std::string> words = absl::StrSplit(part, ' ');
    EXPECT_THAT(section, testing::ContainsRegex(absl::StrCat("[` ]", words[0], " [SXN][,`]")));
  }
}

TEST(FormatMdTest, ItsPackingLogIsOne) {
  const std::vector<std::string> parts = absl::StrSplit(Section(kPackingJournalName), "```\n");
  ASSERT_EQ(parts.size(), 3u);
  const absl::StatusOr<PackingJournal> journal = DecodePackingJournal(parts[1]);
  ASSERT_TRUE(journal.ok()) << journal.status();
  EXPECT_EQ(EncodePackingJournal(*journal), parts[1]);
  jobs::PackingController controller({.world = journal->decisions[0].world});
  EXPECT_EQ(controller.Replay(journal->decisions, 100), absl::OkStatus());
}

TEST(FormatMdTest, ItsChunksLogIsOne) {
  const std::vector<std::string> parts = absl::StrSplit(Section(kChunkJournalName), "```\n");
  ASSERT_EQ(parts.size(), 3u);
  const absl::StatusOr<ChunkJournal> journal = DecodeChunkJournal(parts[1]);
  ASSERT_TRUE(journal.ok()) << journal.status();
  EXPECT_EQ(EncodeChunkJournal(*journal), parts[1]);
  ASSERT_TRUE(journal->decision.has_value());
  EXPECT_EQ(jobs::CheckCounts(*journal->decision, 4), absl::OkStatus());
}

}  // namespace
}  // namespace switchyard::train
