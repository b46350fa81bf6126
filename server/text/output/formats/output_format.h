// How a model writes reasoning and tool calls: a table with a row for each format, named as vLLM names its parsers.
//
// All rows are constants; thread-safe.  The tables are tool_formats.cc and reasoning_formats.cc.
//
// What the caller must see to, from the rows: with `needs_special_tokens` the output must be decoded with
// skip_special_tokens=false, as markers are special tokens.  `end_tokens` must be among the stop tokens: the model
// writes one of them behind its calls, and not all of them are in every model's generation_config.json.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace switchyard::text {

// A part of a call.  White space before each part is skipped.
struct CallStep {
  enum class Op : uint8_t {
    kExpect,          // the marker
    kMay,             // the marker, or it is not there
    kWord,            // a word without meaning
    kName,            // a word: the function's name
    kMayId,           // the marker and behind it a word, the call's id; or it is not there
    kObjects,         // {"name": …, "arguments": {…}} ("parameters" is the same), or a list of them; ends the call
    kObjectsOrSteps,  // kObjects if { or [ comes, else the steps behind it
    kArguments,       // a JSON object; ends the call
    kParameters,      // ParameterSyntax; ends the call
  };

  Op op = Op::kExpect;
  absl::string_view marker = {};
};

// Text that begins a call.
struct CallOpener {
  absl::string_view marker;
  int first_step = 0;             // of ToolFormat::steps, behind the marker
  bool known_tools_only = false;  // it is a call only if the request has a tool of that name, as text may look so too
};

// Arguments that are not written as JSON: keys and values between markers.
struct ParameterSyntax {
  absl::string_view key_open = {}, key_close = {};
  absl::string_view value_open = {};  // may be empty: the value begins behind key_close
  absl::string_view value_close = {};
  absl::string_view end = {};    // ends the call
  bool trims_newlines = false;   // a line feed at each end of a value is not part of it
  bool may_miss_close = false;   // a value also ends where key_open or `end` begins
  bool unknown_is_text = false;  // a value of unknown type is text; else it is JSON if it is valid
  // White space where templates write it, which a call that is held to a schema has, too: behind key_close, before
  // value_close, behind value_close.
  absl::string_view behind_key = {}, before_close = {}, behind_close = {};
};

struct ToolFormat {
  absl::string_view name;                            // vLLM's
  absl::Span<const absl::string_view> aliases = {};  // vLLM's and SGLang's further names
  absl::Span<const CallOpener> openers = {};
  absl::Span<const CallStep> steps = {};
  // What may come behind a call and belongs to it, in any order and number.
  absl::Span<const absl::string_view> closers = {};
  ParameterSyntax parameters = {};
  bool bare_objects = false;    // an object of kObjects in the text is a call if it names a tool of the request
  bool name_is_id = false;      // the name is "functions.NAME:3", and this text is the call's id
  bool ends_reasoning = false;  // a call within reasoning is one, and ends it
  bool channels = false;        // harmony: all output is messages in channels (channel_output.h)
  bool needs_special_tokens = false;
  absl::Span<const absl::string_view> end_tokens = {};
  // The text before the name and behind it in a call that is forced (tool_choice.h).
  absl::string_view force_before_name = {}, force_behind_name = {};
  // Of such a call: the text behind its arguments (behind parameters: ParameterSyntax::end and what follows), between
  // its end and the next call's name (empty: there is only one), and behind the last one.
  absl::string_view force_behind_arguments = {}, force_between = {}, force_end = {};

  bool has_json_arguments() const { return parameters.key_open.empty(); }
};

struct ReasoningFormat {
  absl::string_view name;
  absl::Span<const absl::string_view> aliases = {};
  absl::string_view open = {}, close = {};
  bool begins_inside = false;  // output begins within reasoning unless the prompt ended it
  bool channels = false;       // harmony
  bool needs_special_tokens = false;
};

// What an output may have.  A pointer is null where it does not.
struct OutputFormat {
  const ToolFormat* tools = nullptr;
  const ReasoningFormat* reasoning = nullptr;

  bool channels() const {
    return (tools != nullptr && tools->channels) || (reasoning != nullptr && reasoning->channels);
  }
  bool needs_special_tokens() const {
    return (tools != nullptr && tools->needs_special_tokens) ||
           (reasoning != nullptr && reasoning->needs_special_tokens);
  }
};

absl::Span<const ToolFormat> ToolFormats();
absl::Span<const ReasoningFormat> ReasoningFormats();

// By a parser's name (--tool_call_parser, --reasoning_parser).  InvalidArgument lists the known names.
absl::StatusOr<const ToolFormat*> FindToolFormat(absl::string_view name);
absl::StatusOr<const ReasoningFormat*> FindReasoningFormat(absl::string_view name);

// From the markers in a chat template's source; both null if it has none of them.  A template that does not show how
// the model writes calls gives no format: then the name must be given.
OutputFormat FormatOfTemplate(absl::string_view chat_template);

enum class ReasoningStart : uint8_t {
  kMayOpen,  // the output may open reasoning, at its beginning
  kOpen,     // the output begins within reasoning
  kOver,     // there is none
};

// How an output begins that continues `prompt`, the rendered chat: many templates open reasoning there ("<think>\n"),
// and some close it again (enable_thinking=false).
ReasoningStart ReasoningAfterPrompt(const OutputFormat& format, absl::string_view prompt);

}  // namespace switchyard::text
