// How many tokens of an output were reasoning, as each API says it, for the tokens of a real tokenizer.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "server/http/apis/anthropic.h"
#include "server/http/apis/chat.h"
#include "server/http/apis/responses.h"
#include "tests/server/http/text_fixture.h"

namespace switchyard::server {
namespace {

using nlohmann::json;

constexpr char kReasoning[] = "Hm, wéather in \xF0\x9F\x8C\xA7, I look it up. 日本? ";
constexpr int64_t kCachedTokens = 4, kPromptTokens = 9;

class ReasoningTokensTest : public TextFixture {
 protected:
  static std::vector<int32_t> Tokens(const std::string& output) {
    return *text_->Encode(output, {/*add_special_tokens=*/false, /*allow_special=*/true});
  }
  // Tokens whose first byte is from `begin` on, and before `end`.
  static int64_t TokensIn(const std::string& output, size_t begin, size_t end) {
    int64_t count = 0;
    size_t at = 0;
    for (const int32_t token : Tokens(output)) {
      count += at >= begin && at < end ? 1 : 0;
      at += text_->PieceOf(token).bytes.size();
    }
    EXPECT_EQ(at, output.size());
    return count;
  }

  // Runs the output's tokens through the writer, that many a message, each choice by turns; returns what it sends last.
  static std::string Run(ResponseWriter* writer, const json& request, const std::string& output, size_t per_message,
                         const std::string& rendered = "", int choices = 1) {
    EXPECT_TRUE(writer->Parse(request.dump()).ok());
    writer->BeginOutput(rendered);
    writer->SetPromptTokens(0, kPromptTokens);
    const std::vector<int32_t> tokens = Tokens(output);
    std::vector<tokenizer::StreamDecoder> decoders;
    for (int i = 0; i < choices; ++i) decoders.emplace_back(text_->tokenizer(), /*skip_special_tokens=*/true);
    for (size_t at = 0; at < tokens.size(); at += per_message) {
      for (int choice = 0; choice < choices; ++choice) {
        v1::GenerateResponse message;
        message.set_request_id("req-77");
        message.set_choice(choice);
        for (size_t i = at; i < std::min(at + per_message, tokens.size()); ++i) {
          message.add_token_ids(tokens[i]);
          EXPECT_TRUE(decoders[static_cast<size_t>(choice)].Append(tokens[i], message.mutable_text()).ok());
        }
        if (at + per_message >= tokens.size()) {
          message.mutable_finish()->set_reason(v1::FINISH_REASON_STOP);
          message.mutable_finish()->mutable_usage()->set_prompt_tokens(kPromptTokens);
          message.mutable_finish()->mutable_usage()->set_cached_tokens(kCachedTokens);
          message.mutable_finish()->mutable_usage()->set_completion_tokens(static_cast<int64_t>(tokens.size()));
        }
        writer->Add(0, message);
      }
    }
    return writer->Finish();
  }
  // The data of the events, or the body.
  static std::vector<json> Data(const std::string& sent) {
    std::vector<json> all;
    if (sent[0] == '{') return {json::parse(sent)};
    for (absl::string_view block : absl::StrSplit(sent, "\n\n", absl::SkipEmpty())) {
      const std::string text(block.substr(block.find("data: ") + 6));
      if (text != "[DONE]") all.push_back(json::parse(text));
    }
    return all;
  }
  static json Chat(bool stream) {
    json request = {{"messages", {{{"role", "user"}, {"content", "a"}}}}, {"stream", stream}};
    if (stream) request["stream_options"] = {{"include_usage", true}};
    return request;
  }
  static json ChatUsage(const json& request, const std::string& output, size_t per_message,
                        const std::string& rendered = "", int choices = 1) {
    return Data(Run(NewChatWriter(text_, 5).get(), request, output, per_message, rendered, choices)).back()["usage"];
  }
};

TEST_F(ReasoningTokensTest, EachApiCountsThem) {
  const std::string output = std::string("<think>") + kReasoning + "</think>It rains.";
  const int64_t expected = TokensIn(output, 7, 7 + sizeof(kReasoning) - 1);
  ASSERT_GT(expected, 10);
  ASSERT_LT(expected, static_cast<int64_t>(Tokens(output).size()) - 3);
  for (const size_t per_message : {1, 3, 1000}) {
    SCOPED_TRACE(per_message);
    for (const bool stream : {false, true}) {
      EXPECT_EQ(ChatUsage(Chat(stream), output, per_message)["completion_tokens_details"],
                json({{"reasoning_tokens", expected}}));
      const json items = {{"input", "a"}, {"stream", stream}};
      json last = Data(Run(NewResponsesWriter(text_, 5).get(), items, output, per_message)).back();
      if (stream) last = last["response"];
      EXPECT_EQ(last["usage"]["output_tokens_details"], json({{"reasoning_tokens", expected}}));
      json blocks = Chat(stream);
      blocks["max_tokens"] = 100;
      // Finish begins with message_delta.
      const std::vector<json> data = Data(Run(NewAnthropicWriter(text_).get(), blocks, output, per_message));
      EXPECT_EQ(data[0]["usage"], json({{"input_tokens", kPromptTokens - kCachedTokens},
                                        {"cache_creation_input_tokens", 0},
                                        {"cache_read_input_tokens", kCachedTokens},
                                        {"output_tokens", Tokens(output).size()},
                                        {"output_tokens_details", {{"thinking_tokens", expected}}}}));
    }
  }
}

TEST_F(ReasoningTokensTest, ChoicesAreSummed) {
  const std::string output = std::string("<think>") + kReasoning + "</think>It rains.";
  json request = Chat(true);
  request["n"] = 3;
  EXPECT_EQ(ChatUsage(request, output, 2, "", 3)["completion_tokens_details"]["reasoning_tokens"],
            3 * TokensIn(output, 7, 7 + sizeof(kReasoning) - 1));
}

// The prompt may leave reasoning open; the output may end within it; or it may have none.
TEST_F(ReasoningTokensTest, ThePromptMayOpenReasoning) {
  const std::string output = std::string(kReasoning) + "</think>It rains.";
  const auto count = [&](const std::string& text, const std::string& rendered) {
    return ChatUsage(Chat(true), text, 1, rendered)["completion_tokens_details"]["reasoning_tokens"].get<int64_t>();
  };
  EXPECT_EQ(count(output, "<think>\n"), TokensIn(output, 0, sizeof(kReasoning) - 1));
  EXPECT_EQ(count(kReasoning, "<think>\n"), TokensIn(kReasoning, 0, sizeof(kReasoning) - 1));
  EXPECT_EQ(count("It rains.", "<think>\n\n</think>\n\n"), 0);
  EXPECT_EQ(count("<think></think>It rains.", ""), 0);
}

// What the server wrote into the prompt as the beginning of the output is no token of it, nor moves their places.
TEST_F(ReasoningTokensTest, ForcedCallsAndContinuedAnswersHaveNone) {
  json request = Chat(false);
  request["messages"].push_back({{"role", "assistant"}, {"content", "It"}});
  request["continue_final_message"] = true;
  EXPECT_EQ(ChatUsage(request, " rains", 1, "<think>\n")["completion_tokens_details"]["reasoning_tokens"], 0);
  request = Chat(false);
  request["tools"] = {{{"type", "function"}, {"function", {{"name", "get"}, {"parameters", {{"type", "object"}}}}}}};
  request["tool_choice"] = "required";
  const json usage = ChatUsage(request, "get\", \"arguments\": {}}\n</tool_call>", 1);
  EXPECT_EQ(usage["completion_tokens_details"]["reasoning_tokens"], 0);
  EXPECT_EQ(usage["prompt_tokens_details"]["cached_tokens"], kCachedTokens);
}

}  // namespace
}  // namespace switchyard::server
