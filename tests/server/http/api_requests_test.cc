// What the APIs read of requests: members of any type, what is not supported, and an answer that the client began.
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "proto/support/errors.h"
#include "server/http/api_errors.h"
#include "server/http/apis/anthropic.h"
#include "server/http/apis/chat.h"
#include "server/http/apis/completions.h"
#include "server/http/apis/responses.h"
#include "tests/server/http/text_fixture.h"
#include "tests/server/tiny_text.h"

namespace switchyard::server {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class ApiRequestsTest : public TextFixture {};

// A conversation of one message, in both OpenAI's and Anthropic's form.
json ChatOf(const char* text) { return {{"messages", {{{"role", "user"}, {"content", text}}}}}; }

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

TEST_F(ApiRequestsTest, ArgumentsOfACallHaveALimitOfKeys) {
  const auto parse = [](int num_keys) {
    json arguments = json::object();
    for (int i = 0; i < num_keys; ++i) arguments[absl::StrCat("k", i)] = i;
    const json call = {
        {"id", "c"}, {"type", "function"}, {"function", {{"name", "get"}, {"arguments", arguments.dump()}}}};
    const json turn = {{"role", "assistant"}, {"content", "b"}, {"tool_calls", {call}}};
    const json question = {{"role", "user"}, {"content", "a"}};
    const json body = {{"messages", {question, turn, question}}};
    return NewChatWriter(text_, 5)->Parse(body.dump()).status();
  };
  EXPECT_TRUE(parse(2048).ok()) << parse(2048);
  EXPECT_EQ(parse(2049).message(), "messages[1].tool_calls[0].function.arguments: 2049 keys, limit 2048");
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

TEST_F(ApiRequestsTest, ChoicesTakeNoMemoryBeforeTheirNumberIsChecked) {
  json body = ChatOf("a");
  body["n"] = 2147483647;
  EXPECT_TRUE(NewChatWriter(text_, 5)->Parse(body.dump()).ok()) << "ConvertGenerate refuses it";
  EXPECT_TRUE(NewCompletionsWriter(text_, 5)->Parse(R"({"prompt": ["a", "b"], "n": 2147483647})").ok());
}

TEST_F(ApiRequestsTest, PromptsShareWhatTheyHaveInCommon) {
  constexpr size_t kRegexBytes = 1 << 20;
  json body = {{"prompt", json::array()}, {"guided_regex", std::string(kRegexBytes, 'a')}, {"request_id", "mine"}};
  for (int i = 0; i < 256; ++i) body["prompt"].push_back("b");
  const auto writer = NewCompletionsWriter(text_, 5);
  auto requests = writer->Parse(body.dump());
  ASSERT_TRUE(requests.ok()) << requests.status();
  ASSERT_EQ(requests->size(), 256u);
  size_t bytes = 0;
  for (const v1::GenerateRequest& request : *requests) bytes += request.ByteSizeLong();
  EXPECT_LT(bytes, kRegexBytes);
  writer->Complete(&requests->back());
  EXPECT_EQ(requests->back().text(), "b");
  EXPECT_EQ(requests->back().constraint().regex().size(), kRegexBytes);
  EXPECT_EQ(requests->back().request_id(), "") << "of several requests none can have it";
}

TEST_F(ApiRequestsTest, ConstraintsOfVllmAreReadOrNamed) {
  const auto error = [](const char* key, const json& value) {
    json body = ChatOf("a");
    body[key] = value;
    return std::string(NewChatWriter(text_, 5)->Parse(body.dump()).status().message());
  };
  json body = ChatOf("a");
  body["structured_outputs"] = {{"json_object", true}, {"regex", nullptr}, {"disable_any_whitespace", false}};
  const auto writer = NewChatWriter(text_, 5);
  const auto requests = writer->Parse(body.dump());
  ASSERT_TRUE(requests.ok()) << requests.status();
  EXPECT_TRUE(requests->front().constraint().json_object());
  EXPECT_EQ(writer->constraint_field(), "structured_outputs.json_object");
  EXPECT_EQ(error("structured_outputs", {{"json_object", false}, {"regex", "a"}}), "");
  EXPECT_THAT(error("structured_outputs", {{"json_object", true}, {"regex", "a"}}), HasSubstr("only one of"));
  for (const char* const key : {"structural_tag", "whitespace_pattern"})
    EXPECT_THAT(error("structured_outputs", {{key, "x"}, {"regex", "a"}}), HasSubstr(key));
  for (const char* const key : {"disable_any_whitespace", "disable_additional_properties", "disable_fallback"})
    EXPECT_THAT(error("structured_outputs", {{key, true}, {"regex", "a"}}), HasSubstr(key));
  EXPECT_THAT(error("guided_choice", json::array()), HasSubstr("guided_choice: is empty: at least one is needed"));
  EXPECT_THAT(error("structured_outputs", {{"choice", json::array()}}), HasSubstr("structured_outputs.choice: is"));
}

TEST_F(ApiRequestsTest, AnthropicsFormatsAndStrictToolsConstrain) {
  const json format = {{"type", "json_schema"}, {"schema", {{"type", "object"}}}};
  json plain = ChatOf("a");
  plain["max_tokens"] = 1;
  const auto expect_schema = [&](const char* key, const json& value, const char* field) {
    json body = plain;
    body[key] = value;
    const auto writer = NewAnthropicWriter(text_);
    const auto requests = writer->Parse(body.dump());
    ASSERT_TRUE(requests.ok()) << requests.status();
    EXPECT_EQ(requests->front().constraint().json_schema(), R"({"type":"object"})");
    EXPECT_EQ(writer->constraint_field(), field);
  };
  expect_schema("output_config", {{"format", format}, {"effort", "low"}}, "output_config.format");
  expect_schema("output_format", format, "output_format");
  json body = plain;
  body["output_config"] = {{"format", {{"type", "json_schema"}}}};
  EXPECT_THAT(std::string(NewAnthropicWriter(text_)->Parse(body.dump()).status().message()),
              HasSubstr("output_config.format.schema: is missing"));
  body["output_format"] = format;
  EXPECT_THAT(std::string(NewAnthropicWriter(text_)->Parse(body.dump()).status().message()),
              HasSubstr("output_format: only one of"));

  plain["tools"] = {{{"name", "get"}, {"strict", true}, {"input_schema", {{"type", "object"}}}}};
  const auto strict = NewAnthropicWriter(text_);
  ASSERT_TRUE(strict->Parse(plain.dump()).ok());
  const auto constraint = strict->Constrain(std::nullopt);
  ASSERT_TRUE(constraint.has_value());
  EXPECT_TRUE(constraint->calls.at(0).is_strict);
  EXPECT_NE(constraint->between, "");
  plain["tool_choice"] = {{"type", "auto"}, {"disable_parallel_tool_use", true}};
  const auto one = NewAnthropicWriter(text_);
  ASSERT_TRUE(one->Parse(plain.dump()).ok());
  EXPECT_EQ(one->Constrain(std::nullopt)->between, "");
}

// It is encoded here where its tokens are shown, else with the request.
TEST_F(ApiRequestsTest, AnEchoedPromptBeyondTheTokenizersBoundsIsTheClientsFault) {
  json tokenizer = json::parse(TinyTokenizerJson());
  tokenizer["pre_tokenizer"] = {{"type", "Split"}, {"pattern", {{"Regex", "(x+x+)+y"}}}, {"behavior", "Isolated"}};
  TinyTextOptions options;
  options.tokenizer_json = tokenizer.dump();
  const auto text = TinyText(options);
  ASSERT_NE(text, nullptr);
  const json body = {{"prompt", std::string(60, 'x') + "zy"}, {"echo", true}, {"logprobs", 1}};
  const absl::Status status = NewCompletionsWriter(text.get(), 5)->Parse(body.dump()).status();
  EXPECT_EQ(rpc::ReasonOf(status), v1::TEXT_LIMIT) << status;
  EXPECT_EQ(HttpStatusOf(status), 400);
  EXPECT_THAT(std::string(status.message()), testing::StartsWith("prompt: "));
}

TEST_F(ApiRequestsTest, ErrorsNameFieldsAsTheClientDoes) {
  const auto param = [](const absl::Status& status) {
    return json::parse(ErrorBody(ErrorShape::kOpenAi, status))["error"]["param"].get<std::string>();
  };
  const auto renamed = [&](const char* field) { return param(rpc::BadField(field, "is bad", "", "")); };
  EXPECT_EQ(renamed("text"), "prompt");
  EXPECT_EQ(renamed("token_ids[3]"), "prompt[3]");
  EXPECT_EQ(renamed("messages.tools[1]"), "tools[1]");
  EXPECT_EQ(renamed("sampling.top_p"), "top_p");
  EXPECT_EQ(renamed("text.format"), "text.format");
  const auto response = [&](const json& body) {
    return param(NewResponsesWriter(text_, 5)->Parse(body.dump()).status());
  };
  EXPECT_EQ(response({{"input", "a"}, {"text", {{"format", {{"type", "json_schema"}}}}}}), "text.format.schema");
  EXPECT_EQ(response({{"input", "a"}, {"text", {{"format", {{"type", "xml"}}}}}}), "text.format.type");
  EXPECT_EQ(response({{"input", "a"}, {"text", 5}}), "text.format");
  EXPECT_EQ(response({{"input", {{{"role", ""}, {"content", "a"}}}}}), "input[0].role");
  EXPECT_EQ(response({{"input", {{{"type", "reasoning"}}}}}), "input");
}

TEST_F(ApiRequestsTest, WhatIsCountedHasTheBeginningOfTheAnswer) {
  json body = ChatOf("a");
  body["model"] = "m";
  body["messages"].push_back({{"role", "assistant"}, {"content", "The capital"}});
  v1::TokenizeRequest request;
  const auto output = ReadMessagesToCount(text_, body.dump(), &request);
  ASSERT_TRUE(output.ok()) << output.status();
  EXPECT_EQ(request.model(), "m");
  EXPECT_EQ(request.messages().messages_size(), 1);
  EXPECT_EQ((*output)->BeginOutput("prompt</think>"), "The capital");
}

}  // namespace
}  // namespace switchyard::server
