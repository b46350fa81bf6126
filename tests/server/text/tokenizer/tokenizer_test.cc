// Limits, cancelling, long texts, lookups and streams, which the goldens do not cover.
#include "server/text/tokenizer/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "scheduler/base/text/utf8.h"
#include "server/text/tokenizer/stream_decoder.h"
#include "tests/server/text/tokenizer/golden_files.h"

namespace switchyard::tokenizer {
namespace {

using Ids = std::vector<int32_t>;
using testing::HasSubstr;

class TokenizerTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    auto tokenizer = Tokenizer::FromJson(KindJson(GetParam()));
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    tokenizer_ = *std::move(tokenizer);
  }
  std::unique_ptr<const Tokenizer> tokenizer_;
};

TEST_P(TokenizerTest, TokensAndIdsMapBothWays) {
  int num_tokens = 0;
  for (int32_t id = 0; id < tokenizer_->id_end(); ++id) {
    if (tokenizer_->IdToToken(id).empty()) continue;
    ++num_tokens;
    EXPECT_EQ(tokenizer_->TokenToId(tokenizer_->IdToToken(id)), id);
  }
  EXPECT_EQ(num_tokens, tokenizer_->vocab_size());
  EXPECT_EQ(tokenizer_->TokenToId("no such token"), -1);
  for (const int32_t id : {-1, tokenizer_->id_end(), INT32_MAX, INT32_MIN}) EXPECT_EQ(tokenizer_->IdToToken(id), "");
}

TEST_P(TokenizerTest, InvalidUtf8IsRefusedWithItsOffset) {
  for (const char* text : {"ab\xFF", "ab\xC3", "ab\xED\xA0\x80"}) {
    const auto ids = tokenizer_->Encode(text);
    EXPECT_EQ(ids.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(ids.status().message(), "text: not valid UTF-8 at byte 2");
  }
}

TEST_P(TokenizerTest, TextsBeyondTheLimitAreRefused) {
  EXPECT_TRUE(tokenizer_->Encode("12345", {.max_text_bytes = 5}).ok());
  const auto ids = tokenizer_->Encode("123456", {.max_text_bytes = 5});
  EXPECT_EQ(ids.status().message(), "text: 6 bytes, the limit is 5");
}

TEST_P(TokenizerTest, TheHookEndsTheWork) {
  const std::string text(1 << 20, 'a');
  int questions = 0;
  const auto ids = tokenizer_->Encode(text, {.cancelled = [&] { return ++questions == 3; }});
  EXPECT_EQ(ids.status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(questions, 3);
  EXPECT_FALSE(tokenizer_->Encode("a", {.cancelled = [] { return true; }}).ok());
}

// None of these may take more than linear time, or recurse on the text.
TEST_P(TokenizerTest, LongMonotonousTextsComeBack) {
  std::string ladder;
  for (int i = 0; i < 100'000; ++i) ladder += "ab \n"[i * 7 % 11 % 4];
  const std::string texts[] = {std::string(100'000, 'a'),       std::string(1'000'000, '^'), std::string(50'000, '_'),
                               std::string(300'000, ' ') + "x", std::string(200'000, '\n'),  ladder};
  for (const std::string& text : texts) {
    const auto ids = tokenizer_->Encode(text, {.add_special_tokens = false});
    ASSERT_TRUE(ids.ok()) << ids.status();
    const auto back = tokenizer_->Decode(*ids, false);
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_TRUE(*back == text) << text.size() << " bytes beginning with " << text.substr(0, 8);
  }
}

TEST_P(TokenizerTest, SpecialTokensInTextAreTextUnlessAllowed) {
  const int32_t special = tokenizer_->TokenToId("<|im_start|>");
  EXPECT_THAT(*tokenizer_->Encode("a<|im_start|>b"), testing::Contains(special));
  const auto ids = tokenizer_->Encode("a<|im_start|>b", {.add_special_tokens = false, .allow_special = false});
  EXPECT_THAT(*ids, testing::Not(testing::Contains(special)));
  EXPECT_EQ(*tokenizer_->Decode(*ids, true), "a<|im_start|>b");
}

TEST_P(TokenizerTest, ManyThreadsShareOne) {
  const auto want = tokenizer_->Encode("Several threads, один tokenizer 🎉");
  ASSERT_TRUE(want.ok());
  std::vector<std::thread> threads;
  std::vector<Ids> got(4);
  for (Ids& ids : got) {
    threads.emplace_back([this, &ids] {
      for (int i = 0; i < 50; ++i) ids = *tokenizer_->Encode("Several threads, один tokenizer 🎉");
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Ids& ids : got) EXPECT_EQ(ids, *want);
}

// Decodes id by id; checks that each part has whole characters.
std::string Stream(const Tokenizer& tokenizer, const Ids& ids, bool skip_special_tokens) {
  StreamDecoder stream(&tokenizer, skip_special_tokens);
  std::string all;
  const auto take = [&](const absl::Status& status, const std::string& part) {
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(FindInvalidUtf8(part), absl::string_view::npos);
    all += part;
  };
  for (const int32_t id : ids) {
    std::string part;
    const absl::Status status = stream.Append(id, &part);
    take(status, part);
  }
  std::string part;
  const absl::Status status = stream.Flush(&part);
  take(status, part);
  return all;
}

TEST_P(TokenizerTest, StreamsGiveTheTextOfTheWhole) {
  std::mt19937 random(5);
  const int32_t end = tokenizer_->id_end();
  // Ids of single bytes and characters make broken UTF-8 likely.
  std::uniform_int_distribution<int32_t> low(0, 300);
  std::uniform_int_distribution<int32_t> any(-1, end);
  for (int round = 0; round < 2000; ++round) {
    Ids ids(random() % 40);
    for (int32_t& id : ids) id = random() % 2 == 0 ? low(random) : any(random);
    for (const bool skip : {false, true}) EXPECT_EQ(Stream(*tokenizer_, ids, skip), *tokenizer_->Decode(ids, skip));
  }
}

TEST_P(TokenizerTest, StreamsOfRealTextGiveIt) {
  const auto lines = ReadGoldenLines("lines/lines.jsonl");
  const auto expected = ReadGoldenLines(std::string(GetParam()) + "/expected.jsonl");
  for (size_t i = 0; i < lines.size(); i += 5) {
    const std::string want = expected[i].value("d", lines[i].get<std::string>());
    EXPECT_EQ(Stream(*tokenizer_, expected[i].at("i").get<Ids>(), false), want) << lines[i];
  }
}

TEST_P(TokenizerTest, StreamsDoNotHoldPlainTextBack) {
  const auto ids = tokenizer_->Encode("plain words come at once", {.add_special_tokens = false});
  ASSERT_TRUE(ids.ok());
  StreamDecoder stream(tokenizer_.get(), true);
  std::string text;
  for (const int32_t id : *ids) ASSERT_TRUE(stream.Append(id, &text).ok());
  EXPECT_EQ(text, "plain words come at once");
}

TEST_P(TokenizerTest, PiecesHaveTheBytesOfTheText) {
  const std::string text = "One by one, \u043e\u0434\u0438\u043d \U0001F389\U0001F9E9 \u4e9c\u9f98\n\tend";
  const auto ids = tokenizer_->Encode(text, {.add_special_tokens = false});
  ASSERT_TRUE(ids.ok());
  std::string bytes;
  bool part_of_a_character = false;
  for (const int32_t id : *ids) {
    const TokenPiece piece = tokenizer_->PieceOf(id);
    EXPECT_EQ(FindInvalidUtf8(piece.text), absl::string_view::npos);
    if (piece.text != piece.bytes) {
      part_of_a_character = true;
      EXPECT_THAT(piece.text, HasSubstr(std::string(kReplacementCharacter)));
    }
    bytes += piece.bytes;
  }
  EXPECT_TRUE(part_of_a_character) << "this text was to have such a token";
  // Some tokenizers put a space before a text, which decoding the whole removes.
  EXPECT_THAT(bytes, testing::AnyOf(text, " " + text));
  const TokenPiece special = tokenizer_->PieceOf(tokenizer_->TokenToId("<|im_start|>"));
  EXPECT_EQ(special.text, "<|im_start|>");
  EXPECT_EQ(special.bytes, "<|im_start|>");
  EXPECT_EQ(tokenizer_->PieceOf(tokenizer_->id_end()).text + tokenizer_->PieceOf(-1).bytes, "");
}

INSTANTIATE_TEST_SUITE_P(Kinds, TokenizerTest, testing::Values("gpt2", "o200k_removed", "llama2", "gemma"),
                         [](const auto& info) { return std::string(info.param); });

// 300 000 tokens: quadratic work would take minutes.
TEST(StreamDecoderTest, WorkPerTokenDoesNotGrow) {
  const auto tokenizer = Tokenizer::FromJson(KindJson("llama2"));
  ASSERT_TRUE(tokenizer.ok());
  const int32_t byte = (*tokenizer)->TokenToId("<0xE4>");
  StreamDecoder stream(tokenizer->get(), false);
  std::string text;
  for (int i = 0; i < 300'000; ++i) ASSERT_TRUE(stream.Append(byte, &text).ok());
  EXPECT_EQ(text, "");  // a run of byte tokens waits for its end
  ASSERT_TRUE(stream.Flush(&text).ok());
  EXPECT_EQ(text.size(), 300'000 * kReplacementCharacter.size());
}

// A hostile regex in the file makes the text fail, not hang.
TEST(TokenizerLimitsTest, ARegexThatBacktracksWithoutEndIsAnError) {
  const auto tokenizer = Tokenizer::FromJson(R"({"model": {"type": "BPE", "vocab": {"x": 0}, "merges": []},
      "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(x+x+)+y"}, "behavior": "Isolated"}})");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->Encode(std::string(60, 'x') + "zy").status().code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace switchyard::tokenizer
