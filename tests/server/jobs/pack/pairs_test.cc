// Pairs of answers: a line becomes two documents, of which the answers alone are trained.
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/base/io/root_dir.h"
#include "tests/server/jobs/pack/pack_fixture.h"
#include "workers/train/data/token_file.h"

namespace switchyard::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class PairsTest : public PackTest {
 protected:
  // The documents of out.bin, with "_" behind each token that is trained; <|end|> is "$", <|bos|> "^".
  std::vector<std::string> Documents() const {
    const absl::StatusOr<RootDir> root = RootDir::Open(datasets_.path(), "the root");
    EXPECT_TRUE(root.ok());
    const absl::StatusOr<train::TokenFile> file = train::TokenFile::Open(*root, "out.bin");
    if (!file.ok()) return {file.status().ToString()};
    EXPECT_TRUE(file->header().pairs);
    EXPECT_TRUE(file->Verify(1000, [](int64_t, int64_t) { return true; }).ok());
    std::vector<int32_t> ids(static_cast<size_t>(file->header().num_tokens));
    std::vector<uint8_t> trained(ids.size());
    EXPECT_TRUE(file->Read(0, absl::MakeSpan(ids), absl::MakeSpan(trained)).ok());
    std::vector<int64_t> begins(static_cast<size_t>(file->header().num_documents));
    EXPECT_TRUE(file->ReadBegins(0, absl::MakeSpan(begins)).ok());
    begins.push_back(file->header().num_tokens);
    std::vector<std::string> documents;
    for (size_t d = 0; d + 1 < begins.size(); ++d) {
      std::string& text = documents.emplace_back();
      for (auto i = static_cast<size_t>(begins[d]); i < static_cast<size_t>(begins[d + 1]); ++i) {
        absl::StrAppend(&text,
                        ids[i] == 256   ? "$"
                        : ids[i] == 257 ? "^"
                                        : std::string(1, static_cast<char>(ids[i])),
                        trained[i] ? "_" : "");
      }
    }
    return documents;
  }
  std::string Problem(const std::string& line, std::optional<bool> pairs = true) {
    datasets_.Write("in.jsonl", line + "\n");
    PackRequest request = Request();
    request.pairs = pairs;
    request.replace = true;
    const absl::Status status = Pack(request).status();
    EXPECT_TRUE(status.ok() || absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  }
};

TEST_F(PairsTest, OfTexts) {
  ASSERT_TRUE(PackText(R"({"prompt": "ab", "chosen": "c", "rejected": "de", "score": 3}
{"rejected": "no", "chosen": "yes", "prompt": ""}
)")
                  .ok());
  EXPECT_THAT(Documents(), ElementsAre("^abc_$_", "^abd_e_$_", "^y_e_s_$_", "^n_o_$_"));
}

TEST_F(PairsTest, OfConversations) {
  const std::string hi = R"({"role": "user", "content": "hi"})", ok = R"({"role": "assistant", "content": "ok"})",
                    no = R"({"role": "assistant", "content": "no"})", why = R"({"role": "user", "content": "why"})";
  // The common beginning, with an earlier answer in it; a list before both; a text beside lists.
  ASSERT_TRUE(
      PackText(absl::StrCat(R"({"chosen": [)", hi, ",", ok, ",", why, ",", ok, R"(], "rejected": [)", hi, ",", ok, ",",
                            why, ",", no, "]}\n", R"({"prompt": [)", hi, R"(], "chosen": [)", ok, R"(], "rejected": [)",
                            no, ",", why, ",", ok, "]}\n", R"({"prompt": "hi", "chosen": [)", hi, ",", ok,
                            R"(], "rejected": [)", hi, ",", no, "]}\n"))
          .ok());
  EXPECT_THAT(Documents(),
              ElementsAre("u:hi$\na:ok$\nu:why$\na:o_k_$_\n", "u:hi$\na:ok$\nu:why$\na:n_o_$_\n", "u:hi$\na:o_k_$_\n",
                          "u:hi$\na:n_o_$_\nu:why$\na:o_k_$_\n", "u:hi$\na:o_k_$_\n", "u:hi$\na:n_o_$_\n"));
}

// A template that marks answers itself.
TEST_F(PairsTest, WhatATemplateMarksIsTrainedBehindThePromptAlone) {
  WriteModel("chat_template.jinja",
             "{% for m in messages %}{{ m.role[0] }}:{% if m.role == 'assistant' %}{% generation %}{{ m.content "
             "}}<|end|>{% endgeneration %}{% else %}{{ m.content }}{% endif %}\n{% endfor %}{% if "
             "add_generation_prompt %}a:{% endif %}");
  const std::string line = R"({"prompt": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, )"
                           R"({"role": "user", "content": "c"}], "chosen": [{"role": "assistant", "content": "d"}], )"
                           R"("rejected": [{"role": "assistant", "content": "e"}]})";
  ASSERT_EQ(Problem(line), "");
  EXPECT_THAT(Documents(), ElementsAre("u:aa:b$u:ca:d_$_", "u:aa:b$u:ca:e_$_"));
}

TEST_F(PairsTest, BadLinesAreRefused) {
  const std::string user = R"([{"role": "user", "content": "a"}])", yes = R"([{"role": "assistant", "content": "b"}])",
                    no = R"([{"role": "assistant", "content": "c"}])";
  const auto line = [](const std::string& prompt, const std::string& chosen, const std::string& rejected) {
    return absl::StrCat("{", prompt.empty() ? "" : absl::StrCat("\"prompt\": ", prompt, ", "), "\"chosen\": ", chosen,
                        ", \"rejected\": ", rejected, "}");
  };
  const std::pair<std::string, std::string> cases[] = {
      {R"({"prompt": "a", "chosen": "b"})",
       "in.jsonl:1 (byte 0): rejected: is missing; a pair has chosen and rejected"},
      {R"({"prompt": "a", "rejected": "b"})", "chosen: is missing"},
      {R"({"prompt": "a"})", "exactly one of text, messages, prompt with completion is wanted"},
      {R"({"text": "a", "chosen": "b", "rejected": "c"})",
       "exactly one of text, messages, prompt with completion, chosen"},
      {line("", R"("b")", R"("c")"), "prompt: is missing, which goes with texts"},
      {line("3", R"("b")", R"("c")"), "prompt: expected a text, found number"},
      {line(R"("a")", R"("b")", user), "rejected: expected a text, found array"},
      {line(R"("a")", R"("b")", R"("b")"), "chosen, rejected: are equal, so nothing says which one is better"},
      {line(R"("a")", R"("")", R"("b")"), "chosen: is empty"},
      {line(R"("a")", R"("b")", R"("")"), "rejected: is empty"},
      {line(user, yes, R"("c")"), "rejected: expected a list of at least one message, found \"c\""},
      {line(user, "[]", no), "chosen: expected a list of at least one message, found array"},
      {line(user, yes, yes), "chosen, rejected: are equal"},
      {line(user, yes, user), "rejected: none of its 1 messages behind the prompt is the assistant's"},
      {line("", yes, no), "chosen, rejected: their first messages differ, so they have no prompt"},
      {line("7", yes, no), "prompt: expected a list of at least one message, found number"},
      {line(user, R"([{"role": "assistant", "content": ""}])", no), "chosen: its answer is empty"},
      {line(user, yes, R"([{"role": "assistant"}])"), "rejected: its answer is empty"},
      {line(user, R"([{"content": "a"}])", no), "chosen[0].role: is missing"},
      {line(user, R"([{"role": "assistant", "content": 7}])", no), "chosen[0].content: expected a text, found number"},
  };
  for (const auto& [text, problem] : cases) EXPECT_THAT(Problem(text), HasSubstr(problem)) << text;
}

TEST_F(PairsTest, AFileHasPairsAloneOrNone) {
  const std::string pair = R"({"prompt": "a", "chosen": "b", "rejected": "c"})", text = R"({"text": "a"})";
  EXPECT_EQ(Problem(pair, true), "");
  EXPECT_EQ(Problem(text, false), "");
  EXPECT_THAT(Problem(pair, false),
              HasSubstr("in.jsonl:1 (byte 0): chosen, rejected: a pair of answers is for a job "
                        "with dpo (train submit --dpo_beta), or for a file whose first line is a pair"));
  EXPECT_THAT(Problem(text, true), HasSubstr("in.jsonl:1 (byte 0): has no chosen and rejected: a job with dpo"));
  // As the first line is.
  EXPECT_EQ(Problem("\n" + pair, std::nullopt), "");
  EXPECT_EQ(Problem(text, std::nullopt), "");
  EXPECT_THAT(Problem(pair + "\n\n" + text, std::nullopt),
              HasSubstr("in.jsonl:3 (byte 49): has no chosen and rejected"));
  EXPECT_THAT(Problem(text + "\n" + pair, std::nullopt), HasSubstr("in.jsonl:2 (byte 14): chosen, rejected: a pair"));
  EXPECT_THAT(Problem("{}\n" + pair, std::nullopt), HasSubstr("in.jsonl:1 (byte 0): exactly one of text"));
}

}  // namespace
}  // namespace switchyard::server
