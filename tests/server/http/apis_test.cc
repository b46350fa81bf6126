// What the APIs make of an output with reasoning, text and tool calls: whole, and in pieces that are cut anywhere.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "server/http/apis/anthropic.h"
#include "server/http/apis/chat.h"
#include "server/http/apis/completions.h"
#include "server/http/apis/responses.h"
#include "tests/server/http/text_fixture.h"

namespace switchyard::server {
namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr char kOutput[] =
    "<think>Hm, wéather.</think>I look.<tool_call>\n{\"name\": \"get\", \"arguments\": {\"city\": \"Pari\\u0073\", "
    "\"n\": [1, 2]}}\n"
    "</tool_call><tool_call>\n{\"name\": \"get\", \"arguments\": {}}\n</tool_call>";

class ApisTest : public TextFixture {
 protected:
  static json Tool() {
    return {{"type", "function"}, {"function", {{"name", "get"}, {"parameters", {{"type", "object"}}}}}};
  }
  // The pieces are no tokens of this model: how many of them are reasoning, reasoning_tokens_test.cc says.
  static json WithoutDetails(json usage) {
    usage.erase("output_tokens_details");
    return usage;
  }
  // Runs the output through the writer, in pieces of about that many bytes; returns all that it sends.
  static std::string Run(ResponseWriter* writer, const json& request, const std::string& output, size_t piece) {
    const auto requests = writer->Parse(request.dump());
    EXPECT_TRUE(requests.ok()) << requests.status();
    if (!requests.ok()) return "";
    writer->BeginOutput("");
    writer->SetPromptTokens(0, 9);
    std::string sent;
    for (size_t at = 0, end = 0; at < output.size(); at = end) {
      v1::GenerateResponse message;
      // The engine sends whole characters.
      end = std::min(at + piece, output.size());
      while (end < output.size() && (static_cast<uint8_t>(output[end]) & 0xC0) == 0x80) ++end;
      if (at == 0) message.set_request_id("req-77");
      if (at == 0) message.set_model("demo-model");
      message.add_token_ids(static_cast<int32_t>(at));
      message.set_text(output.substr(at, end - at));
      if (end == output.size()) {
        message.mutable_finish()->set_reason(v1::FINISH_REASON_STOP);
        message.mutable_finish()->mutable_usage()->set_prompt_tokens(9);
        message.mutable_finish()->mutable_usage()->set_completion_tokens(31);
      }
      sent += writer->Add(0, message);
    }
    return sent + writer->Finish();
  }
  static std::vector<json> Events(const std::string& stream) {
    std::vector<json> events;
    for (absl::string_view block : absl::StrSplit(stream, "\n\n", absl::SkipEmpty())) {
      const size_t data = block.find("data: ");
      const std::string text(block.substr(data + 6));
      if (text == "[DONE]") continue;
      events.push_back(json::parse(text));
      EXPECT_EQ(nlohmann::ordered_json::parse(text).dump(), text) << "not as the library writes it";
    }
    return events;
  }
};

json ChatBody(bool stream) { return {{"messages", {{{"role", "user"}, {"content", "a"}}}}, {"stream", stream}}; }

TEST_F(ApisTest, ChatHasReasoningContentAndCalls) {
  json request = ChatBody(false);
  request["tools"] = {Tool()};
  const json choice = json::parse(Run(NewChatWriter(text_, 5).get(), request, kOutput, 1000))["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  const json& message = choice["message"];
  EXPECT_EQ(message["reasoning_content"], "Hm, wéather.");
  EXPECT_EQ(message["content"], "I look.");
  ASSERT_EQ(message["tool_calls"].size(), 2u) << message;
  EXPECT_EQ(json::parse(message["tool_calls"][0]["function"]["arguments"].get<std::string>()),
            json({{"city", "Paris"}, {"n", {1, 2}}}));
  EXPECT_NE(message["tool_calls"][0]["id"], message["tool_calls"][1]["id"]);

  request["stream"] = true;
  for (const size_t piece : {1, 2, 3, 7, 50, 1000}) {
    std::string content, reasoning, end;
    std::vector<std::string> names(2), arguments(2), ids(2);
    for (const json& event : Events(Run(NewChatWriter(text_, 5).get(), request, kOutput, piece))) {
      const json& delta = event["choices"][0]["delta"];
      content += delta.value("content", "");
      reasoning += delta.value("reasoning_content", "");
      if (!event["choices"][0]["finish_reason"].is_null()) end = event["choices"][0]["finish_reason"];
      if (!delta.contains("tool_calls")) continue;
      const json& call = delta["tool_calls"][0];
      const size_t index = call["index"];
      names.at(index) += call["function"].value("name", "");
      arguments.at(index) += call["function"].value("arguments", "");
      if (call.contains("id")) ids.at(index) += call["id"].get<std::string>();
    }
    EXPECT_EQ(content, message["content"]) << piece;
    EXPECT_EQ(reasoning, message["reasoning_content"]) << piece;
    EXPECT_EQ(end, "tool_calls");
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(names[i], "get");
      EXPECT_EQ(ids[i], message["tool_calls"][i]["id"]);
      EXPECT_EQ(json::parse(arguments[i]),
                json::parse(message["tool_calls"][i]["function"]["arguments"].get<std::string>()));
    }
  }
}

TEST_F(ApisTest, CallsBehindTheOnlyOneAreLeftOut) {
  json chat = ChatBody(false);
  chat["tools"] = {Tool()};
  chat["parallel_tool_calls"] = false;
  const json choice = json::parse(Run(NewChatWriter(text_, 5).get(), chat, kOutput, 1000))["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  ASSERT_EQ(choice["message"]["tool_calls"].size(), 1u) << choice;
  EXPECT_EQ(choice["message"]["content"], "I look.");
  chat["stream"] = true;
  for (const size_t piece : {1, 7, 1000}) {
    std::string arguments, content;
    for (const json& event : Events(Run(NewChatWriter(text_, 5).get(), chat, kOutput, piece))) {
      const json& delta = event["choices"][0]["delta"];
      content += delta.value("content", "");
      for (const json& call : delta.value("tool_calls", json::array())) {
        EXPECT_EQ(call["index"], 0);
        arguments += call["function"].value("arguments", "");
      }
    }
    EXPECT_EQ(json::parse(arguments), json({{"city", "Paris"}, {"n", {1, 2}}}));
    EXPECT_EQ(content, "I look.");
  }

  json messages = {{"max_tokens", 50},
                   {"messages", chat["messages"]},
                   {"tools", {{{"name", "get"}, {"input_schema", {{"type", "object"}}}}}},
                   {"tool_choice", {{"type", "auto"}, {"disable_parallel_tool_use", true}}}};
  const json answer = json::parse(Run(NewAnthropicWriter(text_).get(), messages, kOutput, 7));
  ASSERT_EQ(answer["content"].size(), 3u) << answer;
  EXPECT_EQ(answer["content"][2]["input"]["city"], "Paris");
  const json response = {
      {"input", "a"}, {"tools", {{{"type", "function"}, {"name", "get"}}}}, {"parallel_tool_calls", false}};
  const json items = json::parse(Run(NewResponsesWriter(text_, 5).get(), response, kOutput, 7))["output"];
  EXPECT_EQ(items.size(), 3u) << items;
}

TEST_F(ApisTest, WithoutToolsCallsAreText) {
  const json choice = json::parse(Run(NewChatWriter(text_, 5).get(), ChatBody(false), kOutput, 4))["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_FALSE(choice["message"].contains("tool_calls"));
  EXPECT_THAT(choice["message"]["content"].get<std::string>(), HasSubstr("<tool_call>"));
}

TEST_F(ApisTest, ACallThatMustBeMadeBeginsTheOutput) {
  json request = ChatBody(false);
  request["tools"] = {Tool()};
  request["tool_choice"] = {{"type", "function"}, {"function", {{"name", "get"}}}};
  const auto writer = NewChatWriter(text_, 5);
  ASSERT_TRUE(writer->Parse(request.dump()).ok());
  EXPECT_THAT(writer->BeginOutput("prompt"), HasSubstr("\"get\""));
  v1::GenerateResponse message;
  message.set_request_id("req-1");
  message.set_text("{\"city\": \"Rome\"}}\n</tool_call>");
  message.mutable_finish()->set_reason(v1::FINISH_REASON_STOP);
  writer->Add(0, message);
  const json call = json::parse(writer->Finish())["choices"][0]["message"]["tool_calls"][0];
  EXPECT_EQ(call["function"]["name"], "get");
  EXPECT_EQ(call["function"]["arguments"], "{\"city\": \"Rome\"}");

  const auto constraint = writer->Constrain(std::nullopt);
  ASSERT_TRUE(constraint.has_value());
  ASSERT_EQ(constraint->calls.size(), 1u);
  EXPECT_EQ(constraint->calls[0].before, "");
  EXPECT_EQ(constraint->between, "");
  EXPECT_EQ(writer->constraint_field(), "tools");
  request["tool_choice"] = "required";
  request["tools"].push_back({{"type", "function"}, {"function", {{"name", "put"}, {"strict", true}}}});
  const auto any = NewChatWriter(text_, 5);
  ASSERT_TRUE(any->Parse(request.dump()).ok());
  ASSERT_EQ(any->Constrain(std::nullopt)->calls.size(), 2u);
  EXPECT_EQ(any->Constrain(std::nullopt)->calls[1].before, "put\", \"arguments\":");
  EXPECT_TRUE(any->Constrain(std::nullopt)->calls[1].is_strict);
  EXPECT_THAT(any->Constrain(std::nullopt)->between, HasSubstr("<tool_call>"));

  request["tool_choice"] = {{"type", "function"}, {"function", {{"name", "set"}}}};
  EXPECT_THAT(std::string(NewChatWriter(text_, 5)->Parse(request.dump()).status().message()), HasSubstr("tool_choice"));
}

TEST_F(ApisTest, ReasoningComesBeforeWhatIsConstrained) {
  json request = ChatBody(false);
  request["response_format"] = {{"type", "json_object"}};
  const auto writer = NewChatWriter(text_, 5);
  ASSERT_TRUE(writer->Parse(request.dump()).ok());
  EXPECT_EQ(writer->constraint_field(), "response_format");
  const ConstraintSpec spec = {.kind = ConstraintSpec::Kind::kJsonObject};
  EXPECT_EQ(writer->BeginOutput("prompt<think>\n"), "");
  const auto open = writer->Constrain(spec);
  EXPECT_EQ(open->reasoning.close, "</think>");
  EXPECT_EQ(open->reasoning.open, "");
  writer->BeginOutput("prompt<think>\n\n</think>\n\n");
  EXPECT_EQ(writer->Constrain(spec)->reasoning.close, "");
  EXPECT_FALSE(writer->Constrain(std::nullopt).has_value());
  request["guided_regex"] = "a";
  EXPECT_THAT(std::string(NewChatWriter(text_, 5)->Parse(request.dump()).status().message()),
              HasSubstr("only one of response_format"));
}

TEST_F(ApisTest, AnthropicsBlocks) {
  json request = {{"max_tokens", 50},
                  {"system", {{{"type", "text"}, {"text", "Be brief"}}}},
                  {"tools", {{{"name", "get"}, {"input_schema", {{"type", "object"}}}}}},
                  {"messages",
                   {{{"role", "user"}, {"content", "weather?"}},
                    {{"role", "assistant"},
                     {"content",
                      {{{"type", "text"}, {"text", "wait"}},
                       {{"type", "tool_use"}, {"id", "toolu_1"}, {"name", "get"}, {"input", {{"a", 1}}}}}}},
                    {{"role", "user"},
                     {"content", {{{"type", "tool_result"}, {"tool_use_id", "toolu_1"}, {"content", "sunny"}}}}}}}};
  const json whole = json::parse(Run(NewAnthropicWriter(text_).get(), request, kOutput, 1000));
  EXPECT_EQ(whole["stop_reason"], "tool_use");
  ASSERT_EQ(whole["content"].size(), 4u) << whole;
  EXPECT_EQ(whole["content"][0]["thinking"], "Hm, wéather.");
  EXPECT_EQ(whole["content"][1]["text"], "I look.");
  EXPECT_EQ(whole["content"][2]["input"], json({{"city", "Paris"}, {"n", {1, 2}}}));
  const json usage = {
      {"input_tokens", 9}, {"cache_creation_input_tokens", 0}, {"cache_read_input_tokens", 0}, {"output_tokens", 31}};
  EXPECT_EQ(WithoutDetails(whole["usage"]), usage);

  request["stream"] = true;
  for (const size_t piece : {1, 5, 1000}) {
    const std::vector<json> events = Events(Run(NewAnthropicWriter(text_).get(), request, kOutput, piece));
    EXPECT_EQ(events.front()["type"], "message_start");
    EXPECT_EQ(events.front()["message"]["usage"]["input_tokens"], 9);
    EXPECT_EQ(events[events.size() - 2]["delta"]["stop_reason"], "tool_use");
    EXPECT_EQ(events.back()["type"], "message_stop");
    std::vector<std::string> texts(4);
    int open = -1, begun = 0;
    for (const json& event : events) {
      if (event["type"] == "content_block_start") {
        EXPECT_EQ(open, -1);
        open = event["index"];
        EXPECT_EQ(open, begun++);
        EXPECT_EQ(event["content_block"]["type"], whole["content"][static_cast<size_t>(open)]["type"]);
      } else if (event["type"] == "content_block_delta") {
        EXPECT_EQ(event["index"], open);
        for (const char* const key : {"text", "thinking", "partial_json"})
          texts.at(static_cast<size_t>(open)) += event["delta"].value(key, "");
      } else if (event["type"] == "content_block_stop") {
        EXPECT_EQ(event["index"], open);
        open = -1;
      }
    }
    EXPECT_EQ(begun, 4);
    EXPECT_EQ(texts[0], "Hm, wéather.");
    EXPECT_EQ(texts[1], "I look.");
    EXPECT_EQ(json::parse(texts[2]), whole["content"][2]["input"]);
  }
}

TEST_F(ApisTest, ResponsesItems) {
  json request = {{"instructions", "Be brief"},
                  {"tools", {{{"type", "function"}, {"name", "get"}, {"parameters", {{"type", "object"}}}}}},
                  {"input",
                   {{{"role", "user"}, {"content", {{{"type", "input_text"}, {"text", "weather?"}}}}},
                    {{"type", "function_call"}, {"call_id", "call_1"}, {"name", "get"}, {"arguments", "{}"}},
                    {{"type", "function_call_output"}, {"call_id", "call_1"}, {"output", "sunny"}}}}};
  json whole = json::parse(Run(NewResponsesWriter(text_, 5).get(), request, kOutput, 1000));
  whole["usage"] = WithoutDetails(whole["usage"]);
  EXPECT_EQ(whole["status"], "completed");
  ASSERT_EQ(whole["output"].size(), 4u) << whole;
  EXPECT_EQ(whole["output"][0]["type"], "reasoning");
  EXPECT_EQ(whole["output"][1]["content"][0]["text"], "I look.");
  EXPECT_EQ(whole["output"][2]["name"], "get");
  EXPECT_EQ(whole["usage"]["total_tokens"], 40);

  request["stream"] = true;
  for (const size_t piece : {1, 5, 1000}) {
    const std::vector<json> events = Events(Run(NewResponsesWriter(text_, 5).get(), request, kOutput, piece));
    EXPECT_EQ(events.front()["type"], "response.created");
    EXPECT_EQ(events.back()["type"], "response.completed");
    json last = events.back()["response"];
    last["usage"] = WithoutDetails(last["usage"]);
    EXPECT_EQ(last, whole);
    std::string text, arguments;
    for (size_t i = 0; i < events.size(); ++i) {
      EXPECT_EQ(events[i]["sequence_number"], i);
      if (events[i]["type"] == "response.output_text.delta") text += events[i]["delta"].get<std::string>();
      if (events[i]["type"] == "response.function_call_arguments.delta" && events[i]["output_index"] == 2)
        arguments += events[i]["delta"].get<std::string>();
    }
    EXPECT_EQ(text, "I look.");
    EXPECT_EQ(arguments, whole["output"][2]["arguments"]);
  }
}

TEST_F(ApisTest, AResponseThatIsCutSaysSo) {
  const auto writer = NewResponsesWriter(text_, 5);
  ASSERT_TRUE(writer->Parse(R"({"input": "a", "max_output_tokens": 1})").ok());
  writer->BeginOutput("prompt");
  v1::GenerateResponse message;
  message.set_request_id("req-1");
  message.set_text("The");
  message.mutable_finish()->set_reason(v1::FINISH_REASON_LENGTH);
  writer->Add(0, message);
  const json body = json::parse(writer->Finish());
  EXPECT_EQ(body["status"], "incomplete");
  EXPECT_EQ(body["output"][0]["status"], "incomplete");
}

TEST_F(ApisTest, EventsHaveTheUsageSoFar) {
  json request = ChatBody(true);
  request["stream_options"] = {{"include_usage", true}, {"continuous_usage_stats", true}};
  const std::vector<json> events = Events(Run(NewChatWriter(text_, 5).get(), request, "abc", 1));
  ASSERT_EQ(events.size(), 5u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(events[i]["usage"], json({{"prompt_tokens", 9}, {"completion_tokens", i + 1}, {"total_tokens", i + 10}}));
  }
  request = {{"prompt", "a"}, {"stream", true}, {"stream_options", request["stream_options"]}};
  EXPECT_EQ(Events(Run(NewCompletionsWriter(text_, 5).get(), request, "abc", 1))[1]["usage"]["total_tokens"], 11);
}

}  // namespace
}  // namespace switchyard::server
