// Comparison with transformers: every snippet, and every family's template with every conversation, gives the same text
// or fails in both.  The golden files and the script that makes them are in tests/golden/chat_template.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>

#include "server/text/chat_template/chat_template.h"
#include "server/text/chat_template/model_chat_template.h"

namespace switchyard::text {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kFolder[] = "tests/golden/chat_template/";

std::string ReadFile(const std::string& name) {
  std::ifstream file(kFolder + name, std::ios::binary);
  EXPECT_TRUE(file.good()) << name;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

ChatTemplateClock ClockOf(const Json& golden) {
  return {absl::FromUnixSeconds(golden["now"].get<int64_t>()), absl::UTCTimeZone()};
}

// Returns "" if the outcome is the expected one, else the difference.
std::string Difference(const Json& expected, const absl::StatusOr<RenderedChat>& got) {
  if (expected.contains("error")) {
    return got.ok() ? "expected the error " + expected["error"].dump() + "\n  got " + Json(got->text).dump() : "";
  }
  if (!got.ok()) return "expected " + expected["text"].dump() + "\n  got error " + std::string(got.status().message());
  if (got->text == expected["text"].get_ref<const std::string&>()) return "";
  return "expected " + expected["text"].dump() + "\n  got      " + Json(got->text).dump();
}

TEST(ChatTemplateGolden, SnippetsRenderAsTransformersDoes) {
  // Deliberate differences, which README.md explains.
  const std::map<std::string, std::string> kOurs = {
      {"{% block b %}x{% endblock %}", "error"},
      {"{% print 1 %}", "error"},
      {"{{ loop }}|{{ caller }}|{{ self is defined }}", "||False"},
      {"{% for x in [1] %}{{ loop }}{% endfor %}", "<LoopContext object>"},
      {"{{ joiner }}|", "<function joiner>|"},
  };
  const Json golden = Json::parse(ReadFile("snippets.json"));
  ASSERT_GE(golden["cases"].size(), 300u);
  std::set<std::string> used;
  for (const Json& test : golden["cases"]) {
    const auto& source = test["template"].get_ref<const std::string&>();
    const auto parsed = ChatTemplate::Parse(source);
    const absl::StatusOr<RenderedChat> got =
        parsed.ok() ? parsed->RenderChat(golden["variables"], ClockOf(golden)) : parsed.status();
    if (const auto ours = kOurs.find(source); ours != kOurs.end()) {
      used.insert(source);
      EXPECT_EQ(got.ok() ? got->text : "error", ours->second) << source;
      continue;
    }
    const std::string difference = Difference(test, got);
    EXPECT_EQ(difference, "") << source;
  }
  EXPECT_EQ(used.size(), kOurs.size());
}

TEST(ChatTemplateGolden, FamiliesRenderAsTransformersDoes) {
  // Templates that support text only: this engine joins content parts for them, transformers does not.
  const std::set<std::string> text_only = {"demo_chatml.jinja", "mixtral_instruct.jinja", "mixtral_tools.jinja",
                                           "olmoe_tulu.jinja",  "qwen2_chatml.jinja",     "qwen3.jinja",
                                           "harmony.jinja"};
  const Json golden = Json::parse(ReadFile("families.json"));
  ASSERT_GE(golden["cases"].size(), 150u);
  for (const Json& test : golden["cases"]) {
    const std::string file = test["template"];
    const Json& given = golden["requests"][test["request"].get<std::string>()];
    ChatRequest request;
    request.messages = given["messages"];
    request.tools = given.value("tools", Json());
    request.add_generation_prompt = given.value("add_generation_prompt", false);
    request.template_args = given.value("template_args", Json::object());
    for (const char* token : {"bos_token", "eos_token"}) {
      request.template_args[token] = std::string(token) == "bos_token" ? "<s>" : "</s>";
    }
    const auto model = ModelChatTemplate::Load(*ModelDir::Open(kFolder), kFolder, kFolder + ("templates/" + file));
    ASSERT_TRUE(model.ok()) << model.status();
    const absl::StatusOr<RenderedChat> got = model->RenderChat(request, ClockOf(golden));
    if (test["request"] == "content parts" && text_only.contains(file)) {
      request.messages[0]["content"] = "Hi";
      ASSERT_TRUE(got.ok()) << file << ": " << got.status();
      EXPECT_EQ(got->text, model->RenderChat(request, ClockOf(golden))->text) << file;
      continue;
    }
    EXPECT_EQ(Difference(test, got), "") << file << ": " << test["request"];
  }
}

}  // namespace
}  // namespace switchyard::text
