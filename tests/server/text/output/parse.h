// Runs the parser over a text, cut in every way, and prints what came: "content|reasoning|f(…)" in one line.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/text/output/output_parser.h"

namespace switchyard::text::parse {

// Tools with parameters of every type.
inline ToolTypes Tools() {
  return ToolTypes(nlohmann::ordered_json::parse(R"([
    {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {
      "city": {"type": "string"}, "days": {"type": "integer"}, "exact": {"type": "boolean"},
      "place": {"type": "object"}, "hours": {"type": "array", "items": {"type": "integer"}},
      "unit": {"anyOf": [{"type": "string"}, {"type": "null"}]}, "limit": {"type": ["number", "null"]},
      "mode": {"enum": ["fast", 3]}, "any": {}}}}},
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}},
    {"type": "function", "function": {"name": "add"}}])"));
}

inline OutputFormat Format(absl::string_view tools, absl::string_view reasoning = "") {
  OutputFormat format;
  if (!tools.empty()) format.tools = *FindToolFormat(tools);
  if (!reasoning.empty()) format.reasoning = *FindReasoningFormat(reasoning);
  return format;
}

// "C(…)" content, "R(…)" reasoning, "0:name" or "0:name#id" and "(…)" arguments, "." complete or "!" not.
inline std::string Print(const std::vector<OutputEvent>& events) {
  std::string out;
  for (size_t i = 0; i < events.size(); ++i) {
    const OutputEvent& event = events[i];
    using Kind = OutputEvent::Kind;
    if (event.kind == Kind::kToolBegin) {
      absl::StrAppend(&out, event.index, ":", event.text, event.id.empty() ? "" : "#", event.id);
      continue;
    }
    if (event.kind == Kind::kToolEnd) {
      absl::StrAppend(&out, event.complete ? "." : "!");
      continue;
    }
    const bool joins = i > 0 && events[i - 1].kind == event.kind && events[i - 1].index == event.index;
    if (joins) {
      out.pop_back();
    } else {
      absl::StrAppend(&out, event.kind == Kind::kContent ? "C" : event.kind == Kind::kReasoning ? "R" : "", "(");
    }
    absl::StrAppend(&out, event.text, ")");
  }
  return out;
}

// In pieces that end at `cuts`.  Of tokens of one byte those count whose byte is shown as reasoning.
inline std::vector<OutputEvent> Events(const OutputFormat& format, const OutputOptions& options, absl::string_view text,
                                       const std::vector<size_t>& cuts) {
  OutputParser parser(format, options);
  std::vector<OutputEvent> events;
  for (size_t i = 0; i < text.size(); ++i) parser.AddToken(i);
  size_t at = 0;
  for (const size_t cut : cuts) {
    parser.Push(text.substr(at, cut - at), &events);
    at = cut;
  }
  parser.Push(text.substr(at), &events);
  parser.Finish(&events);
  size_t reasoning = 0;
  for (const OutputEvent& event : events)
    reasoning += event.kind == OutputEvent::Kind::kReasoning ? event.text.size() : 0;
  EXPECT_EQ(static_cast<size_t>(parser.reasoning_tokens()), reasoning) << text;
  return events;
}

// The same for all cuts in two and in three, and byte by byte; each complete call's arguments are a JSON object.
inline std::string Parse(const OutputFormat& format, const OutputOptions& options, absl::string_view text) {
  const std::vector<OutputEvent> whole = Events(format, options, text, {});
  const std::string printed = Print(whole);
  std::vector<size_t> bytes;
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    bytes.push_back(cut);
    EXPECT_EQ(Print(Events(format, options, text, {cut})), printed) << "cut at " << cut;
    EXPECT_EQ(Print(Events(format, options, text, {cut / 3, cut})), printed) << "cut at " << cut / 3 << ", " << cut;
  }
  EXPECT_EQ(Print(Events(format, options, text, bytes)), printed) << "byte by byte";
  std::string arguments;
  for (const OutputEvent& event : whole) {
    if (event.kind == OutputEvent::Kind::kToolBegin) arguments.clear();
    if (event.kind == OutputEvent::Kind::kToolArguments) arguments += event.text;
    if (event.kind == OutputEvent::Kind::kToolEnd && event.complete) {
      EXPECT_TRUE(nlohmann::json::parse(arguments, nullptr, false).is_object()) << arguments;
    }
  }
  return printed;
}

inline std::string Parse(const OutputFormat& format, absl::string_view text) {
  OutputOptions options;
  options.tools = Tools();
  options.reasoning = ReasoningAfterPrompt(format, "");
  return Parse(format, options, text);
}
inline std::string Whole(const OutputFormat& format, absl::string_view text) {
  OutputOptions options;
  options.tools = Tools();
  options.whole_calls = true;
  options.reasoning = ReasoningAfterPrompt(format, "");
  return Parse(format, options, text);
}

struct Case {
  absl::string_view text, events;
  absl::string_view whole = {};  // with whole_calls, if that is different
};

inline void ExpectCases(const OutputFormat& format, const std::vector<Case>& cases) {
  for (const Case& c : cases) {
    SCOPED_TRACE(c.text);
    EXPECT_EQ(Parse(format, c.text), std::string(c.events));
    EXPECT_EQ(Whole(format, c.text), std::string(c.whole.data() == nullptr ? c.events : c.whole));
  }
}

}  // namespace switchyard::text::parse
