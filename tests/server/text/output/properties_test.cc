// Properties of all formats: cuts do not matter, nothing is lost, memory is bounded, the tables are sound.
#include <algorithm>
#include <random>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "server/text/output/calls/json_scanner.h"
#include "server/text/output/formats/tool_choice.h"
#include "tests/server/text/output/parse.h"

namespace switchyard::text::parse {
namespace {

// Every pair of formats.
std::vector<OutputFormat> AllFormats() {
  std::vector<OutputFormat> formats;
  for (const ToolFormat& tools : ToolFormats()) {
    for (const ReasoningFormat& reasoning : ReasoningFormats()) formats.push_back({&tools, &reasoning});
    formats.push_back({&tools, nullptr});
  }
  return formats;
}

// Markers, pieces of markers, and text.
std::vector<std::string> Vocabulary(const OutputFormat& format) {
  std::vector<std::string> words = {" ",
                                    "\n",
                                    "a",
                                    "<",
                                    "{",
                                    "}",
                                    "\"",
                                    "[",
                                    ",",
                                    "日本",
                                    "\xFF",
                                    "<think>",
                                    "</think>",
                                    "now",
                                    "get_weather",
                                    "{}",
                                    "{\"name\": \"now\", \"arguments\": {\"a\": [1, \"}\"]}}",
                                    "{\"city\": \"x\"}",
                                    "\"name\": \"add\"",
                                    "\"parameters\": {"};
  const ToolFormat& tools = *format.tools;
  for (const CallOpener& opener : tools.openers) words.emplace_back(opener.marker);
  for (const CallStep& step : tools.steps) words.emplace_back(step.marker);
  for (const absl::string_view closer : tools.closers) words.emplace_back(closer);
  const ParameterSyntax& p = tools.parameters;
  for (const absl::string_view marker : {p.key_open, p.key_close, p.value_open, p.value_close, p.end}) {
    words.emplace_back(marker);
  }
  words.emplace_back("city");
  if (format.reasoning != nullptr) words.emplace_back(format.reasoning->open);
  if (format.reasoning != nullptr) words.emplace_back(format.reasoning->close);
  if (format.channels()) {
    for (const char* word : {"<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "analysis", "final",
                             "commentary", " to=functions.now", "assistant"}) {
      words.emplace_back(word);
    }
  }
  words.push_back(words.back().substr(0, words.back().size() / 2));
  return words;
}

// A call in the format, with something wrong in it at times.
std::string RandomCall(const ToolFormat& tools, std::mt19937* random) {
  std::string call = *ForcedCall(tools, (*random)() % 2 == 0 ? "get_weather" : "now");
  const ParameterSyntax& p = tools.parameters;
  if (p.end.empty()) {
    call += "{\"city\": \"a\", \"days\": 2}";
    if (absl::EndsWith(tools.force_behind_name, ":")) call += "}";
  } else {
    absl::StrAppend(&call, p.key_open, "city", p.key_close, p.value_open, "\na", p.value_close, p.key_open, "days",
                    p.key_close, p.value_open, "2", p.value_close, p.end);
  }
  if (!tools.closers.empty()) absl::StrAppend(&call, tools.closers.back());
  if ((*random)() % 4 == 0) call[(*random)() % call.size()] = 'x';
  if ((*random)() % 4 == 0) call.resize((*random)() % call.size());
  return call;
}

TEST(OutputParserProperties, RandomOutputsEndAlikeHoweverTheyAreCut) {
  std::mt19937 random(7);
  int calls = 0, broken = 0;
  for (const OutputFormat& format : AllFormats()) {
    const std::vector<std::string> words = Vocabulary(format);
    for (int round = 0; round < 40; ++round) {
      std::string text;
      for (int i = 0; i < 6; ++i) {
        text += random() % 6 == 0 ? RandomCall(*format.tools, &random) : words[random() % words.size()];
      }
      SCOPED_TRACE(absl::StrCat(format.tools->name, ": ", text));
      OutputOptions options;
      options.tools = Tools();
      options.whole_calls = round % 2 == 1;
      options.reasoning = static_cast<ReasoningStart>(round % 3);
      const std::string printed = Parse(format, options, text);
      calls += absl::StrContains(printed, ").");
      broken += absl::StrContains(printed, "!");
      if (HasFailure()) return;
    }
  }
  // The outputs are such that there is something to see.
  EXPECT_GT(calls, 500);
  EXPECT_GT(broken, 100);
}

// A token counts where its first byte went: the bytes whose tokens count, each asked alone, are the reasoning.
TEST(OutputParserProperties, TokensCountWhereTheirFirstByteWent) {
  std::mt19937 random(9);
  size_t with_reasoning = 0;
  for (const OutputFormat& format : AllFormats()) {
    const std::vector<std::string> words = Vocabulary(format);
    for (int round = 0; round < 6; ++round) {
      std::string text;
      for (int i = 0; i < 6; ++i)
        text += random() % 6 == 0 ? RandomCall(*format.tools, &random) : words[random() % words.size()];
      SCOPED_TRACE(absl::StrCat(format.tools->name, ": ", text));
      OutputOptions options;
      options.tools = Tools();
      options.reasoning = static_cast<ReasoningStart>(round % 3);
      std::string counted, reasoning;
      for (size_t at = 0; at < text.size(); ++at) {
        OutputParser parser(format, options);
        std::vector<OutputEvent> events;
        parser.AddToken(at);
        parser.Push(text, &events);
        parser.Finish(&events);
        if (parser.reasoning_tokens() == 1) counted += text[at];
        reasoning.clear();
        for (const OutputEvent& event : events)
          reasoning += event.kind == OutputEvent::Kind::kReasoning ? event.text : "";
      }
      ASSERT_EQ(counted, reasoning);
      with_reasoning += reasoning.empty() ? 0 : 1;
    }
  }
  EXPECT_GT(with_reasoning, 50u);
}

// Without tools and reasoning an output of tags is what it was; with them, so is one without a marker.
TEST(OutputParserProperties, TextIsNotLost) {
  std::mt19937 random(8);
  for (const OutputFormat& format : AllFormats()) {
    const std::vector<std::string> words = Vocabulary(format);
    std::string text, plain;
    for (int i = 0; i < 200; ++i) {
      const std::string& word = words[random() % words.size()];
      text += word;
      const bool marker = absl::StrContains(word, "<") || absl::StrContains(word, "[") || word == "{";
      plain += marker ? "." : word;
    }
    OutputOptions options;
    options.reasoning = ReasoningStart::kOver;
    if (!format.channels()) {
      EXPECT_EQ(Print(Events(format, options, text, {})), absl::StrCat("C(", text, ")"));
    }
    options.tools = Tools();
    plain = "x" + plain;
    EXPECT_EQ(Print(Events(format, options, plain, {plain.size() / 2})), absl::StrCat("C(", plain, ")"));
  }
}

// Text goes on at once where it can be no marker.
TEST(OutputParserProperties, TextDoesNotWait) {
  for (const OutputFormat& format : AllFormats()) {
    OutputOptions options;
    options.tools = Tools();
    options.reasoning = ReasoningStart::kOver;
    OutputParser parser(format, options);
    std::vector<OutputEvent> events;
    parser.Push("Hello <b", &events);
    EXPECT_EQ(Print(events), "C(Hello <b)");
    parser.Push(" <", &events);
    parser.Push("/b>", &events);
    EXPECT_EQ(Print(events), "C(Hello <b </b>)");
  }
}

TEST(OutputParserProperties, ArgumentsStream) {
  OutputOptions options;
  options.tools = Tools();
  const auto check = [&options](absl::string_view name, absl::string_view first, absl::string_view events) {
    OutputParser parser(Format(name), options);
    std::vector<OutputEvent> list;
    parser.Push(first, &list);
    EXPECT_EQ(Print(list), events) << name;
  };
  check("hermes", "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": \"lon", "0:add({\"a\": \"lon)");
  check("mistral", "[TOOL_CALLS]add[ARGS]{\"a\": [", "0:add({\"a\": [)");
  check("deepseek_v31", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>{\"a", "0:add({\"a)");
  check("openai", "<|channel|>commentary to=functions.add<|message|>{\"a\":", "0:add({\"a\":)");
  check("qwen3_coder", "<tool_call><function=get_weather><parameter=city>\nlong\n", "0:get_weather({\"city\": \"long)");
  check("qwen3_coder", "<tool_call><function=get_weather><parameter=days>\n12", "0:get_weather({\"days\": )");
}

TEST(OutputParserProperties, WhatACallHoldsIsBounded) {
  OutputOptions options;
  options.tools = Tools();
  options.max_held_bytes = 1000;
  const std::string longer(2000, 'x');
  const std::string none = absl::StrCat("<tool_call>{\"other\": \"", longer, "\"}");
  EXPECT_EQ(Print(Events(Format("hermes"), options, none, {})), absl::StrCat("C(", none, ")"));
  const std::string spaces = absl::StrCat("<tool_call>", std::string(2000, ' '), "{\"name\": \"now\"}");
  EXPECT_EQ(Print(Events(Format("hermes"), options, spaces, {})), absl::StrCat("C(", spaces, ")"));
  // Arguments that go on are not held; those of a whole call are.
  const std::string call = absl::StrCat("<tool_call>{\"name\": \"add\", \"arguments\": {\"s\": \"", longer, "\"}}");
  EXPECT_EQ(Print(Events(Format("hermes"), options, call, {})), absl::StrCat("0:add({\"s\": \"", longer, "\"})."));
  options.whole_calls = true;
  EXPECT_EQ(Print(Events(Format("hermes"), options, call, {})), absl::StrCat("C(", call, ")"));
}

// Where a marker begins another, the first would be found always.
TEST(OutputFormats, NoMarkerBeginsAnother) {
  for (const OutputFormat& format : AllFormats()) {
    if (format.channels()) continue;
    std::vector<absl::string_view> markers(format.tools->closers.begin(), format.tools->closers.end());
    for (const CallOpener& opener : format.tools->openers) markers.push_back(opener.marker);
    if (format.reasoning != nullptr) markers.insert(markers.end(), {format.reasoning->open, format.reasoning->close});
    for (size_t i = 0; i < markers.size(); ++i) {
      EXPECT_FALSE(markers[i].empty()) << format.tools->name;
      for (size_t j = 0; j < markers.size(); ++j) {
        if (i == j) continue;
        EXPECT_FALSE(absl::StartsWith(markers[i], markers[j])) << markers[i] << " " << markers[j];
      }
    }
  }
}

TEST(JsonScanner, TakesWhatIsJson) {
  const auto ends = [](absl::string_view text) {
    JsonScanner scanner;
    std::string out;
    for (size_t i = 0; i < text.size(); ++i) {
      const JsonScanner::Step step = scanner.Take(text[i], &out);
      if (step == JsonScanner::Step::kBad) return false;
      if (step == JsonScanner::Step::kMore) continue;
      return step == JsonScanner::Step::kDone ? i + 1 == text.size() : i == text.size() - 1;
    }
    return false;
  };
  std::mt19937 random(9);
  const std::vector<std::string> words = {"{", "}",  "[",   "]", ",",     ":",       "\"a\"", "1",
                                          "0", "-",  ".",   "e", "+",     "true",    "null",  "\"",
                                          " ", "\\", "u12", "5", "false", "{\"a\":", "[1,"};
  int good = 0;
  for (int round = 0; round < 200000; ++round) {
    std::string text = "[";
    const int length = 1 + static_cast<int>(random() % 8);
    for (int i = 0; i < length; ++i) text += words[random() % words.size()];
    const bool valid = nlohmann::json::accept(text) && text.back() != ' ';
    ASSERT_EQ(ends(text), valid) << text;
    good += valid;
  }
  EXPECT_GT(good, 1000);
  EXPECT_TRUE(ends(std::string(kMaxJsonDepth, '[') + std::string(kMaxJsonDepth, ']')));
  EXPECT_FALSE(ends(std::string(kMaxJsonDepth + 1, '[') + std::string(kMaxJsonDepth + 1, ']')));
}

}  // namespace
}  // namespace switchyard::text::parse
