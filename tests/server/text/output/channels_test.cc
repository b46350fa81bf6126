// Harmony: messages in channels; also as the openai-harmony library reads them (tests/golden/output).
#include <fstream>

#include "tests/server/text/output/parse.h"

namespace switchyard::text::parse {
namespace {

constexpr absl::string_view kCall = "<|channel|>commentary to=functions.add <|constrain|>json<|message|>";

TEST(OutputParser, Channels) {
  ExpectCases(Format("openai", "openai_gptoss"),
              {{"", ""},
               {"<|channel|>analysis<|message|>2 + 2 < 5.<|end|><|start|>assistant<|channel|>final<|message|>It is "
                "4.<|return|>",
                "R(2 + 2 < 5.)C(It is 4.)"},
               // The end token is not shown.
               {"<|channel|>final<|message|>\nIt is <4>.\n", "C(\nIt is <4>.\n)"},
               {"<|channel|>analysis<|message|>Add.<|end|><|start|>assistant<|channel|>commentary to=functions.add "
                "<|constrain|>json<|message|>{\"a\": {\"b\": \"<|call|>\"}}<|call|>",
                "R(Add.)0:add({\"a\": {\"b\": \"<|call|>\"}})."},
               {absl::StrCat(kCall, "\n{\"s\": \"日本 🙂\"}"), "0:add({\"s\": \"日本 🙂\"})."},
               // The recipient before the channel; without <|constrain|>; in the first header, whose beginning is in
               // the prompt.
               {"<|start|>assistant to=functions.now<|channel|>commentary json<|message|>{}<|call|>", "0:now({})."},
               {" to=functions.now<|channel|>commentary<|message|>{}", "0:now({})."},
               {absl::StrCat(kCall, "<|call|>"), "0:add({})."},
               // Several calls, and what is said before them.
               {absl::StrCat("<|channel|>commentary<|message|>Plan:\n1. add<|end|>", "<|start|>assistant", kCall,
                             "{\"a\": 1}<|end|><|start|>assistant", kCall, "{\"a\": 2}<|call|>"),
                "C(Plan:\n1. add)0:add({\"a\": 1}).1:add({\"a\": 2})."},
               // A function without its namespace, if the request has it; tools of the model's own.
               {"<|channel|>commentary to=now<|message|>{}", "0:now({})."},
               {"<|channel|>commentary to=other<|message|>{}", "C({})"},
               {"<|channel|>analysis to=python code<|message|>print(1)<|call|>", "R(print(1))"}});
}

TEST(OutputParser, BrokenChannels) {
  ExpectCases(
      Format("openai"),
      {{"Just text, to=me.", "C(Just text, to=me.)"},
       {"to=me", "C(to=me)"},
       {" \n", "C( \n)"},
       {"<|end|>\nText<|channel|>final<|message|> more", "C(\nText more)"},
       {"<|channel|>final<|message|>a<|channel|>analysis<|message|>b<|start|>assistant<|channel|>other<|message|>c",
        "C(a)R(b)C(c)"},
       {"<|channel|>final<|end|>", "C(<|channel|>final<|end|>)"},
       {"<|channel|>analysis<|message|>a<|end|><|start|>assistant<|chan", "R(a)"},
       {absl::StrCat(kCall, "add it<|call|><|start|>assistant<|channel|>final<|message|>b"),
        absl::StrCat("C(", kCall, "add itb)")},
       {absl::StrCat(kCall, "{\"a\": nope}<|call|>"), "0:add({\"a\": n)!C(ope})",
        absl::StrCat("C(", kCall, "{\"a\": nope})")},
       {absl::StrCat(kCall, "{\"a\": \"x"), "0:add({\"a\": \"x)!", absl::StrCat("C(", kCall, "{\"a\": \"x)")}});
  const std::string header = absl::StrCat("<|channel|>", std::string(2000, 'x'));
  EXPECT_EQ(Print(Events(Format("openai"), {}, header, {})), absl::StrCat("C(", header, ")"));
}

TEST(OutputParser, ChannelsAsOpenAisLibraryReadsThem) {
  std::ifstream file("tests/golden/output/harmony.json");
  const auto cases = nlohmann::json::parse(file);
  ASSERT_GE(cases.size(), 100u);
  for (const auto& c : cases) {
    const std::string text = c["text"];
    SCOPED_TRACE(text);
    std::vector<OutputEvent> expected;
    EventList list(&expected);
    int calls = 0;
    for (const auto& message : c["messages"]) {
      const std::string content = message["content"];
      const std::string recipient = message["recipient"].is_null() ? "" : message["recipient"];
      if (absl::StartsWith(recipient, "functions.")) {
        list.Add({OutputEvent::Kind::kToolBegin, calls, recipient.substr(10)});
        list.Text(OutputEvent::Kind::kToolArguments, calls, content);
        list.Add({OutputEvent::Kind::kToolEnd, calls++});
      } else {
        list.Text(message["channel"] == "analysis" ? OutputEvent::Kind::kReasoning : OutputEvent::Kind::kContent, -1,
                  content);
      }
    }
    EXPECT_EQ(Parse(Format("openai"), text), Print(expected));
  }
}

TEST(OutputParser, ChannelsWithoutTools) {
  EXPECT_EQ(Parse(Format("", "openai_gptoss"), {}, absl::StrCat(kCall, "{\"a\": 1}<|call|>")), "C({\"a\": 1})");
}

}  // namespace
}  // namespace switchyard::text::parse
