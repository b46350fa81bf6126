// Bad tokenizer.json files, each with the place and the text of the error.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "server/text/tokenizer/tokenizer.h"
#include "server/text/tokenizer/tokenizer_config.h"

namespace switchyard::tokenizer {
namespace {

using testing::HasSubstr;

struct BadFile {
  std::string name;
  std::string json;
  std::string message;  // a part of it
};

// Returns a good file with one part replaced.
std::string With(absl::string_view key, absl::string_view value) {
  nlohmann::json file = {
      {"version", "1.0"},
      {"model", {{"type", "BPE"}, {"vocab", {{"a", 0}, {"b", 1}, {"ab", 2}}}, {"merges", {"a b"}}}},
  };
  file[nlohmann::json::json_pointer(std::string(key))] = nlohmann::json::parse(value.begin(), value.end());
  return file.dump();
}

std::string Nested(absl::string_view list, int depth) {
  std::string json = R"({"type": "NFC"})";
  for (int i = 0; i < depth; ++i) json = absl::StrCat(R"({"type": "Sequence", ")", list, R"(": [)", json, "]}");
  return json;
}

std::string Token(int64_t id, absl::string_view content) {
  return absl::StrCat(R"([{"id": )", id, R"(, "content": ")", content, R"("}])");
}

const BadFile kBadFiles[] = {
    {"Empty", "", "t.json: not JSON"},
    {"Truncated", R"({"model": {"type": "BPE", )", "not JSON"},
    {"InvalidUtf8", "{\"model\": \"\xFF\"}", "not JSON"},
    {"MergeOfNothing", With("/model/merges", R"([" a"])"),
     R"(model.merges[0]: expected tokens of model.vocab, found "")"},
    {"NotAnObject", "[1]", "t.json: top level: expected an object, found array of 1"},
    {"Version", With("/version", R"("2.0")"), R"(t.json: version: expected "1.0", found string "2.0")"},
    {"NoModel", R"({"version": "1.0"})", "model: expected an object, found nothing"},
    {"Unigram", With("/model/type", R"("Unigram")"), R"(model.type: expected BPE, WordPiece or WordLevel)"},
    {"NoVocab", With("/model/vocab", "null"), "model.vocab: expected an object, found null"},
    {"EmptyVocab", With("/model/vocab", "{}"), "model.vocab: expected at least one token"},
    {"NegativeId", With("/model/vocab/b", "-1"),
     "model.vocab.b: expected an integer id in [0, 4194303], found number -1"},
    {"HugeId", With("/model/vocab/b", "2147483648"), "model.vocab.b: expected an integer id in [0, 4194303]"},
    {"FloatId", With("/model/vocab/b", "1.5"),
     "model.vocab.b: expected an integer id in [0, 4194303], found number 1.5"},
    {"StringId", With("/model/vocab/b", R"("1")"), "model.vocab.b: expected an integer id"},
    {"Above64Bits", With("/model/vocab/b", "18446744073709551615"), "model.vocab.b: expected an integer id in"},
    {"DuplicateId", With("/model/vocab/b", "0"), "model.vocab: id 0 is given twice"},
    {"NoMerges", With("/model/merges", "null"), "model.merges: expected an array, found null"},
    {"MergeOfUnknown", With("/model/merges", R"(["a b", "a c"])"),
     R"(model.merges[1]: expected tokens of model.vocab, found "c")"},
    {"MergeToUnknown", With("/model/merges", R"([["b", "a"]])"),
     R"(model.merges[0]: expected tokens of model.vocab, found "ba")"},
    {"MergeOfThree", With("/model/merges", R"(["a b c"])"), "model.merges[0]: expected two tokens and one space"},
    {"MergeWithoutSpace", With("/model/merges", R"(["ab"])"), "model.merges[0]: expected two tokens and one space"},
    {"MergeNumber", With("/model/merges", "[7]"), R"(model.merges[0]: expected "left right")"},
    {"Dropout", With("/model/dropout", "0.1"), "model.dropout: expected null or 0"},
    {"UnkNotText", With("/model/unk_token", "7"), "model.unk_token: expected a string, found number 7"},
    {"ByteFallbackWithoutBytes", With("/model/byte_fallback", "true"),
     "model.byte_fallback: the vocabulary has no <0x00>"},
    {"FlagIsNumber", With("/model/fuse_unk", "1"), "model.fuse_unk: expected true or false, found number 1"},
    {"AddedNotArray", With("/added_tokens", "{}"), "added_tokens: expected an array, found object"},
    {"AddedLong", With("/added_tokens", Token(3, std::string(5000, 'x'))),
     "added_tokens[0].content: expected at most 4096 bytes, found 5000"},
    {"AddedNegative", With("/added_tokens", Token(-3, "x")), "added_tokens[0].id: expected an integer in"},
    {"AddedHuge", With("/added_tokens", Token(4294967296, "x")), "added_tokens[0].id: expected an integer in"},
    {"AddedOntoAnother",
     With("/model/vocab", R"({"a": 0, "b": 3, "ab": 2})").insert(1, R"("added_tokens": [{"id": 9, "content": "x"}],)"),
     "added_tokens[0].id: the next free id is 3"},
    {"Normalizer", With("/normalizer", R"({"type": "Precompiled", "precompiled_charsmap": ""})"),
     R"(normalizer.type: expected NFC, NFD)"},
    {"NormalizerNoType", With("/normalizer", "{}"), "normalizer.type: expected a string, found nothing"},
    {"NormalizerDeep", With("/normalizer", Nested("normalizers", 40)), "components are nested deeper than 16"},
    {"NormalizerPattern", With("/normalizer", R"({"type": "Replace", "pattern": {}, "content": ""})"),
     "normalizer.pattern: expected an object with either String or Regex"},
    {"PreTokenizer", With("/pre_tokenizer", R"({"type": "UnicodeScripts"})"), R"(found string "UnicodeScripts")"},
    {"PreTokenizerInSequence",
     With("/pre_tokenizer", R"({"type": "Sequence", "pretokenizers": [{"type": "Digits"}, {"type": "X"}]})"),
     "pre_tokenizer.pretokenizers[1].type: expected ByteLevel"},
    {"SplitBehavior", With("/pre_tokenizer", R"({"type": "Split", "pattern": {"String": " "}, "behavior": "Chop"})"),
     R"(pre_tokenizer.behavior: expected Removed, Isolated)"},
    {"SplitRegex", With("/pre_tokenizer", R"({"type": "Split", "pattern": {"Regex": "(a"}, "behavior": "Isolated"})"),
     "pre_tokenizer.pattern.Regex: regex: missing closing parenthesis"},
    {"MetaspaceReplacement", With("/pre_tokenizer", R"({"type": "Metaspace", "replacement": "ab"})"),
     "pre_tokenizer.replacement: expected one character"},
    {"MetaspaceScheme", With("/pre_tokenizer", R"({"type": "Metaspace", "prepend_scheme": "last"})"),
     "pre_tokenizer.prepend_scheme: expected first, never or always"},
    {"FixedLengthZero", With("/pre_tokenizer", R"({"type": "FixedLength", "length": 0})"),
     "pre_tokenizer.length: expected an integer in"},
    {"Decoder", With("/decoder", R"({"type": "CTC"})"), "decoder.type: expected ByteLevel"},
    {"DecoderStrip", With("/decoder", R"({"type": "Strip", "content": "", "start": 1, "stop": 0})"),
     "decoder.content: expected one character"},
    {"PostProcessor", With("/post_processor", R"({"type": "Other"})"), "post_processor.type: expected ByteLevel"},
    {"TemplateId",
     With("/post_processor",
          R"({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x"}}, {"Sequence": {"id": "A"}}],
      "special_tokens": {"x": {"ids": [99]}}})"),
     "post_processor.special_tokens.x.ids[0]: expected an integer in [0, 2], found number 99"},
    {"TemplateMissing",
     With("/post_processor", R"({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x"}}]})"),
     "post_processor.special_tokens.x.ids: expected an array, found nothing"},
    {"TemplateNoSequence", With("/post_processor", R"({"type": "TemplateProcessing", "single": []})"),
     "expected the sequence A"},
    {"RobertaPair", With("/post_processor", R"({"type": "RobertaProcessing", "cls": ["a"], "sep": ["b", 1]})"),
     "post_processor.cls: expected [token, id]"},
    {"TwoTemplates",
     With("/post_processor",
          R"({"type": "Sequence", "processors": [{"type": "BertProcessing", "cls": ["a", 0], "sep": ["b", 1]},
      {"type": "BertProcessing", "cls": ["a", 0], "sep": ["b", 1]}]})"),
     "at most one processor that adds tokens"},
};

class BadFilesTest : public testing::TestWithParam<BadFile> {};

TEST_P(BadFilesTest, IsRefusedWithThePlaceAndTheReason) {
  const auto tokenizer = Tokenizer::FromJson(GetParam().json, "t.json");
  ASSERT_FALSE(tokenizer.ok());
  EXPECT_EQ(tokenizer.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(tokenizer.status().message()), HasSubstr(GetParam().message));
  EXPECT_LT(tokenizer.status().message().size(), 400u);
}

INSTANTIATE_TEST_SUITE_P(All, BadFilesTest, testing::ValuesIn(kBadFiles),
                         [](const auto& info) { return info.param.name; });

TEST(FilesTest, TheGoodFileIsGood) { EXPECT_TRUE(Tokenizer::FromJson(With("/truncation", "null")).ok()); }

// The following files load, as in HuggingFace.
std::vector<int32_t> EncodeWith(const std::string& json, absl::string_view text, const EncodeOptions& options = {}) {
  const auto tokenizer = Tokenizer::FromJson(json, "t.json");
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  if (!tokenizer.ok()) return {};
  const auto ids = (*tokenizer)->Encode(text, options);
  EXPECT_TRUE(ids.ok()) << ids.status();
  return ids.value_or(std::vector<int32_t>());
}

TEST(FilesTest, OnlyATextThatNeedsAMissingUnkTokenIsRefused) {
  for (const char* unk : {"[UNK]", "", "<x>"}) {
    nlohmann::json file = nlohmann::json::parse(With("/added_tokens", Token(3, "[UNK]")));
    file["model"]["unk_token"] = unk;
    for (const char* type : {"BPE", "WordLevel", "WordPiece"}) {
      file["model"]["type"] = type;
      EXPECT_EQ(EncodeWith(file.dump(), "ab[UNK]"), (std::vector<int32_t>{2, 3})) << type << " " << unk;
      const auto tokenizer = Tokenizer::FromJson(file.dump(), "t.json");
      ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
      const absl::Status status = (*tokenizer)->Encode("c").status();
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_EQ(std::string(status.message()),
                absl::StrCat("text: the tokenizer's vocabulary does not have \"c\", nor the unk_token \"", unk,
                             "\" that would replace it"));
    }
  }
}

TEST(FilesTest, AMissingUnkTokenIsNotNeededWhereBytesStandIn) {
  nlohmann::json file = nlohmann::json::parse(With("/model/unk_token", R"("<unk>")"));
  file["model"]["byte_fallback"] = true;
  EXPECT_EQ(EncodeWith(file.dump(), "ab"), std::vector<int32_t>{2});
  file["model"]["vocab"]["<0x63>"] = 3;
  EXPECT_EQ(EncodeWith(file.dump(), "ccab"), (std::vector<int32_t>{3, 3, 2}));
}

TEST(FilesTest, AnAddedTokenWithoutContentTakesNoId) {
  const char* tokens = R"([{"id": 3, "content": ""}, {"id": 4, "content": "<e>"}])";
  EXPECT_EQ(EncodeWith(With("/added_tokens", tokens), "ab<e>"), (std::vector<int32_t>{2, 3}));
}

TEST(FilesTest, OfATokenThatIsAddedTwiceTheLastEntrySpeaks) {
  const auto twice = [](const char* first, const char* second) {
    return With("/added_tokens",
                absl::StrCat(R"([{"id": 3, "content": "<s>")", first, R"(}, {"id": 9, "content": "<s>")", second,
                             R"(}, {"id": 4, "content": "<e>"}])"));
  };
  const std::string lstrip = R"(, "lstrip": true)";
  const auto with_space = [](std::string json) {
    nlohmann::json file = nlohmann::json::parse(json);
    file["model"]["vocab"][" "] = 3;
    return file.dump();
  };
  EXPECT_EQ(EncodeWith(twice("", ""), "<s>ab<e>"), (std::vector<int32_t>{3, 2, 4}));
  EXPECT_EQ(EncodeWith(with_space(twice("", lstrip.c_str())), "a <s>b"), (std::vector<int32_t>{0, 4, 1}));
  EXPECT_EQ(EncodeWith(with_space(twice(lstrip.c_str(), "")), "a <s>b"), (std::vector<int32_t>{0, 3, 4, 1}));
}

TEST(FilesTest, ATokenThatIsOnceAddedAsSpecialStaysSpecial) {
  for (const char* first : {"true", "false"}) {
    const char* second = std::string(first) == "true" ? "false" : "true";
    const auto tokenizer = Tokenizer::FromJson(
        With("/added_tokens",
             absl::StrCat(R"([{"id": 3, "content": "<s>", "normalized": false, "special": )", first,
                          R"(}, {"id": 3, "content": "<s>", "normalized": false, "special": )", second, "}]")));
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    EXPECT_EQ(*(*tokenizer)->Decode({3, 0}, /*skip_special_tokens=*/true), "a");
    EXPECT_EQ(*(*tokenizer)->Encode("<s>a", {.allow_special = false}), std::vector<int32_t>{0}) << "text, not a token";
  }
}

// Merges whose result is one of their parts: each still joins two symbols into one, so the work ends.
TEST(FilesTest, CyclicMergesEnd) {
  const auto tokenizer = Tokenizer::FromJson(R"({"model": {"type": "BPE", "continuing_subword_prefix": "##",
      "vocab": {"a": 0, "##": 1, "": 2, "##a": 3, "aa": 4}, "merges": ["a ##", " ##a", "a ##a", "aa ##"]}})");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_TRUE((*tokenizer)->Encode(std::string(10'000, 'a')).ok());
}

TEST(FilesTest, DeepNestingOfWhatNobodyReadsIsHarmless) {
  const std::string deep = std::string(1'000'000, '[') + std::string(1'000'000, ']');
  const auto tokenizer = Tokenizer::FromJson(With("/truncation", "null").insert(1, "\"x\": " + deep + ","));
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_FALSE(Tokenizer::FromJson(std::string(1'000'000, '[')).ok());
}

// One added token may begin like another or overlap the next: the first and longest wins.
TEST(FilesTest, OverlappingAddedTokens) {
  const auto tokenizer = Tokenizer::FromJson(With("/added_tokens", R"([{"id": 3, "content": "<x"},
      {"id": 4, "content": "<x>"}, {"id": 5, "content": ">a"}])"));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ(*(*tokenizer)->Encode("a<x>ab<x"), (std::vector<int32_t>{0, 4, 2, 3}));
}

TEST(FilesTest, SparseIdsAreFine) {
  const auto tokenizer = Tokenizer::FromJson(With("/model/vocab", R"({"a": 7, "b": 100000, "ab": 2})"));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->id_end(), 100001);
  EXPECT_EQ((*tokenizer)->vocab_size(), 3);
  EXPECT_EQ((*tokenizer)->IdToToken(5), "");
  EXPECT_EQ(*(*tokenizer)->Encode("abb"), (std::vector<int32_t>{2, 100000}));
}

TEST(TokenizerConfigTest, TokensAreStringsOrObjects) {
  const auto eos_of = [](const char* json) { return *ReadEosToken(json, "c.json"); };
  EXPECT_EQ(eos_of(R"({"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": false}, "pad_token": null})"),
            "</s>");
  EXPECT_EQ(eos_of(R"({"eos_token": "<|end|>", "tokenizer_class": "X"})"), "<|end|>");
  EXPECT_EQ(eos_of(R"({"bos_token": "<s>", "eos_token": null})"), std::nullopt);
}

TEST(TokenizerConfigTest, BadFilesSayWhere) {
  EXPECT_EQ(ReadEosToken("[]", "c.json").status().message(), "c.json: top level: expected an object, found array of 0");
  EXPECT_EQ(ReadEosToken(R"({"bos_token": 7})", "c.json").status().message(),
            "c.json: bos_token: expected a string, found number 7");
  EXPECT_FALSE(ReadEosToken("{", "c.json").ok());
}

TEST(FilesTest, AMissingFileIsNotFound) {
  EXPECT_EQ(Tokenizer::FromFile("no/such/tokenizer.json").status().code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(Tokenizer::FromFile(".").ok());
}

}  // namespace
}  // namespace switchyard::tokenizer
