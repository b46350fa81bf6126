// A model's output in one of the formats of tool calls and reasoning.  The first two bytes choose formats and options,
// the third how the output is cut.  However it is cut the events are the same; arguments of a complete call are a JSON
// object; without tools and reasoning the content is the output.
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/text/output/calls/json_scanner.h"
#include "server/text/output/output_parser.h"
#include "tests/fuzz/fuzz.h"

namespace switchyard::fuzz {
namespace {

using text::OutputEvent;

std::vector<OutputEvent> Events(const text::OutputFormat& format, const text::OutputOptions& options,
                                absl::string_view output, size_t piece) {
  text::OutputParser parser(format, options);
  std::vector<OutputEvent> events;
  for (size_t at = 0; at < output.size(); at += piece) parser.Push(output.substr(at, piece), &events);
  parser.Finish(&events);
  return events;
}

// The events with what belongs together in one line, and how many bytes of text there are.
std::string Joined(const std::vector<OutputEvent>& events) {
  std::string out;
  const OutputEvent* last = nullptr;
  for (const OutputEvent& event : events) {
    const bool joins = last != nullptr && last->kind == event.kind && last->index == event.index;
    if (!joins)
      absl::StrAppend(&out, "\n", static_cast<int>(event.kind), " ", event.index, event.id, " ", event.complete);
    absl::StrAppend(&out, event.text);
    last = &event;
  }
  return out;
}

void CheckCalls(const std::vector<OutputEvent>& events, bool whole_calls) {
  std::string arguments;
  int index = -1;
  for (const OutputEvent& event : events) {
    if (event.kind == OutputEvent::Kind::kToolBegin) {
      SY_CHECK_EQ(event.index, ++index);
      SY_CHECK(!event.text.empty());
      arguments.clear();
    } else if (event.kind == OutputEvent::Kind::kToolArguments) {
      SY_CHECK_EQ(event.index, index);
      arguments += event.text;
    } else if (event.kind == OutputEvent::Kind::kToolEnd) {
      SY_CHECK(event.complete || !whole_calls);
      // (Halves of surrogate pairs are JSON, but not for the reader here.)
      if (!event.complete || absl::StrContains(absl::AsciiStrToLower(arguments), "\\ud")) continue;
      SY_CHECK(nlohmann::json::parse(Utf8(arguments)).is_object());
    }
  }
}

const nlohmann::ordered_json& Tools() {
  static const auto* const kTools = new nlohmann::ordered_json(nlohmann::ordered_json::parse(R"([
      {"function": {"name": "f", "parameters": {"properties": {"s": {"type": "string"}, "n": {"type": "number"},
       "o": {"type": ["object", "null"]}, "b": {"type": "boolean"}}}}}, {"function": {"name": "g"}}])"));
  return *kTools;
}

}  // namespace

void Fuzz(absl::string_view input) {
  if (input.size() < 3) return;
  const auto byte = [input](size_t i) { return static_cast<unsigned char>(input[i]); };
  const absl::string_view output = input.substr(3);
  const auto tools = text::ToolFormats();
  const auto reasonings = text::ReasoningFormats();
  text::OutputFormat format;
  format.tools = &tools[byte(0) % tools.size()];
  if (byte(0) < 128) format.reasoning = &reasonings[byte(0) % reasonings.size()];
  text::OutputOptions options;
  options.reasoning = static_cast<text::ReasoningStart>(byte(1) % 3);
  options.max_held_bytes = byte(1) < 64 ? 40 : 1 << 20;
  options.whole_calls = byte(1) % 2 == 1;
  if (!format.channels()) {
    text::OutputOptions none = options;
    none.reasoning = text::ReasoningStart::kOver;
    const auto events = Events(format, none, output, output.size() + 1);
    SY_CHECK_EQ(events.size(), output.empty() ? size_t{0} : size_t{1});
    if (!events.empty()) SY_CHECK_EQ(events[0].text, output);
  }
  options.tools = text::ToolTypes(Tools());
  const auto whole = Events(format, options, output, output.size() + 1);
  CheckCalls(whole, options.whole_calls);
  size_t bytes = 0;
  for (const OutputEvent& event : whole) bytes += event.text.size();
  SY_CHECK(bytes <= 6 * output.size() + 2 * whole.size());  // a byte may become an escape, no more
  SY_CHECK_EQ(Joined(whole), Joined(Events(format, options, output, 1 + byte(2) % 32)));
  SY_CHECK_EQ(Joined(whole), Joined(Events(format, options, output, 1)));
}

}  // namespace switchyard::fuzz
