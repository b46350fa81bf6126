// Prompts and completions: no token of the prompt is trained, all of the completion's are, and no text is lost.
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "scheduler/base/io/model_dir.h"
#include "server/jobs/pack/document_encoder.h"
#include "tests/server/tiny_text.h"

namespace switchyard::server {
namespace {

DocumentEncoder Load(const std::string& folder) {
  const absl::StatusOr<ModelDir> dir = ModelDir::Open(folder);
  EXPECT_TRUE(dir.ok()) << dir.status();
  absl::StatusOr<DocumentEncoder> encoder = DocumentEncoder::Load(*dir, "folder");
  EXPECT_TRUE(encoder.ok()) << encoder.status();
  return *std::move(encoder);
}

struct Parts {
  std::vector<int32_t> prompt, completion;  // untrained tokens, and trained ones without EOS
};

Parts Encode(const DocumentEncoder& encoder, const std::string& prompt, const std::string& completion) {
  const Document document = {.kind = DocumentKind::kCompletion, .text = prompt, .completion = completion};
  PackedTokens tokens;
  const absl::Status appended = encoder.Append(document, nullptr, &tokens);
  EXPECT_TRUE(appended.ok()) << appended;
  Parts parts;
  for (size_t i = 0; i < tokens.ids.size(); ++i) {
    (tokens.trained[i] ? parts.completion : parts.prompt).push_back(tokens.ids[i]);
    EXPECT_TRUE(i == 0 || tokens.trained[i] >= tokens.trained[i - 1]) << "the prompt comes first";
  }
  EXPECT_FALSE(parts.completion.empty());
  parts.completion.pop_back();  // EOS
  return parts;
}

std::string Decode(const DocumentEncoder& encoder, const std::vector<int32_t>& ids) {
  return *encoder.tokenizer().Decode(ids, /*skip_special_tokens=*/false);
}

// Cut at every character, also within words of the tokenizer.
TEST(CompletionTest, NoTokenOfManyPromptsIsTrained) {
  const DocumentEncoder encoder = Load("deploy/demo-model");
  const std::string texts[] = {
      "The capital of France is Paris, and that of Germany is Berlin.",
      "Question: what is 12 + 30?\nAnswer: 42\n\nQuestion: why?\n\n\nAnswer:   because it's so; they'll see.",
      "def add(a, b):\n    return a + b\n\n\nprint(add(1, 2))  # 3\n",
      "Größe, naïve café — “quoted” … 数字と漢字 здравствуй мир 🙂🙂 done",
      "unbelievable internationalization misunderstanding counterrevolutionary",
      "   leading and trailing   \t\t  ",
  };
  int64_t prompts = 0;
  for (const std::string& text : texts) {
    for (size_t cut = 0; cut <= text.size(); ++cut) {
      if (cut < text.size() && (static_cast<uint8_t>(text[cut]) & 0xC0) == 0x80) continue;  // within a character
      const std::string prompt = text.substr(0, cut), completion = text.substr(cut);
      const Parts parts = Encode(encoder, prompt, completion);
      const auto served = encoder.tokenizer().Encode(prompt, {.add_special_tokens = false, .allow_special = false});
      EXPECT_EQ(parts.prompt, *served) << prompt;
      EXPECT_EQ(Decode(encoder, parts.prompt), prompt);
      EXPECT_EQ(Decode(encoder, parts.completion), completion) << "behind " << prompt;
      ++prompts;
    }
  }
  EXPECT_GT(prompts, 350);
}

// If the whole text's tokens begin with the prompt's, the completion has the rest of them.
TEST(CompletionTest, AWholeThatBeginsWithThePromptsTokensStays) {
  const DocumentEncoder encoder = Load("deploy/demo-model");
  const std::string prompt = "Question: why?\nAnswer:", completion = " because it is so.";
  Parts parts = Encode(encoder, prompt, completion);
  parts.prompt.insert(parts.prompt.end(), parts.completion.begin(), parts.completion.end());
  EXPECT_EQ(parts.prompt, *encoder.tokenizer().Encode(prompt + completion, {.add_special_tokens = false}));
}

// A tokenizer like Mixtral's puts a space before a text; the completion must not get one.
TEST(CompletionTest, ACompletionGetsNoSpaceOfItsOwn) {
  const nlohmann::json tokenizer = {{"version", "1.0"},
                                    {"added_tokens",
                                     {{{"id", 1},
                                       {"content", "</s>"},
                                       {"special", true},
                                       {"single_word", false},
                                       {"lstrip", false},
                                       {"rstrip", false},
                                       {"normalized", false}}}},
                                    {"normalizer",
                                     {{"type", "Sequence"},
                                      {"normalizers",
                                       {{{"type", "Prepend"}, {"prepend", "▁"}},
                                        {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "▁"}}}}}},
                                    {"decoder",
                                     {{"type", "Sequence"},
                                      {"decoders",
                                       {{{"type", "Replace"}, {"pattern", {{"String", "▁"}}}, {"content", " "}},
                                        {{"type", "ByteFallback"}},
                                        {{"type", "Fuse"}},
                                        {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}}},
                                    {"model",
                                     {{"type", "BPE"},
                                      {"unk_token", "<unk>"},
                                      {"byte_fallback", true},
                                      {"vocab",
                                       {{"<unk>", 0},
                                        {"</s>", 1},
                                        {"▁", 2},
                                        {"f", 3},
                                        {"o", 4},
                                        {"x", 5},
                                        {":", 6},
                                        {"▁x", 7},
                                        {"fo", 8},
                                        {"foo", 9},
                                        {"▁foo", 10},
                                        {"<0x0A>", 11}}},
                                      {"merges", {"▁ x", "f o", "fo o", "▁ foo"}}}}};
  const model::TempDir dir;
  dir.Write("tokenizer.json", tokenizer.dump());
  dir.Write("tokenizer_config.json", R"({"eos_token": "</s>"})");
  const DocumentEncoder encoder = Load(dir.path());
  const Parts cut = Encode(encoder, "x: ", "foo");  // together ▁x : ▁foo
  EXPECT_THAT(cut.prompt, testing::ElementsAre(7, 6, 2));
  EXPECT_THAT(cut.completion, testing::ElementsAre(9));
  const Parts clean = Encode(encoder, "x:", " foo");
  EXPECT_THAT(clean.prompt, testing::ElementsAre(7, 6));
  EXPECT_THAT(clean.completion, testing::ElementsAre(10));
  const Parts word = Encode(encoder, "x: f", "oo");  // together ▁x : ▁foo
  EXPECT_THAT(word.prompt, testing::ElementsAre(7, 6, 2, 3));
  EXPECT_EQ(Decode(encoder, word.completion), "oo");
}

}  // namespace
}  // namespace switchyard::server
