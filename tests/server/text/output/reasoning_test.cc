// Reasoning; the choice of formats by name, template and prompt; forced calls.
#include <gmock/gmock.h>

#include "server/text/output/formats/tool_choice.h"
#include "tests/server/text/output/parse.h"

namespace switchyard::text::parse {
namespace {

std::string ParseFrom(ReasoningStart start, absl::string_view text, absl::string_view reasoning = "qwen3") {
  OutputOptions options;
  options.tools = Tools();
  options.reasoning = start;
  return Parse(Format("hermes", reasoning), options, text);
}

TEST(Reasoning, OpensAtTheBeginningOnly) {
  const auto parse = [](absl::string_view text) { return ParseFrom(ReasoningStart::kMayOpen, text); };
  EXPECT_EQ(parse("<think>\nWell.\n</think>\n\nYes."), "R(\nWell.\n)C(\n\nYes.)");
  EXPECT_EQ(parse("\n<think>Well.</think>Yes <think>."), "R(Well.)C(Yes <think>.)");
  EXPECT_EQ(parse("The tag <think> opens.</think>"), "C(The tag <think> opens.</think>)");
  EXPECT_EQ(parse("<think>\n\n</think>\n\nYes."), "C(\n\nYes.)");
  EXPECT_EQ(parse("<think>\n\n</think>\n\n"), "");
  EXPECT_EQ(parse("<think>It ends he</thi"), "R(It ends he</thi)");
  EXPECT_EQ(parse("<thinking>"), "C(<thinking>)");
  EXPECT_EQ(parse("<think>I call.</think>\n<tool_call>{\"name\": \"now\"}</tool_call>"), "R(I call.)0:now({}).");
  // What is written in reasoning is no call.
  EXPECT_EQ(parse("<think><tool_call>{\"name\": \"now\"}</tool_call></think>No."),
            "R(<tool_call>{\"name\": \"now\"}</tool_call>)C(No.)");
}

TEST(Reasoning, BeginsInThePrompt) {
  EXPECT_EQ(ParseFrom(ReasoningStart::kOpen, "Well.</think>\nYes."), "R(Well.)C(\nYes.)");
  EXPECT_EQ(ParseFrom(ReasoningStart::kOpen, "<think>Well.</think>Yes."), "R(Well.)C(Yes.)");
  EXPECT_EQ(ParseFrom(ReasoningStart::kOpen, "\n\n</think>\n"), "");
  EXPECT_EQ(ParseFrom(ReasoningStart::kOpen, "Well"), "R(Well)");
  EXPECT_EQ(ParseFrom(ReasoningStart::kOver, "<think>Yes.</think>"), "C(<think>Yes.</think>)");
}

TEST(Reasoning, EndsWithACallWhereTheFormatSaysSo) {
  OutputOptions options;
  options.tools = Tools();
  options.reasoning = ReasoningStart::kOpen;
  const OutputFormat format = Format("qwen3_coder", "qwen3");
  EXPECT_EQ(Parse(format, options, "Hm.\n<tool_call>\n<function=now>\n</function>\n</tool_call>\n"),
            "R(Hm.\n)0:now({}).");
  EXPECT_EQ(Parse(format, options, "Hm <tool_call> and <function=now></function>."),
            "R(Hm <tool_call> and <function=now></function>.)");
}

TEST(Reasoning, AfterThePrompt) {
  const OutputFormat qwen = Format("hermes", "qwen3"), r1 = Format("", "deepseek_r1");
  EXPECT_EQ(ReasoningAfterPrompt(qwen, "<|im_start|>assistant\n"), ReasoningStart::kMayOpen);
  EXPECT_EQ(ReasoningAfterPrompt(qwen, "<|im_start|>assistant\n<think>\n"), ReasoningStart::kOpen);
  EXPECT_EQ(ReasoningAfterPrompt(qwen, "<|im_start|>assistant\n<think>\n\n</think>\n\n"), ReasoningStart::kOver);
  EXPECT_EQ(ReasoningAfterPrompt(r1, "<｜Assistant｜>"), ReasoningStart::kOpen);
  EXPECT_EQ(ReasoningAfterPrompt(r1, "<｜Assistant｜></think>"), ReasoningStart::kOver);
  EXPECT_EQ(ReasoningAfterPrompt(Format("hermes"), "<think>"), ReasoningStart::kOver);
}

TEST(Formats, ByName) {
  for (const char* name : {"hermes", "qwen3_coder", "mistral", "llama3_json", "deepseek_v3", "deepseek_v31", "glm45",
                           "openai", "kimi_k2", "minimax_m2"}) {
    EXPECT_EQ((*FindToolFormat(name))->name, name);
  }
  for (const char* name : {"deepseek_r1", "qwen3", "mistral", "glm45", "openai_gptoss", "kimi_k2", "minimax_m2"}) {
    EXPECT_EQ((*FindReasoningFormat(name))->name, name);
  }
  EXPECT_EQ((*FindToolFormat("qwen3_xml"))->name, "qwen3_coder");
  EXPECT_EQ(FindToolFormat("pythonic").status().message(),
            "unknown tool call parser \"pythonic\": known are deepseek_v3, deepseek_v31, glm45, hermes, kimi_k2, "
            "llama3_json, minimax_m2, mistral, mistral_list, openai, qwen3_coder");
  EXPECT_THAT(std::string(FindReasoningFormat("x").status().message()),
              testing::HasSubstr("unknown reasoning parser \"x\": known are deepseek_r1, glm45,"));
}

std::string NamesOf(absl::string_view chat_template) {
  const OutputFormat format = FormatOfTemplate(chat_template);
  return absl::StrCat(format.tools == nullptr ? "-" : format.tools->name, " ",
                      format.reasoning == nullptr ? "-" : format.reasoning->name);
}

// Excerpts of the models' templates.
TEST(Formats, OfATemplate) {
  EXPECT_EQ(NamesOf("{{ messages[0].content }}"), "- -");
  EXPECT_EQ(NamesOf("{{- '<think>\\n' }}"), "- qwen3");
  EXPECT_EQ(NamesOf("within <tool_call></tool_call> XML tags:\\n<tool_call>\\n{\\\"name\\\": <function-name>"),
            "hermes -");
  EXPECT_EQ(NamesOf("<tool_call></tool_call> ... content.split('</think>')[-1] ... '<think>\\n\\n</think>\\n\\n'"),
            "hermes qwen3");
  EXPECT_EQ(NamesOf("<tool_call>\\n<function=example_function_name>\\n<parameter=example_parameter_1>"),
            "qwen3_coder -");
  EXPECT_EQ(NamesOf("{{- \"[TOOL_CALLS] [\" }}"), "mistral_list -");
  EXPECT_EQ(NamesOf("{{- '[TOOL_CALLS]' + name + '[ARGS]' + arguments }} [THINK]"), "mistral mistral");
  EXPECT_EQ(NamesOf("Respond in the format {\"name\": function name, \"parameters\": dictionary of argument name and "
                    "its value}. {{- \"<|python_tag|>\" }}"),
            "llama3_json -");
  EXPECT_EQ(NamesOf("'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + tool['type'] + '<｜tool▁sep｜>' + '\\n' + "
                    "'```json' ... '</think>'"),
            "deepseek_v3 deepseek_r1");
  EXPECT_EQ(NamesOf("'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>'+ name + '<｜tool▁sep｜>' ... '<think>'"),
            "deepseek_v31 qwen3");
  EXPECT_EQ(NamesOf("<tool_call>{function-name}\\n<arg_key>{arg-key-1}</arg_key>\\n<arg_value>...<think>"),
            "glm45 glm45");
  EXPECT_EQ(NamesOf("\"<|start|>assistant<|channel|>analysis<|message|>\""), "openai openai_gptoss");
  EXPECT_EQ(NamesOf("<|tool_calls_section_begin|><|tool_call_begin|>"), "kimi_k2 -");
  EXPECT_EQ(NamesOf("{{ '<|im_system|>tool_declare<|im_middle|>' -}}"), "kimi_k2 -");
  EXPECT_EQ(NamesOf("{%- set toolcall_begin_token = '<minimax:tool_call>' -%} '<think>'"), "minimax_m2 minimax_m2");
}

// What is forced, with arguments behind it, is a call; and so is what is forced without a name.
TEST(ToolChoice, ForcedTextBeginsACall) {
  for (const ToolFormat& tools : ToolFormats()) {
    SCOPED_TRACE(tools.name);
    OutputFormat format;
    format.tools = &tools;
    const bool markup = !tools.parameters.end.empty();
    const std::string arguments = markup ? std::string(tools.parameters.end) : " {}";
    const bool object = absl::EndsWith(tools.force_behind_name, ":");
    const std::string rest = absl::StrCat(arguments, object ? "}" : "");
    EXPECT_THAT(Parse(format, *ForcedCall(tools, "now") + rest),
                testing::ContainsRegex("^0:now(#functions.now:0)?\\(\\{\\}\\)\\.$"));
    EXPECT_THAT(Parse(format, absl::StrCat(*ForcedCall(tools, ""), "now", tools.force_behind_name, rest)),
                testing::ContainsRegex("^0:now(#functions.now:0)?\\(\\{\\}\\)\\.$"));
    EXPECT_EQ(ForcedCall(tools, "a b").status().message(),
              "tool_choice: a function's name is 1 to 256 letters, digits, _ - . / or :, got \"a b\"");
  }
}

}  // namespace
}  // namespace switchyard::text::parse
