#include "server/jobs/pack/trained_text.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/jobs/pack/pack_fixture.h"

namespace switchyard::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class TrainedTextTest : public testing::Test {
 protected:
  // Renders three turns, two of them by the assistant.
  absl::StatusOr<TrainedText> Render(const std::string& chat_template, const std::string& eos = "<|end|>") {
    const Document document = *ParseDocument(
        R"({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "q"},
            {"role": "assistant", "content": "one"}, {"role": "user", "content": "r"},
            {"role": "assistant", "content": "two"}]})");
    dir_.Write("chat_template.jinja", chat_template);
    const absl::StatusOr<text::ModelChatTemplate> chat =
        text::ModelChatTemplate::Load(*ModelDir::Open(dir_.path()), dir_.path());
    EXPECT_TRUE(chat.ok()) << chat.status();
    return RenderTrained(document, *chat, eos, nullptr);
  }
  // Returns the trained parts of the text.
  static std::vector<std::string> Trained(const TrainedText& text) {
    std::vector<std::string> parts;
    for (const text::TextSpan& span : text.trained)
      parts.push_back(text.text.substr(span.begin, span.end - span.begin));
    return parts;
  }

  const model::TempDir dir_;
};

TEST_F(TrainedTextTest, TurnsAreFoundByTheirBeginnings) {
  const auto text = Render(kTinyChat);
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(text->text, "s:s<|end|>\nu:q<|end|>\na:one<|end|>\nu:r<|end|>\na:two<|end|>\n");
  EXPECT_THAT(Trained(*text), ElementsAre("one<|end|>", "two<|end|>"));
}

TEST_F(TrainedTextTest, WhatEndsATurnWithoutEosIsTrained) {
  const auto text = Render(
      "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% "
      "endif %}");
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_THAT(Trained(*text), ElementsAre(" one\n", " two\n"));
}

TEST_F(TrainedTextTest, WithoutAGenerationPromptTheHeaderIsTrained) {
  const auto text = Render("{% for m in messages %}[{{ m.role }}]{{ m.content }}<|end|>{% endfor %}");
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_THAT(Trained(*text), ElementsAre("[assistant]one<|end|>", "[assistant]two<|end|>"));
}

// This template prints earlier answers differently, so only `generation` blocks could mark what is trained.
TEST_F(TrainedTextTest, ATemplateThatRewritesEarlierTurnsMustSay) {
  const auto unclear = Render(
      "{% for m in messages %}{% if m.role == 'assistant' and loop.last %}<think>{% endif %}{{ m.content }};{% endfor "
      "%}");
  EXPECT_EQ(unclear.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(unclear.status().message()), HasSubstr("messages[2]: the chat template renders"));
  const auto said = Render(
      "{% for m in messages %}{% if m.role == 'assistant' %}A {% generation %}{% if loop.last %}<think>{% endif %}{{ "
      "m.content }};"
      "{% endgeneration %}{% else %}{{ m.content }};{% endif %}{% endfor %}");
  ASSERT_TRUE(said.ok()) << said.status();
  EXPECT_EQ(said->text, "s;q;A one;r;A <think>two;");
  EXPECT_THAT(Trained(*said), ElementsAre("one;", "<think>two;"));
}

// The place of a captured block's text is unknown, so turns are found as without `generation` blocks.
TEST_F(TrainedTextTest, GenerationInsideAMacroCountsForNothing) {
  const auto text = Render(
      "{% macro turn(m) %}{% generation %}{{ m.content }}{% endgeneration %};{% endmacro %}"
      "{% for m in messages %}{{ turn(m) }}{% endfor %}");
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_THAT(Trained(*text), ElementsAre("one;", "two;"));
}

TEST_F(TrainedTextTest, DatesAreFixed) {
  const auto text = Render("{{ strftime_now('%d %b %Y') }}\n{% for m in messages %}{{ m.content }};{% endfor %}");
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_THAT(text->text, HasSubstr("01 Jan 1970"));
}

// One token per letter, but "ab" and "xy" are one token each, and with `prefix` a text that begins with a letter gets 0
// first.
absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view text, bool prefix) {
  std::vector<int32_t> ids;
  if (prefix && !text.empty() && text[0] != '|') ids.push_back(0);
  for (size_t i = 0; i < text.size(); ++i) {
    const absl::string_view two = text.substr(i, 2);
    const bool pair = two == "ab" || two == "xy";
    ids.push_back(pair ? 1000 + two[0] : text[i]);
    i += pair ? 1 : 0;
  }
  return ids;
}

std::vector<int> MarkedWith(const std::string& text, std::vector<text::TextSpan> spans, bool prefix) {
  const auto encode = [&](absl::string_view part) { return Encode(part, prefix); };
  const std::vector<int32_t> ids = *encode(text);
  const auto trained = MarkTrained({text, std::move(spans)}, ids, encode);
  EXPECT_TRUE(trained.ok()) << trained.status();
  return {trained->begin(), trained->end()};
}

TEST(MarkTrainedTest, TokensOfASpan) {
  EXPECT_THAT(MarkedWith("cdef", {{1, 3}}, false), ElementsAre(0, 1, 1, 0));
  EXPECT_THAT(MarkedWith("cabd", {{1, 3}}, false), ElementsAre(0, 1, 0));
  EXPECT_THAT(MarkedWith("cdef", {{0, 1}, {3, 4}}, false), ElementsAre(1, 0, 0, 1));
  EXPECT_THAT(MarkedWith("cdef", {{0, 4}}, false), ElementsAre(1, 1, 1, 1));
}

TEST(MarkTrainedTest, ATokenOnTheBorderIsTrained) {
  EXPECT_THAT(MarkedWith("cabd", {{2, 4}}, false), ElementsAre(0, 1, 1));
  EXPECT_THAT(MarkedWith("cabd", {{0, 2}}, false), ElementsAre(1, 1, 0));
  EXPECT_THAT(MarkedWith("abxyc", {{1, 3}}, false), ElementsAre(1, 1, 0));
  EXPECT_THAT(MarkedWith("abxyc", {{1, 3}, {4, 5}}, false), ElementsAre(1, 1, 1));
}

// Like tokenizers that put a space before a text: parts of the text do not have the whole's tokens.
TEST(MarkTrainedTest, WhereATextsBeginningIsSpecial) {
  EXPECT_THAT(MarkedWith("cdef", {{1, 3}}, true), ElementsAre(0, 0, 1, 1, 0));
  EXPECT_THAT(MarkedWith("cdabe", {{1, 2}, {3, 5}}, true), ElementsAre(0, 0, 1, 1, 1));
  EXPECT_THAT(MarkedWith("c|ef", {{1, 2}, {2, 4}}, true), ElementsAre(0, 0, 1, 1, 1));
}

}  // namespace
}  // namespace switchyard::server
