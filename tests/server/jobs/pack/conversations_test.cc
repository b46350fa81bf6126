// From JSONL to sequences: 200 conversations of several turns, against a reference of their own tokens and masks.
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/jobs/pack/pack_fixture.h"
#include "workers/train/data/data_source.h"

namespace switchyard::server {
namespace {

constexpr int64_t kLength = 160;

// Tokens of a text and what is trained at each.
using Text = std::pair<std::vector<int32_t>, std::vector<int32_t>>;

struct Turn {
  std::string role, content;
};

std::string LineOf(const std::vector<Turn>& turns) {
  std::vector<std::string> messages;
  for (const Turn& turn : turns) {
    messages.push_back(absl::StrCat(R"({"role": ")", turn.role, R"(", "content": ")", turn.content, "\"}"));
  }
  return absl::StrCat(R"({"messages": [)", absl::StrJoin(messages, ", "), "]}\n");
}

// What the fixture's template and tokenizer say, written down anew: "u:Hi<|end|>\na:Yes<|end|>\n", a token a byte, and
// of it what the assistant says with its end.
void Reference(const std::vector<Turn>& turns, std::multiset<Text>* windows) {
  std::vector<int32_t> tokens;
  std::vector<bool> trained;
  const auto add = [&](int32_t token, bool is_trained) {
    tokens.push_back(token);
    trained.push_back(is_trained);
  };
  for (const Turn& turn : turns) {
    add(turn.role[0], false);
    add(':', false);
    for (const char c : turn.content) add(c, turn.role == "assistant");
    add(256, turn.role == "assistant");
    add('\n', false);
  }
  // A conversation that is longer than a window is cut at its own begin.
  for (size_t first = 0; first + 1 < tokens.size(); first += kLength) {
    Text text;
    for (size_t i = first; i + 1 < tokens.size() && i < first + kLength; ++i) {
      text.first.push_back(tokens[i]);
      text.second.push_back(trained[i + 1] ? tokens[i + 1] : -1);
    }
    windows->insert(std::move(text));
  }
}

std::vector<Turn> RandomTurns(std::minstd_rand* random) {
  const auto text = [random] {
    std::string content;
    const auto count = 1 + (*random)() % 30;
    for (size_t i = 0; i < count; ++i) content.push_back(static_cast<char>('a' + (*random)() % 26));
    return content;
  };
  std::vector<Turn> turns;
  if ((*random)() % 4 == 0) turns.push_back({"system", text()});
  const auto pairs = 1 + (*random)() % 4;
  for (size_t i = 0; i < pairs; ++i) {
    turns.push_back({"user", text()});
    turns.push_back({"assistant", text()});
  }
  if ((*random)() % 5 == 0) turns.push_back({"user", text()});  // without an answer
  return turns;
}

TEST_F(PackTest, ConversationsArePackedWholeWithTheirMasks) {
  std::minstd_rand random(3);
  std::string lines;
  std::multiset<Text> wanted;
  for (int i = 0; i < 200; ++i) {
    const std::vector<Turn> turns = RandomTurns(&random);
    lines += LineOf(turns);
    Reference(turns, &wanted);
  }
  ASSERT_GT(wanted.size(), 200u) << "some are longer than a window";
  const auto packed = PackText(lines);
  ASSERT_TRUE(packed.ok()) << packed.status();
  EXPECT_EQ(packed->documents, 200);

  const absl::StatusOr<RootDir> dir = RootDir::Open(datasets_.path(), "the folder");
  ASSERT_TRUE(dir.ok());
  std::vector<train::TokenFile> files;
  files.push_back(*train::TokenFile::Open(*dir, "out.bin"));
  const auto source = train::DataSource::Create(
      std::move(files),
      {.length = kLength, .vocab = 259, .seed = 1, .document_mask = true, .packing = jobs::WindowPacking::kBestFit});
  ASSERT_TRUE(source.ok()) << source.status();
  std::multiset<Text> found;
  for (int64_t sample = 0; sample < (*source)->num_windows(); ++sample) {
    const absl::StatusOr<train::TrainRows> rows = (*source)->Samples(sample, 1);
    ASSERT_TRUE(rows.ok()) << rows.status();
    ASSERT_LE(rows->tokens.size(), static_cast<size_t>(kLength));
    std::vector<int32_t> borders = rows->borders;
    borders.push_back(static_cast<int32_t>(rows->tokens.size()));
    int32_t begin = 0;
    for (const int32_t border : borders) {
      found.insert({{rows->tokens.begin() + begin, rows->tokens.begin() + border},
                    {rows->targets.begin() + begin, rows->targets.begin() + border}});
      begin = border;
    }
  }
  EXPECT_TRUE(found == wanted);
}

}  // namespace
}  // namespace switchyard::server
