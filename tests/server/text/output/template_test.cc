// What a model's chat template writes of a message with calls is what the parser reads: the models learned to write so.
#include <fstream>
#include <sstream>

#include "server/text/chat_template/chat_template.h"
#include "tests/server/text/output/parse.h"

namespace switchyard::text::parse {
namespace {

using Json = nlohmann::ordered_json;

std::string Template(const std::string& name) {
  std::ifstream file("tests/golden/chat_template/templates/" + name, std::ios::binary);
  EXPECT_TRUE(file.good()) << name;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// The part of the rendered chat that the model would have written: behind the prompt, before `end`.
std::string Output(const std::string& source, const Json& message, absl::string_view end) {
  const auto parsed = ChatTemplate::Parse(source);
  Json variables = {{"messages", Json::array({{{"role", "user"}, {"content", "Hi"}}})}, {"tools", nullptr}};
  variables["bos_token"] = "<s>";
  variables["eos_token"] = "</s>";
  variables["add_generation_prompt"] = true;
  const ChatTemplateClock clock = {absl::UnixEpoch(), absl::UTCTimeZone()};
  const std::string prompt = parsed->RenderChat(variables, clock)->text;
  variables["messages"].push_back(message);
  variables["add_generation_prompt"] = false;
  const std::string chat = parsed->RenderChat(variables, clock)->text;
  EXPECT_TRUE(absl::StartsWith(chat, prompt)) << chat;
  const std::string output = chat.substr(prompt.size());
  return output.substr(0, output.rfind(std::string(end)));
}

Json Call(const char* name, const Json& arguments) {
  return {{"id", "abcdefgh1"}, {"type", "function"}, {"function", {{"name", name}, {"arguments", arguments}}}};
}

const Json kArguments = {{"a", "é \"x\"\n}</tool_call>"}, {"b", {1, {{"c", nullptr}}}}};

TEST(OutputParser, ReadsWhatQwensTemplateWrites) {
  const std::string source = Template("qwen3.jinja");
  const OutputFormat format = FormatOfTemplate(source);
  ASSERT_EQ(format.tools->name, "hermes");
  ASSERT_EQ(format.reasoning->name, "qwen3");
  const Json message = {{"role", "assistant"},
                        {"content", "Ok."},
                        {"reasoning_content", "I call."},
                        {"tool_calls", {Call("add", kArguments), Call("now", Json::object())}}};
  EXPECT_EQ(Parse(format, Output(source, message, "<|im_end|>")),
            absl::StrCat("R(\nI call.\n)C(\n\nOk.\n)",
                         R"(0:add({"a": "é \"x\"\n}</tool_call>", "b": [1, {"c": null}]}).1:now({}).)"));
}

TEST(OutputParser, ReadsWhatMistralsTemplateWrites) {
  const std::string source = Template("mixtral_tools.jinja");
  const OutputFormat format = FormatOfTemplate(source);
  ASSERT_EQ(format.tools->name, "mistral_list");
  ASSERT_EQ(format.reasoning, nullptr);
  const Json message = {{"role", "assistant"}, {"tool_calls", {Call("add", kArguments), Call("now", Json::object())}}};
  EXPECT_EQ(Parse(format, Output(source, message, "</s>")),
            R"(0:add({"a": "é \"x\"\n}</tool_call>", "b": [1, {"c": null}]}).1:now({}).)");
}

TEST(OutputParser, ReadsWhatHarmonysTemplateWrites) {
  const std::string source = Template("harmony.jinja");
  const OutputFormat format = FormatOfTemplate(source);
  ASSERT_NE(format.tools, nullptr);
  ASSERT_EQ(format.tools->name, "openai");
  ASSERT_EQ(format.reasoning->name, "openai_gptoss");
  const Json answer = {{"role", "assistant"}, {"thinking", "2 + 2 < 5."}, {"content", "It is 4."}};
  EXPECT_EQ(Parse(format, Output(source, answer, "<|return|>")), "R(2 + 2 < 5.)C(It is 4.)");
  const Json call = {{"role", "assistant"}, {"thinking", "I call."}, {"tool_calls", {Call("add", kArguments)}}};
  EXPECT_EQ(Parse(format, Output(source, call, "<|call|>")),
            R"(R(I call.)0:add({"a": "é \"x\"\n}</tool_call>", "b": [1, {"c": null}]}).)");
}

}  // namespace
}  // namespace switchyard::text::parse
