// The table of formats of tool calls.
#include "server/text/output/formats/output_format.h"

namespace switchyard::text {
namespace {

using Text = absl::string_view;
using Op = CallStep::Op;

// Hermes and Qwen: <tool_call>{"name": "f", "arguments": {…}}</tool_call>.
constexpr Text kHermesAliases[] = {"qwen", "qwen25"};
constexpr CallOpener kHermesOpeners[] = {{"<tool_call>"}};
constexpr CallStep kHermesSteps[] = {{Op::kObjects}};
constexpr Text kToolCallClosers[] = {"</tool_call>"};
constexpr Text kChatMlEnds[] = {"<|im_end|>"};

// Qwen3-Coder: <tool_call><function=f><parameter=key>\nvalue\n</parameter></function></tool_call>.  Models leave the
// outer marker out at times.
constexpr Text kQwenCoderAliases[] = {"qwen3_xml"};
constexpr CallOpener kQwenCoderOpeners[] = {{"<tool_call>"}, {"<function=", 1, true}};
constexpr CallStep kQwenCoderSteps[] = {
    {Op::kExpect, "<function="}, {Op::kName}, {Op::kExpect, ">"}, {Op::kParameters}};

// GLM-4.5: <tool_call>f\n<arg_key>key</arg_key>\n<arg_value>value</arg_value>\n</tool_call>; GLM-4.7 without line
// feeds.
constexpr Text kGlmAliases[] = {"glm47", "glm"};
constexpr CallStep kNameAndParameters[] = {{Op::kName}, {Op::kParameters}};
constexpr Text kGlmEnds[] = {"<|observation|>", "<|user|>", "<|endoftext|>"};

// MiniMax-M2: <minimax:tool_call><invoke name="f"><parameter name="key">value</parameter></invoke></minimax:tool_call>.
constexpr Text kMiniMaxAliases[] = {"minimax-m2"};
constexpr CallOpener kMiniMaxOpeners[] = {{"<minimax:tool_call>"}, {"<invoke name=\"", 1, true}};
constexpr CallStep kMiniMaxSteps[] = {
    {Op::kExpect, "<invoke name=\""}, {Op::kName}, {Op::kExpect, "\">"}, {Op::kParameters}};
constexpr Text kMiniMaxClosers[] = {"</minimax:tool_call>"};
constexpr Text kMiniMaxEnds[] = {"[e~["};

// Mistral: [TOOL_CALLS] [{"name": "f", "arguments": {…}}, …]; from version 11 of its tokenizer on [TOOL_CALLS]f{…} or
// [TOOL_CALLS]f[ARGS]{…}, also with [CALL_ID]id, again for each call.  Both rows read all of them, and differ in what
// forces a call.
constexpr CallOpener kMistralOpeners[] = {{"[TOOL_CALLS]"}};
constexpr CallStep kMistralSteps[] = {
    {Op::kObjectsOrSteps}, {Op::kName}, {Op::kMayId, "[CALL_ID]"}, {Op::kMay, "[ARGS]"}, {Op::kArguments}};
constexpr Text kEndOfSentence[] = {"</s>"};

// Llama 3: <|python_tag|>{"name": "f", "parameters": {…}}, or without the marker, also within text; several with ;
// between them.
constexpr Text kLlamaAliases[] = {"llama4_json", "llama3"};
constexpr CallOpener kLlamaOpeners[] = {{"<|python_tag|>"}};
constexpr Text kLlamaClosers[] = {";"};
constexpr Text kLlamaEnds[] = {"<|eom_id|>", "<|eot_id|>"};

// DeepSeek V3 and R1: <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{…}\n```
// <｜tool▁call▁end｜>…<｜tool▁calls▁end｜>; V3.1 has only the name before the separator and no fence.
constexpr Text kDeepSeek3Aliases[] = {"deepseekv3"};
constexpr Text kDeepSeek31Aliases[] = {"deepseekv31"};
constexpr CallOpener kDeepSeekOpeners[] = {{"<｜tool▁calls▁begin｜>"}, {"<｜tool▁call▁begin｜>", 1}};
constexpr CallStep kDeepSeek3Steps[] = {{Op::kExpect, "<｜tool▁call▁begin｜>"},
                                        {Op::kWord},
                                        {Op::kExpect, "<｜tool▁sep｜>"},
                                        {Op::kName},
                                        {Op::kExpect, "```json"},
                                        {Op::kArguments}};
constexpr CallStep kDeepSeek31Steps[] = {
    {Op::kExpect, "<｜tool▁call▁begin｜>"}, {Op::kName}, {Op::kExpect, "<｜tool▁sep｜>"}, {Op::kArguments}};
constexpr Text kDeepSeek3Closers[] = {"```", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"};
constexpr Text kDeepSeek31Closers[] = {"<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"};
constexpr Text kDeepSeekEnds[] = {"<｜end▁of▁sentence｜>"};

// Kimi K2: <|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{…}
// <|tool_call_end|>…<|tool_calls_section_end|>.
constexpr CallOpener kKimiOpeners[] = {{"<|tool_calls_section_begin|>"}, {"<|tool_call_begin|>", 1}};
constexpr CallStep kKimiSteps[] = {
    {Op::kExpect, "<|tool_call_begin|>"}, {Op::kName}, {Op::kExpect, "<|tool_call_argument_begin|>"}, {Op::kArguments}};
constexpr Text kKimiClosers[] = {"<|tool_call_end|>", "<|tool_calls_section_end|>"};

// gpt-oss: <|channel|>commentary to=functions.f <|constrain|>json<|message|>{…}<|call|>.
constexpr Text kHarmonyAliases[] = {"gpt-oss", "harmony"};
constexpr CallStep kHarmonySteps[] = {{Op::kArguments}};
constexpr Text kHarmonyEnds[] = {"<|return|>", "<|call|>"};

constexpr ToolFormat kToolFormats[] = {
    {.name = "deepseek_v3",
     .aliases = kDeepSeek3Aliases,
     .openers = kDeepSeekOpeners,
     .steps = kDeepSeek3Steps,
     .closers = kDeepSeek3Closers,
     .needs_special_tokens = true,
     .end_tokens = kDeepSeekEnds,
     .force_before_name = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>",
     .force_behind_name = "\n```json\n",
     .force_behind_arguments = "\n```<｜tool▁call▁end｜>",
     .force_between = "\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>"},
    {.name = "deepseek_v31",
     .aliases = kDeepSeek31Aliases,
     .openers = kDeepSeekOpeners,
     .steps = kDeepSeek31Steps,
     .closers = kDeepSeek31Closers,
     .needs_special_tokens = true,
     .end_tokens = kDeepSeekEnds,
     .force_before_name = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>",
     .force_behind_name = "<｜tool▁sep｜>",
     .force_behind_arguments = "<｜tool▁call▁end｜>",
     .force_between = "<｜tool▁call▁begin｜>"},
    {.name = "glm45",
     .aliases = kGlmAliases,
     .openers = kHermesOpeners,
     .steps = kNameAndParameters,
     .parameters = {.key_open = "<arg_key>",
                    .key_close = "</arg_key>",
                    .value_open = "<arg_value>",
                    .value_close = "</arg_value>",
                    .end = "</tool_call>",
                    .behind_key = "\n",
                    .behind_close = "\n"},
     .needs_special_tokens = true,
     .end_tokens = kGlmEnds,
     .force_before_name = "<tool_call>",
     .force_behind_name = "\n",
     .force_behind_arguments = "</tool_call>",
     .force_between = "\n<tool_call>"},
    {.name = "hermes",
     .aliases = kHermesAliases,
     .openers = kHermesOpeners,
     .steps = kHermesSteps,
     .closers = kToolCallClosers,
     .needs_special_tokens = true,
     .end_tokens = kChatMlEnds,
     .force_before_name = "<tool_call>\n{\"name\": \"",
     .force_behind_name = "\", \"arguments\":",
     .force_behind_arguments = "}\n</tool_call>",
     .force_between = "\n<tool_call>\n{\"name\": \""},
    {.name = "kimi_k2",
     .openers = kKimiOpeners,
     .steps = kKimiSteps,
     .closers = kKimiClosers,
     .name_is_id = true,
     .ends_reasoning = true,
     .needs_special_tokens = true,
     .end_tokens = kChatMlEnds,
     .force_before_name = "<|tool_calls_section_begin|><|tool_call_begin|>functions.",
     .force_behind_name = ":0<|tool_call_argument_begin|>",
     .force_behind_arguments = "<|tool_call_end|>"},
    {.name = "llama3_json",
     .aliases = kLlamaAliases,
     .openers = kLlamaOpeners,
     .steps = kHermesSteps,
     .closers = kLlamaClosers,
     .bare_objects = true,
     .needs_special_tokens = true,
     .end_tokens = kLlamaEnds,
     .force_before_name = "{\"name\": \"",
     .force_behind_name = "\", \"parameters\":",
     .force_behind_arguments = "}"},
    {.name = "minimax_m2",
     .aliases = kMiniMaxAliases,
     .openers = kMiniMaxOpeners,
     .steps = kMiniMaxSteps,
     .closers = kMiniMaxClosers,
     .parameters = {.key_open = "<parameter name=\"",
                    .key_close = "\">",
                    .value_close = "</parameter>",
                    .end = "</invoke>",
                    .trims_newlines = true,
                    .unknown_is_text = true,
                    .behind_close = "\n"},
     .end_tokens = kMiniMaxEnds,
     .force_before_name = "<minimax:tool_call>\n<invoke name=\"",
     .force_behind_name = "\">\n",
     .force_behind_arguments = "</invoke>",
     .force_between = "\n<invoke name=\"",
     .force_end = "\n</minimax:tool_call>"},
    {.name = "mistral",
     .openers = kMistralOpeners,
     .steps = kMistralSteps,
     .needs_special_tokens = true,
     .end_tokens = kEndOfSentence,
     .force_before_name = "[TOOL_CALLS]",
     .force_behind_name = "[ARGS]",
     .force_between = "[TOOL_CALLS]"},
    {.name = "mistral_list",
     .openers = kMistralOpeners,
     .steps = kMistralSteps,
     .needs_special_tokens = true,
     .end_tokens = kEndOfSentence,
     .force_before_name = "[TOOL_CALLS] [{\"name\": \"",
     .force_behind_name = "\", \"arguments\":",
     .force_behind_arguments = "}",
     .force_between = ", {\"name\": \"",
     .force_end = "]"},
    {.name = "openai",
     .aliases = kHarmonyAliases,
     .steps = kHarmonySteps,
     .channels = true,
     .needs_special_tokens = true,
     .end_tokens = kHarmonyEnds,
     .force_before_name = "<|channel|>commentary to=functions.",
     .force_behind_name = " <|constrain|>json<|message|>"},
    {.name = "qwen3_coder",
     .aliases = kQwenCoderAliases,
     .openers = kQwenCoderOpeners,
     .steps = kQwenCoderSteps,
     .closers = kToolCallClosers,
     .parameters = {.key_open = "<parameter=",
                    .key_close = ">",
                    .value_close = "</parameter>",
                    .end = "</function>",
                    .trims_newlines = true,
                    .may_miss_close = true,
                    .unknown_is_text = true,
                    .behind_key = "\n",
                    .before_close = "\n",
                    .behind_close = "\n"},
     .ends_reasoning = true,
     .end_tokens = kChatMlEnds,
     .force_before_name = "<tool_call>\n<function=",
     .force_behind_name = ">\n",
     .force_behind_arguments = "</function>\n</tool_call>",
     .force_between = "\n<tool_call>\n<function="},
};

}  // namespace

absl::Span<const ToolFormat> ToolFormats() { return kToolFormats; }

}  // namespace switchyard::text
