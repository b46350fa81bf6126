// Comparison of each component with HuggingFace's `tokenizers`: small files, a few hundred texts each.
#include <gtest/gtest.h>

#include "server/text/tokenizer/tokenizer.h"
#include "tests/server/text/tokenizer/golden_files.h"

namespace switchyard::tokenizer {
namespace {

using Ids = std::vector<int32_t>;

class ComponentsTest : public testing::TestWithParam<const char*> {
 protected:
  void CompareIds(const std::string& name, const nlohmann::json& text, bool add_special_tokens, const Ids& want) {
    const auto got = tokenizer_->Encode(text.get_ref<const std::string&>(), {.add_special_tokens = add_special_tokens});
    ASSERT_TRUE(got.ok()) << name << " " << text.dump() << ": " << got.status();
    EXPECT_EQ(*got, want) << name << " " << text.dump() << " -> " << Show(*got) << ", want " << Show(want);
  }

  void CompareText(const std::string& name, const Ids& ids, bool skip_special_tokens, const nlohmann::json& want) {
    const auto got = tokenizer_->Decode(ids, skip_special_tokens);
    ASSERT_TRUE(got.ok()) << name << ": " << got.status();
    EXPECT_EQ(*got, want.get<std::string>()) << name << " of " << Show(ids);
  }

  std::string Show(const Ids& ids) const {
    std::string text;
    for (const int32_t id : ids) {
      const absl::string_view token = tokenizer_->IdToToken(id);
      text.append(token.data(), token.size()).push_back(' ');
    }
    return text;
  }

  std::unique_ptr<const Tokenizer> tokenizer_;
};

TEST_P(ComponentsTest, EqualsTheOracle) {
  int num_files = 0;
  for (const auto& file : ReadGoldenLines("components/cases.jsonl")) {
    const auto name = file.at("name").get<std::string>();
    if (name.rfind(GetParam(), 0) != 0) continue;
    ++num_files;
    auto tokenizer = Tokenizer::FromJson(file.at("json").dump());
    if (!tokenizer.ok()) {
      ADD_FAILURE() << name << ": " << tokenizer.status();
      continue;
    }
    tokenizer_ = *std::move(tokenizer);
    for (const auto& line : file.at("encode")) {
      CompareIds(name, line.at(0), false, line.at(1).get<Ids>());
      CompareIds(name, line.at(0), true, line.back().get<Ids>());
    }
    for (const auto& line : file.at("decode")) {
      CompareText(name, line.at(0).get<Ids>(), false, line.at(1));
      CompareText(name, line.at(0).get<Ids>(), true, line.back());
    }
  }
  EXPECT_GT(num_files, 5);
}

INSTANTIATE_TEST_SUITE_P(Kinds, ComponentsTest,
                         testing::Values("normalizer", "pre_tokenizer", "decoder", "post_processor", "model"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace switchyard::tokenizer
