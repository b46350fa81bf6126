// What the APIs read of requests: members of any type, what is not supported, and an answer that the client began.
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

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

class ApiRequestsTest : public TextFixture {};

TEST_F(ApiRequestsTest, AnAnswerGoesOnWithTheLastMessage) {
  const json turns = {{{"role", "user"}, {"content", "a"}}, {{"role", "assistant"}, {"content", "The capital"}}};
  const auto expect_continued = [](ResponseWriter* writer, const json& body) {
    const auto requests = writer->Parse(body.dump());
    ASSERT_TRUE(requests.ok()) << requests.status();
    ASSERT_EQ(requests->front().messages().messages_size(), 1);
    // The prompt leaves reasoning open, as this model's does, or has ended it.
    EXPECT_EQ(writer->BeginOutput("prompt"), "\n</think>\n\nThe capital");
    EXPECT_EQ(writer->BeginOutput("prompt</think>"), "The capital");
    v1::GenerateResponse message;
    message.set_request_id("req-1");
    message.set_text(" is Rome.");
    message.mutable_finish()->set_reason(v1::FINISH_REASON_STOP);
    writer->Add(0, message);
    const std::string answer = writer->Finish();
    EXPECT_THAT(answer, HasSubstr("\" is Rome.\"")) << "the client has the rest";
  };
  json chat = {{"messages", turns}, {"continue_final_message", true}, {"add_generation_prompt", false}};
  expect_continued(NewChatWriter(text_, 5).get(), chat);
  expect_continued(NewAnthropicWriter(text_).get(), {{"messages", turns}, {"max_tokens", 5}});

  const auto error = [](ResponseWriter* writer, const json& body) {
    return std::string(writer->Parse(body.dump()).status().message());
  };
  json forced = chat;
  forced["tools"] = {{{"type", "function"}, {"function", {{"name", "get"}}}}};
  forced["tool_choice"] = "required";
  EXPECT_THAT(error(NewChatWriter(text_, 5).get(), forced), HasSubstr("tool_choice"));
  chat["messages"].erase(1);
  EXPECT_THAT(error(NewChatWriter(text_, 5).get(), chat), HasSubstr("continue_final_message: wants a last message"));
}

// Calls `visit` while each of the values in `value`, and it itself, is replaced by `by`.
void WithEachReplaced(json* value, const json& by, const std::function<void()>& visit) {
  if (value->is_structured()) {
    for (json& member : *value) WithEachReplaced(&member, by, visit);
  }
  const json kept = std::exchange(*value, by);
  visit();
  *value = kept;
}

TEST_F(ApiRequestsTest, MembersOfAnyTypeAreReadOrRefused) {
  const json function = {{"name", "get"}, {"description", "d"}, {"strict", true}, {"parameters", {{"type", "object"}}}};
  const json tool = {{"type", "function"}, {"function", function}};
  const json call = {{"id", "c"}, {"type", "function"}, {"function", {{"name", "get"}, {"arguments", "{}"}}}};
  const json schema = {{"name", "s"}, {"strict", true}, {"schema", {{"type", "object"}}}};
  json chat = {{"model", "m"},
               {"messages",
                {{{"role", "user"}, {"content", {{{"type", "text"}, {"text", "a"}}}}},
                 {{"role", "assistant"}, {"content", "b"}, {"tool_calls", {call}}},
                 {{"role", "tool"}, {"tool_call_id", "c"}, {"content", "d"}}}},
               {"tools", {tool}},
               {"tool_choice", {{"type", "function"}, {"function", {{"name", "get"}}}}},
               {"parallel_tool_calls", true},
               {"response_format", {{"type", "json_schema"}, {"json_schema", schema}}},
               {"chat_template_kwargs", {{"a", 1}}},
               {"reasoning_effort", "low"},
               {"stop", {"x"}},
               {"stop_token_ids", {1}},
               {"logit_bias", {{"5", 1}}},
               {"logprobs", true},
               {"top_logprobs", 1},
               {"stream", true},
               {"stream_options", {{"include_usage", true}}}};
  json completion = {{"prompt", {{1, 2}, {3}}},
                     {"echo", true},
                     {"logprobs", 1},
                     {"n", 2},
                     {"best_of", 2},
                     {"structured_outputs", {{"choice", {"a"}}}},
                     {"max_tokens", 3},
                     {"seed", 4}};
  json response = {{"instructions", "i"},
                   {"input",
                    {{{"type", "message"}, {"role", "user"}, {"content", {{{"type", "input_text"}, {"text", "a"}}}}},
                     {{"type", "function_call"}, {"call_id", "c"}, {"name", "get"}, {"arguments", "{}"}},
                     {{"type", "function_call_output"}, {"call_id", "c"}, {"output", "o"}}}},
                   {"tools", {{{"type", "function"}, {"name", "get"}, {"parameters", {{"type", "object"}}}}}},
                   {"tool_choice", {{"type", "function"}, {"name", "get"}}},
                   {"reasoning", {{"effort", "low"}}},
                   {"include", {"reasoning.encrypted_content"}},
                   {"text", {{"format", {{"type", "json_schema"}, {"schema", {{"type", "object"}}}}}}},
                   {"max_output_tokens", 3}};
  json message = {
      {"max_tokens", 3},
      {"system", {{{"type", "text"}, {"text", "s"}}}},
      {"messages",
       {{{"role", "user"}, {"content", {{{"type", "text"}, {"text", "a"}}}}},
        {{"role", "assistant"},
         {"content",
          {{{"type", "thinking"}, {"thinking", "t"}},
           {{"type", "tool_use"}, {"id", "c"}, {"name", "get"}, {"input", {{"a", 1}}}}}}},
        {{"role", "user"},
         {"content",
          {{{"type", "tool_result"}, {"tool_use_id", "c"}, {"content", {{{"type", "text"}, {"text", "r"}}}}}}}}}},
      {"tools", {{{"name", "get"}, {"input_schema", {{"type", "object"}}}}}},
      {"tool_choice", {{"type", "tool"}, {"name", "get"}}},
      {"thinking", {{"type", "enabled"}, {"budget_tokens", 1024}}},
      {"stop_sequences", {"x"}}};
  int refused = 0;
  for (const char* const text : {"null", "true", "5", "-1.5", "1e300", "\"x\"", "[]", "{}", "[null]", "[[1]]",
                                 R"({"type": 5})", R"({"type": null, "name": [], "text": {}})"}) {
    const json by = json::parse(text);
    // An exception, which would end the server, fails the test.
    const auto parse = [&](const json& body, std::unique_ptr<ResponseWriter> writer) {
      const absl::Status status = writer->Parse(body.dump()).status();
      refused += status.ok() ? 0 : 1;
      EXPECT_TRUE(status.ok() || status.code() == absl::StatusCode::kInvalidArgument) << status << " " << body;
    };
    WithEachReplaced(&chat, by, [&] { parse(chat, NewChatWriter(text_, 5)); });
    WithEachReplaced(&completion, by, [&] { parse(completion, NewCompletionsWriter(text_, 5)); });
    WithEachReplaced(&response, by, [&] { parse(response, NewResponsesWriter(text_, 5)); });
    WithEachReplaced(&message, by, [&] { parse(message, NewAnthropicWriter(text_)); });
  }
  EXPECT_GT(refused, 500);
}

TEST_F(ApiRequestsTest, WhatIsNotSupportedIsNamed) {
  const auto error = [](ResponseWriter* writer, const json& body) {
    return std::string(writer->Parse(body.dump()).status().message());
  };
  EXPECT_THAT(error(NewResponsesWriter(text_, 5).get(), {{"input", "a"}, {"previous_response_id", "resp_1"}}),
              HasSubstr("previous_response_id"));
  EXPECT_THAT(error(NewResponsesWriter(text_, 5).get(), {{"input", {{{"type", "image"}}}}}),
              HasSubstr("input[0].type"));
  EXPECT_THAT(error(NewResponsesWriter(text_, 5).get(), {{"input", "a"}, {"tools", {{{"type", "web_search"}}}}}),
              HasSubstr("tools[0]"));
  const auto response = [&](const char* key, const json& value) {
    json body = {{"input", "a"}};
    body[key] = value;
    return error(NewResponsesWriter(text_, 5).get(), body);
  };
  EXPECT_THAT(response("tools", {{{"type", "web_search"}}}), HasSubstr("tools[0].type: must be \"function\""));
  EXPECT_THAT(response("input", {{{"type", "item_reference"}, {"id", "msg_1"}}}), HasSubstr("input[0].type"));
  EXPECT_THAT(response("input", json::array()), HasSubstr("input: is empty"));
  EXPECT_THAT(response("input", {{{"content", "a"}}}), HasSubstr("input[0].role"));
  EXPECT_THAT(response("include", {"message.output_text.logprobs"}), HasSubstr("include[0]"));
  EXPECT_THAT(response("top_logprobs", 2), HasSubstr("top_logprobs"));
  EXPECT_THAT(response("max_output_tokens", 0), HasSubstr("max_output_tokens: must be within [1, "));
  json chat = {{"messages", {{{"role", "user"}, {"content", "a"}}}}};
  chat["tools"] = {{{"type", "custom"}, {"custom", {{"name", "x"}}}}};
  EXPECT_THAT(error(NewChatWriter(text_, 5).get(), chat), HasSubstr("tools[0].type: must be \"function\""));
  const json turn = {{"role", "user"}, {"content", "a"}};
  EXPECT_THAT(error(NewAnthropicWriter(text_).get(),
                    {{"max_tokens", 1}, {"messages", {turn}}, {"tools", {{{"type", "bash_20250124"}, {"name", "b"}}}}}),
              HasSubstr("tools[0].type: must be \"custom\""));
  EXPECT_THAT(error(NewAnthropicWriter(text_).get(), {{"messages", {turn}}}), HasSubstr("max_tokens"));
  const json image = {{"role", "user"}, {"content", {{{"type", "image"}}}}};
  EXPECT_THAT(error(NewAnthropicWriter(text_).get(), {{"max_tokens", 1}, {"messages", {image}}}),
              HasSubstr("messages[0].content[0].type"));
  EXPECT_THAT(error(NewAnthropicWriter(text_).get(),
                    {{"max_tokens", 1}, {"messages", {{{"role", "system"}, {"content", "a"}}}}}),
              HasSubstr("messages[0].role"));
}

}  // namespace
}  // namespace switchyard::server
