// Tokenizers of GGUF files: the goldens' tokenizer.json as a GGUF file has it, and back, gives the oracle's ids.
#include "server/text/tokenizer/gguf_vocabulary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "server/text/tokenizer/gguf_pre_tokenizers.h"
#include "server/text/tokenizer/tokenizer.h"
#include "tests/server/text/tokenizer/golden_files.h"

namespace switchyard::tokenizer {
namespace {

using Ids = std::vector<int32_t>;
using ::testing::HasSubstr;

// What llama.cpp's converter writes of a tokenizer.json; it owns the texts.
struct Converted {
  std::vector<std::string> tokens;
  std::vector<std::string> merges;
  GgufVocabulary vocabulary;
};

void Convert(const nlohmann::json& json, const std::string& pre, Converted* out) {
  std::vector<int32_t>& types = out->vocabulary.token_type;
  const auto place = [&](const std::string& token, size_t id, GgufTokenType type) {
    while (out->tokens.size() <= id) {
      out->tokens.push_back(absl::StrCat("[PAD", out->tokens.size(), "]"));
      types.push_back(static_cast<int32_t>(GgufTokenType::kUnused));
    }
    out->tokens[id] = token;
    types[id] = static_cast<int32_t>(type);
  };
  for (const auto& [token, id] : json["model"]["vocab"].items()) place(token, id.get<size_t>(), GgufTokenType::kNormal);
  for (const auto& each : json["added_tokens"]) {
    place(each["content"], each["id"], each["special"] ? GgufTokenType::kControl : GgufTokenType::kUserDefined);
  }
  place("[PAD]", out->tokens.size() + 2, GgufTokenType::kUnused);  // a vocabulary that was padded
  for (const auto& merge : json["model"]["merges"]) {
    out->merges.push_back(merge.is_array() ? absl::StrCat(merge[0].get<std::string>(), " ", merge[1].get<std::string>())
                                           : merge.get<std::string>());
  }
  out->vocabulary.model = "gpt2";
  out->vocabulary.pre = pre;
  out->vocabulary.tokens.assign(out->tokens.begin(), out->tokens.end());
  out->vocabulary.merges.assign(out->merges.begin(), out->merges.end());
}

struct Kind {
  const char* golden;
  const char* pre;
};
class GgufGoldenTest : public testing::TestWithParam<Kind> {};

TEST_P(GgufGoldenTest, IdsEqualTheOracles) {
  const auto json = nlohmann::json::parse(KindJson(GetParam().golden));
  Converted converted;
  Convert(json, GetParam().pre, &converted);
  for (const auto& each : json["added_tokens"]) {
    if (each["content"] == "<|endoftext|>") converted.vocabulary.bos_token_id = each["id"].get<int32_t>();
  }
  const auto text = TokenizerJsonOf(converted.vocabulary);
  ASSERT_TRUE(text.ok()) << text.status();
  const auto tokenizer = Tokenizer::FromJson(*text);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const auto lines = ReadGoldenLines("lines/lines.jsonl");
  const auto expected = ReadGoldenLines(absl::StrCat(GetParam().golden, "/expected.jsonl"));
  ASSERT_GE(lines.size(), 10'000u);
  // A GGUF file cannot say that a token takes the spaces around it, or is only a whole word.
  std::vector<std::string> lost;
  for (const auto& each : json["added_tokens"]) {
    if (each["lstrip"] || each["rstrip"] || each["single_word"] || each["normalized"]) lost.push_back(each["content"]);
  }
  int different = 0;
  size_t compared = 0;
  for (size_t i = 0; i < lines.size() && different < 5; ++i) {
    const auto& line = lines[i].get_ref<const std::string&>();
    const auto has = [&](const std::string& token) { return line.find(token) != std::string::npos; };
    if (std::any_of(lost.begin(), lost.end(), has)) continue;
    ++compared;
    const auto plain = expected[i].at("i").get<Ids>();
    const auto ids = (*tokenizer)->Encode(line, {.add_special_tokens = false});
    const auto with_special = (*tokenizer)->Encode(line);
    ASSERT_TRUE(ids.ok() && with_special.ok()) << ids.status();
    if (*ids == plain && *with_special == expected[i].value("s", plain)) continue;
    ++different;
    ADD_FAILURE() << "line " << i << " " << lines[i].dump() << "\ngot  " << testing::PrintToString(*ids) << "\nwant "
                  << testing::PrintToString(plain);
  }
  EXPECT_GE(compared, 9'000u);
}

INSTANTIATE_TEST_SUITE_P(Kinds, GgufGoldenTest,
                         testing::Values(Kind{"gpt2", "gpt-2"}, Kind{"llama3", "llama-bpe"}, Kind{"qwen", "qwen2"}),
                         [](const auto& each) { return std::string(each.param.golden); });

// Each kind of pre-tokenizer, and the other names of its models, against tokenizers with the published regexes.
TEST(GgufVocabularyTest, PreTokenizersSplitAsPublished) {
  std::ifstream file("tests/golden/gguf/pre_tokenizers.json");
  const auto golden = nlohmann::json::parse(file);
  const auto tokens = golden["tokens"].get<std::vector<std::string>>();
  const auto merges = golden["merges"].get<std::vector<std::string>>();
  const auto lines = golden["lines"].get<std::vector<std::string>>();
  ASSERT_GE(lines.size(), 400u);
  const std::map<std::string, std::string> same_as = {
      {"phi-2", "gpt-2"},   {"llama3", "llama-bpe"},         {"llama-v3", "llama-bpe"},     {"smaug-bpe", "dbrx"},
      {"glm4", "dbrx"},     {"chatglm-bpe", "dbrx"},         {"deepseek-r1-qwen", "qwen2"}, {"hunyuan", "qwen2"},
      {"llama4", "gpt-4o"}, {"minimax-m2", "gpt-4o"},        {"bailingmoe2", "bailingmoe"}, {"starcoder", "refact"},
      {"smollm", "refact"}, {"hunyuan-dense", "deepseek-v3"}};
  size_t kinds = 0;
  for (const GgufPreTokenizer& each : GgufPreTokenizers()) {
    const auto other = same_as.find(each.name);
    const std::string name = other == same_as.end() ? each.name : other->second;
    kinds += other == same_as.end();
    const auto text = TokenizerJsonOf({.model = "gpt2",
                                       .pre = each.name,
                                       .tokens = {tokens.begin(), tokens.end()},
                                       .merges = {merges.begin(), merges.end()}});
    ASSERT_TRUE(text.ok()) << text.status();
    const auto tokenizer = Tokenizer::FromJson(*text);
    ASSERT_TRUE(tokenizer.ok()) << each.name << ": " << tokenizer.status();
    const nlohmann::json& expected = golden["ids"].at(name);
    int different = 0;
    for (size_t i = 0; i < lines.size() && different < 3; ++i) {
      const auto ids = (*tokenizer)->Encode(lines[i], {.add_special_tokens = false});
      ASSERT_TRUE(ids.ok()) << ids.status();
      if (*ids == expected[i].get<Ids>()) continue;
      ++different;
      ADD_FAILURE() << each.name << ": " << nlohmann::json(lines[i]).dump() << "\ngot  " << testing::PrintToString(*ids)
                    << "\nwant " << expected[i].dump();
    }
  }
  EXPECT_EQ(kinds, golden["ids"].size());
}

// A vocabulary with scores against the ids of SentencePiece itself.
TEST(GgufVocabularyTest, ScoresMergeAsInSentencePiece) {
  std::ifstream file("tests/golden/gguf/score_vocabulary.json");
  const auto golden = nlohmann::json::parse(file);
  const auto tokens = golden["tokens"].get<std::vector<std::string>>();
  const GgufVocabulary vocabulary = {.model = "llama",
                                     .tokens = {tokens.begin(), tokens.end()},
                                     .token_type = golden["token_type"],
                                     .scores = golden["scores"],
                                     .bos_token_id = golden["bos"].get<int32_t>(),
                                     .eos_token_id = golden["eos"].get<int32_t>()};
  const auto text = TokenizerJsonOf(vocabulary);
  ASSERT_TRUE(text.ok()) << text.status();
  const auto tokenizer = Tokenizer::FromJson(*text);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const auto lines = ReadGoldenLines("lines/lines.jsonl");
  int different = 0;
  for (const auto& [number, expected] : golden["ids"].items()) {
    const auto& line = lines[std::stoul(number)].get_ref<const std::string&>();
    const auto has = [&](const char* token) { return line.find(token) != std::string::npos; };
    if (line.empty() || has("<s>") || has("</s>") || has("<unk>")) continue;  // texts to SentencePiece
    const auto ids = (*tokenizer)->Encode(line, {.add_special_tokens = false});
    ASSERT_TRUE(ids.ok()) << ids.status();
    different += *ids != expected.get<Ids>();
    EXPECT_EQ(*ids, expected.get<Ids>()) << nlohmann::json(line).dump();
    if (different == 5) break;
    const auto with_special = (*tokenizer)->Encode(line);
    EXPECT_EQ(with_special->front(), 1);
    const auto decoded = (*tokenizer)->Decode(*ids, /*skip_special_tokens=*/true);
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(*decoded, absl::StrReplaceAll(line, {{"\u2581", " "}}));  // the mark itself is lost
  }
}

TEST(GgufVocabularyTest, AddsBosAndEosAsTheFileSays) {
  GgufVocabulary vocabulary = {.model = "gpt2",
                               .pre = "gpt-2",
                               .tokens = {"a", "b", "<s>", "</s>"},
                               .token_type = {1, 1, 3, 3},
                               .bos_token_id = 2,
                               .eos_token_id = 3};
  const auto ids = [&]() -> Ids {
    const auto text = TokenizerJsonOf(vocabulary);
    EXPECT_TRUE(text.ok()) << text.status();
    const auto tokenizer = Tokenizer::FromJson(*text);
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    return *(*tokenizer)->Encode("ab");
  };
  EXPECT_EQ(ids(), (Ids{0, 1}));
  vocabulary.add_bos_token = true;
  EXPECT_EQ(ids(), (Ids{2, 0, 1}));
  vocabulary.add_eos_token = true;
  EXPECT_EQ(ids(), (Ids{2, 0, 1, 3}));
  vocabulary.add_bos_token = std::nullopt;
  vocabulary.pre = "llama-bpe";
  EXPECT_EQ(ids(), (Ids{2, 0, 1, 3}));
  vocabulary.add_bos_token = false;
  EXPECT_EQ(ids(), (Ids{0, 1, 3}));
}

TEST(GgufVocabularyTest, RefusesWhatItDoesNotUnderstand) {
  struct Case {
    std::function<void(GgufVocabulary*)> change;
    std::string error;
  };
  const Case cases[] = {
      {[](GgufVocabulary* v) { v->model = "t5"; },
       "key \"tokenizer.ggml.model\": expected \"gpt2\" (byte-level BPE) or \"llama\" (SentencePiece's BPE), found "
       "\"t5\""},
      {[](GgufVocabulary* v) { v->model = "llama"; },
       "key \"tokenizer.ggml.scores\": expected 2 scores, as there are tokens, found 0"},
      {[](GgufVocabulary* v) { v->pre = "viking"; },
       "key \"tokenizer.ggml.pre\": unknown pre-tokenizer \"viking\"; known: gpt-2, phi-2, olmo"},
      {[](GgufVocabulary* v) { v->pre = ""; }, "unknown pre-tokenizer \"\"; known: gpt-2, phi-2"},
      {[](GgufVocabulary* v) { v->tokens.resize(2000, "x"); },
       "key \"tokenizer.ggml.merges\": are missing, of a vocabulary of 2000 tokens"},
      {[](GgufVocabulary* v) { v->tokens.clear(); },
       "key \"tokenizer.ggml.tokens\": expected 1 to 4194303 tokens, found 0"},
      {[](GgufVocabulary* v) { v->token_type = {1}; },
       "key \"tokenizer.ggml.token_type\": expected 2 types, as there are tokens, found 1"},
      {[](GgufVocabulary* v) {
         v->token_type = {1, 7};
       },
       "token 1: unknown type 7, expected 1 to 6"},
      {[](GgufVocabulary* v) { v->tokens[1] = "a"; }, "token 1 \"a\" is there twice"},
      {[](GgufVocabulary* v) { v->bos_token_id = 2; }, "key \"tokenizer.ggml.bos_token_id\": expected 0 to 1, found 2"},
      {[](GgufVocabulary* v) { v->eos_token_id = -1; },
       "key \"tokenizer.ggml.eos_token_id\": expected 0 to 1, found -1"},
      {[](GgufVocabulary* v) { v->add_bos_token = true; }, "bos_token_id\": is missing, and add_bos_token is true"},
      {[](GgufVocabulary* v) { v->add_eos_token = true; }, "eos_token_id\": is missing, and add_eos_token is true"},
  };
  for (const Case& each : cases) {
    GgufVocabulary vocabulary = {.model = "gpt2", .pre = "gpt-2", .tokens = {"a", "b"}};
    each.change(&vocabulary);
    EXPECT_THAT(TokenizerJsonOf(vocabulary).status().message(), HasSubstr(each.error));
  }
}

}  // namespace
}  // namespace switchyard::tokenizer
