// A model's templates and special tokens: where they are found, and which template a request uses.
#include "server/text/chat_template/model_chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace switchyard::text {
namespace {

using Json = nlohmann::ordered_json;
using testing::HasSubstr;

class ModelChatTemplateTest : public testing::Test {
 protected:
  void SetUp() override {
    dir_ = std::filesystem::path(testing::TempDir()) /
           (std::string("chat_template_") + testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(dir_);
    std::filesystem::create_directories(dir_);
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  void Write(const std::string& name, const std::string& text) { std::ofstream(dir_ / name, std::ios::binary) << text; }
  void WriteConfig(const Json& json) { Write("tokenizer_config.json", json.dump()); }
  absl::StatusOr<ModelChatTemplate> Load(const std::string& override_file = "") {
    return ModelChatTemplate::Load(*ModelDir::Open(dir_.string()), dir_.string(), override_file);
  }
  absl::StatusOr<std::string> Render(const ChatRequest& request) {
    auto model = Load();
    if (!model.ok()) return model.status();
    auto chat = model->RenderChat(request, {absl::UnixEpoch(), absl::UTCTimeZone()});
    if (!chat.ok()) return chat.status();
    return std::move(chat->text);
  }
  static ChatRequest Hello() {
    ChatRequest request;
    request.messages = Json::array({{{"role", "user"}, {"content", "hi"}}});
    return request;
  }

  std::filesystem::path dir_;
};

TEST_F(ModelChatTemplateTest, TokensAsTextAndAsAddedTokens) {
  WriteConfig(
      {{"bos_token", "<s>"},
       {"eos_token", {{"__type", "AddedToken"}, {"content", "</s>"}, {"lstrip", false}}},
       {"pad_token", nullptr},
       {"chat_template", "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}{{ pad_token }}{{ unk_token }}"}});
  Write("special_tokens_map.json", R"({"unk_token": {"content": "<unk>"}, "bos_token": "not me"})");
  EXPECT_EQ(*Render(Hello()), "<s>hi</s><unk>");
}

TEST_F(ModelChatTemplateTest, TheJinjaFileWinsOverTheConfigAndTheFlagOverBoth) {
  WriteConfig({{"chat_template", "config"}});
  EXPECT_EQ(*Render(Hello()), "config");
  Write("chat_template.jinja", "file\n");
  EXPECT_EQ(*Render(Hello()), "file");
  Write("other.jinja", "flag");
  const auto model = Load((dir_ / "other.jinja").string());
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->RenderChat(Hello(), {})->text, "flag");
}

TEST_F(ModelChatTemplateTest, ToolsSelectToolUse) {
  WriteConfig({{"chat_template", Json::array({{{"name", "default"}, {"template", "plain {{ tools }}"}},
                                              {{"name", "tool_use"}, {"template", "tools {{ tools | length }}"}},
                                              {{"name", "rag"}, {"template", "{% not parsed"}}})}});
  EXPECT_EQ(*Render(Hello()), "plain None");
  ChatRequest request = Hello();
  request.tools = Json::array({Json::object()});
  EXPECT_EQ(*Render(request), "tools 1");
}

// The files with which transformers saves a model with several templates.
TEST_F(ModelChatTemplateTest, ToolsSelectTheFileToolUse) {
  std::filesystem::create_directories(dir_ / "additional_chat_templates");
  Write("additional_chat_templates/rag.jinja", "{% not parsed");
  Write("chat_template.jinja", "plain");
  Write("additional_chat_templates/tool_use.jinja", "tools {{ tools | length }}");
  EXPECT_EQ(*Render(Hello()), "plain");
  ChatRequest request = Hello();
  request.tools = Json::array();
  EXPECT_EQ(*Render(request), "tools 0");
  request.tools.push_back(Json::object());
  EXPECT_EQ(*Render(request), "tools 1");
  std::filesystem::remove(dir_ / "chat_template.jinja");
  WriteConfig({{"chat_template", "config"}});
  EXPECT_THAT(std::string(Render(Hello()).status().message()), HasSubstr("has one for tools only"));
  Write("additional_chat_templates/default.jinja", "named");
  EXPECT_EQ(*Render(Hello()), "named");
  Write("additional_chat_templates/tool_use.jinja", "{% bad");
  EXPECT_THAT(std::string(Load().status().message()), HasSubstr("additional_chat_templates/tool_use.jinja: "));
}

TEST_F(ModelChatTemplateTest, KeysThatAreNullAreLeftOut) {
  WriteConfig({{"chat_template", "{{ messages[0] | tojson }}"}});
  ChatRequest request;
  request.messages = Json::parse(R"([{"x": null, "role": "user", "content": null, "y": [null]}])");
  EXPECT_EQ(*Render(request), R"({"role": "user", "y": [null]})");
}

TEST_F(ModelChatTemplateTest, VariablesAndTheirPrecedence) {
  WriteConfig(
      {{"bos_token", "<s>"},
       {"chat_template",
        "{{ bos_token }} {{ add_generation_prompt }} {{ tools }} {{ documents }} {{ mode }} {{ messages | length }}"}});
  ChatRequest request = Hello();
  EXPECT_EQ(*Render(request), "<s> False None None  1");
  request.add_generation_prompt = true;
  request.template_args = {{"bos_token", "<B>"}, {"mode", "fast"}, {"messages", 5}};
  EXPECT_EQ(*Render(request), "<B> True None None fast 1");
}

TEST_F(ModelChatTemplateTest, Faults) {
  EXPECT_EQ(Load().status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(Load().status().message()), HasSubstr("--chat_template=FILE"));
  EXPECT_EQ(Load("no/such/file").status().code(), absl::StatusCode::kNotFound);
  for (const char* config : {"{", "[]", R"({"chat_template": 5})", R"({"chat_template": [{"name": "default"}]})",
                             R"({"chat_template": "{% if"})"}) {
    Write("tokenizer_config.json", config);
    EXPECT_EQ(Load().status().code(), absl::StatusCode::kInvalidArgument) << config;
    EXPECT_THAT(std::string(Load().status().message()), HasSubstr("tokenizer_config.json")) << config;
  }
  Write("tokenizer_config.json", "{\"bos_token\": " + std::string(1'000'000, '[') + std::string(1'000'000, ']') + "}");
  EXPECT_THAT(std::string(Load().status().message()),
              HasSubstr("tokenizer_config.json: nested 1000001 deep, limit 64"));
  std::string many = "{\"x\": 0";  // one object's: linear lookups would take hours
  for (int i = 0; i < 400'000; ++i) many += ",\"" + std::to_string(i) + "\":0";
  Write("tokenizer_config.json", many + "}");
  EXPECT_EQ(Load().status().code(), absl::StatusCode::kNotFound);
}

TEST_F(ModelChatTemplateTest, NothingOutsideTheModelsDirectoryIsRead) {
  const std::filesystem::path outside = dir_.string() + "_outside";
  std::ofstream(outside) << "a template";
  std::filesystem::create_symlink(outside, dir_ / "chat_template.jinja");
  EXPECT_EQ(Load().status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(Load().status().message()),
              HasSubstr("chat_template.jinja: its link leads out of the model directory"));
  std::filesystem::remove(dir_ / "chat_template.jinja");
  EXPECT_TRUE(Load(outside.string()).ok()) << "an override may be anywhere";
  std::filesystem::remove(outside);
}

TEST_F(ModelChatTemplateTest, BadRequests) {
  WriteConfig({{"chat_template", "x"}});
  ChatRequest request = Hello();
  request.messages = "text";
  EXPECT_EQ(Render(request).status().code(), absl::StatusCode::kInvalidArgument);
  request.messages = Json::array({5});
  EXPECT_EQ(Render(request).status().code(), absl::StatusCode::kInvalidArgument);
  request = Hello();
  request.tools = "text";
  EXPECT_EQ(Render(request).status().code(), absl::StatusCode::kInvalidArgument);
  request = Hello();
  request.template_args = Json::array();
  EXPECT_EQ(Render(request).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(ModelChatTemplateTest, TheClockIsTheCallers) {
  WriteConfig({{"chat_template", "{{ strftime_now('%Y-%m-%d %H:%M') }}"}});
  const auto model = Load();
  EXPECT_EQ(model->RenderChat(Hello(), {absl::FromUnixSeconds(86400 * 366), absl::FixedTimeZone(3600)})->text,
            "1971-01-02 01:00");
}

// Content parts are passed to a template that supports them, and joined for one that supports text only.
TEST_F(ModelChatTemplateTest, ContentPartsAreJoinedWhereTheTemplateKnowsTextOnly) {
  ChatRequest request;
  request.messages = Json::parse(
      R"([{"role": "user", "content": [{"type": "text", "text": "a"}, "b", {"type": "text", "text": "c"}]}])");
  const auto of = [&](const std::string& source) {
    Write("chat_template.jinja", source);
    const absl::StatusOr<std::string> text = Render(request);
    return text.ok() ? *text : std::string(text.status().message());
  };
  EXPECT_EQ(of("{% for m in messages %}<{{ m.content }}>{% endfor %}"), "<a\nb\nc>");
  EXPECT_EQ(of("{% for m in messages %}{{ '<' + m['content'] + '>' }}{% endfor %}"), "<a\nb\nc>");
  EXPECT_EQ(of("{% for m in messages %}<{{ m.content | trim }}>{% endfor %}"), "<a\nb\nc>");
  EXPECT_EQ(of("{% for m in messages %}<{% if m.content is string %}{{ m.content }}{% endif %}>{% endfor %}"),
            "<a\nb\nc>");
  // Templates that read parts through a macro, a filter or a loop.
  request.messages[0]["content"].erase(1);
  EXPECT_EQ(of("{% for m in messages %}<{% for p in m.content %}[{{ p.text }}]{% endfor %}>{% endfor %}"), "<[a][c]>");
  EXPECT_EQ(of("{% macro show(c) %}{% if c is string %}{{ c }}{% else %}{% for p in c %}[{{ p['text'] }}]{% endfor %}"
               "{% endif %}{% endmacro %}{% for m in messages %}<{{ show(m.content) }}>{% endfor %}"),
            "<[a][c]>");
  EXPECT_EQ(of("{% for m in messages %}{{ m.content | map(attribute='text') | join('+') }}{% endfor %}"), "a+c");
  // A template that fails on the probes gets the content unchanged.
  EXPECT_EQ(
      of("{% if messages | length < 1 or messages[0].content | length != 2 %}{{ raise_exception('no') }}{% endif %}"
         "{{ messages[0].content[1].text }}"),
      "c");
}

}  // namespace
}  // namespace switchyard::text
