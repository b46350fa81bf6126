// Comparison of ids and decoded text with HuggingFace's `tokenizers`, over 10 000 lines for each kind of
// tokenizer.json.
#include <gtest/gtest.h>

#include "server/text/tokenizer/stream_decoder.h"
#include "server/text/tokenizer/tokenizer.h"
#include "tests/server/text/tokenizer/golden_files.h"

namespace switchyard::tokenizer {
namespace {

using Ids = std::vector<int32_t>;

constexpr size_t kMinLines = 10000;
constexpr int kMinVocab = 32000;
constexpr int kMaxReported = 10;

class GoldenTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    auto tokenizer = Tokenizer::FromJson(KindJson(GetParam()));
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    tokenizer_ = *std::move(tokenizer);
    lines_ = ReadGoldenLines("lines/lines.jsonl");
    expected_ = ReadGoldenLines(std::string(GetParam()) + "/expected.jsonl");
    ASSERT_GE(lines_.size(), kMinLines);
    ASSERT_EQ(lines_.size(), expected_.size());
    ASSERT_GE(tokenizer_->vocab_size(), kMinVocab);
  }

  // Reports the first few differences with their lines.
  template <class Value>
  void Compare(size_t index, const char* what, const Value& got, const Value& want) {
    if (got == want || ++num_reported_ > kMaxReported) return;
    ADD_FAILURE() << GetParam() << ", line " << index << " " << lines_[index].dump() << "\n"
                  << what << " got  " << testing::PrintToString(got) << "\n"
                  << what << " want " << testing::PrintToString(want);
  }

  Ids Encode(size_t index, EncodeOptions options) {
    auto ids = tokenizer_->Encode(lines_[index].get_ref<const std::string&>(), options);
    EXPECT_TRUE(ids.ok()) << "line " << index << ": " << ids.status();
    return ids.ok() ? *ids : Ids();
  }

  std::string Decode(const Ids& ids, bool skip_special_tokens) {
    auto text = tokenizer_->Decode(ids, skip_special_tokens);
    EXPECT_TRUE(text.ok()) << text.status();
    return text.ok() ? *text : "";
  }

  std::unique_ptr<const Tokenizer> tokenizer_;
  std::vector<nlohmann::json> lines_;
  std::vector<nlohmann::json> expected_;
  int num_reported_ = 0;
};

// Keys of the records: see `expectation` in tests/golden/tokenizer/make.py.
TEST_P(GoldenTest, IdsEqualTheOracles) {
  for (size_t i = 0; i < lines_.size(); ++i) {
    const auto& want = expected_[i];
    const auto plain = want.at("i").get<Ids>();
    Compare(i, "ids", Encode(i, {.add_special_tokens = false}), plain);
    Compare(i, "ids with special tokens added", Encode(i, {}), want.value("s", plain));
    Compare(i, "ids with special tokens as text", Encode(i, {.add_special_tokens = false, .allow_special = false}),
            want.value("p", plain));
  }
}

TEST_P(GoldenTest, TextEqualsTheOracles) {
  for (size_t i = 0; i < lines_.size(); ++i) {
    const auto& want = expected_[i];
    const auto plain = want.at("i").get<Ids>();
    const std::string kept = want.value("d", lines_[i].get<std::string>());
    const std::string skipped = want.value("k", kept);
    Compare(i, "text", Decode(plain, false), kept);
    Compare(i, "text without special tokens", Decode(plain, true), skipped);
    Compare(i, "text of all ids without special tokens", Decode(want.value("s", plain), true),
            want.value("c", skipped));
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, GoldenTest,
                         testing::Values("gpt2", "llama3", "qwen", "llama2", "o200k_removed", "mixtral", "gemma"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace switchyard::tokenizer
