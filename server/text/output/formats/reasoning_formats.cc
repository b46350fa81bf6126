// The table of formats of reasoning, and what chat templates and prompts say of the formats.
#include <algorithm>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "scheduler/base/text/quote.h"
#include "server/text/output/formats/output_format.h"

namespace switchyard::text {
namespace {

constexpr absl::string_view kThinkOpen = "<think>", kThinkClose = "</think>";
constexpr absl::string_view kQwenAliases[] = {"mimo", "deepseek_v3", "holo2"};
constexpr absl::string_view kGlm45Aliases[] = {"glm47"};
constexpr absl::string_view kGptOssAliases[] = {"openai", "gpt-oss"};

constexpr ReasoningFormat kReasoningFormats[] = {
    {.name = "deepseek_r1", .open = kThinkOpen, .close = kThinkClose, .begins_inside = true},
    {.name = "glm45", .aliases = kGlm45Aliases, .open = kThinkOpen, .close = kThinkClose},
    {.name = "kimi_k2", .open = kThinkOpen, .close = kThinkClose},
    {.name = "minimax_m2", .open = kThinkOpen, .close = kThinkClose, .begins_inside = true},
    {.name = "mistral", .open = "[THINK]", .close = "[/THINK]", .needs_special_tokens = true},
    {.name = "openai_gptoss", .aliases = kGptOssAliases, .channels = true, .needs_special_tokens = true},
    {.name = "qwen3", .aliases = kQwenAliases, .open = kThinkOpen, .close = kThinkClose},
};

// What of a template's source says which formats the model has: the first row whose texts are all in it.
struct TemplateRow {
  absl::string_view marker, other, tools, reasoning;
};

constexpr TemplateRow kToolRows[] = {
    {"<|channel|>", "<|message|>", "openai", "openai_gptoss"},
    {"<｜tool▁calls▁begin｜>", "```json", "deepseek_v3", "deepseek_r1"},
    {"<｜tool▁calls▁begin｜>", "", "deepseek_v31", "qwen3"},
    {"<minimax:tool_call>", "", "minimax_m2", "minimax_m2"},
    {"<|tool_calls_section_begin|>", "", "kimi_k2", "kimi_k2"},
    {"tool_declare<|im_middle|>", "", "kimi_k2", "kimi_k2"},
    {"<arg_key>", "<arg_value>", "glm45", "glm45"},
    {"<function=", "<parameter=", "qwen3_coder", "qwen3"},
    {"[TOOL_CALLS]", "[ARGS]", "mistral", "mistral"},
    {"[TOOL_CALLS]", "", "mistral_list", "mistral"},
    {"<tool_call>", "", "hermes", "qwen3"},
    {"<|python_tag|>", "", "llama3_json", "qwen3"},
    {"\"name\": function name, \"parameters\":", "", "llama3_json", "qwen3"},
};

template <class Row>
bool Answers(const Row& row, absl::string_view name) {
  return row.name == name || std::find(row.aliases.begin(), row.aliases.end(), name) != row.aliases.end();
}

template <class Row>
absl::StatusOr<const Row*> FindRow(absl::Span<const Row> rows, absl::string_view what, absl::string_view name) {
  for (const Row& row : rows) {
    if (Answers(row, name)) return &row;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "unknown ", what, " ", Quote(name), ": known are ",
      absl::StrJoin(rows, ", ", [](std::string* out, const Row& row) { absl::StrAppend(out, row.name); })));
}

}  // namespace

absl::Span<const ReasoningFormat> ReasoningFormats() { return kReasoningFormats; }

absl::StatusOr<const ToolFormat*> FindToolFormat(absl::string_view name) {
  return FindRow(ToolFormats(), "tool call parser", name);
}

absl::StatusOr<const ReasoningFormat*> FindReasoningFormat(absl::string_view name) {
  return FindRow(ReasoningFormats(), "reasoning parser", name);
}

OutputFormat FormatOfTemplate(absl::string_view chat_template) {
  OutputFormat format;
  absl::string_view reasoning = "qwen3";
  for (const TemplateRow& row : kToolRows) {
    if (!absl::StrContains(chat_template, row.marker) || !absl::StrContains(chat_template, row.other)) continue;
    format.tools = *FindToolFormat(row.tools);
    reasoning = row.reasoning;
    break;
  }
  if (absl::StrContains(chat_template, "[THINK]")) reasoning = "mistral";
  const ReasoningFormat* row = *FindReasoningFormat(reasoning);
  if (row->channels || absl::StrContains(chat_template, row->open) || absl::StrContains(chat_template, row->close)) {
    format.reasoning = row;
  }
  return format;
}

ReasoningStart ReasoningAfterPrompt(const OutputFormat& format, absl::string_view prompt) {
  if (format.reasoning == nullptr || format.reasoning->channels) return ReasoningStart::kOver;
  prompt = absl::StripTrailingAsciiWhitespace(prompt);
  if (absl::EndsWith(prompt, format.reasoning->close)) return ReasoningStart::kOver;
  if (absl::EndsWith(prompt, format.reasoning->open)) return ReasoningStart::kOpen;
  return format.reasoning->begins_inside ? ReasoningStart::kOpen : ReasoningStart::kMayOpen;
}

}  // namespace switchyard::text
