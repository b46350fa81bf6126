// What HTTP's clients do wrong: bodies, heads, framing, time.  Each gets a clear error in OpenAI's shape, or its end.
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/e2e/harness.h"
#include "tests/e2e/http_client.h"

namespace switchyard {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class HttpHostileTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { server_ = TestServer::Start({.flags = {"--request_message_timeout=3s"}}).release(); }
  static void TearDownTestSuite() { delete server_; }
  void SetUp() override { ASSERT_NE(server_, nullptr); }
  void TearDown() override {
    EXPECT_EQ(HttpCall(At(), "GET", "/ready").status, 200);
    EXPECT_TRUE(server_->WaitIdle());
  }
  static const std::string& At() { return server_->http_address(); }
  // Sends bytes as they are and returns the answer.
  static HttpAnswer Raw(const std::string& bytes, absl::Duration timeout = absl::Seconds(20)) {
    HttpConnectionForTests connection(At());
    connection.Send(bytes);
    return connection.Read(timeout);
  }
  static TestServer* server_;
};
TestServer* HttpHostileTest::server_ = nullptr;

void ExpectError(const HttpAnswer& answer, int status, const std::string& text, const std::string& what) {
  EXPECT_EQ(answer.status, status) << what << "\n" << answer.body;
  const json body = answer.json();
  ASSERT_TRUE(body.is_object() && body.contains("error")) << what << "\n" << answer.body;
  EXPECT_THAT(body["error"]["message"].get<std::string>(), HasSubstr(text)) << what;
  EXPECT_TRUE(body["error"]["type"].is_string()) << what;
  EXPECT_TRUE(body["error"].contains("param") && body["error"].contains("code")) << what;
}

// A body of each kind, and a part of its error's message.  Of fields that both APIs have: on both paths.
TEST_F(HttpHostileTest, EachBadBodyIsNamed) {
  const std::vector<std::pair<std::string, std::string>> bodies = {
      {"", "empty"},
      {"{", "no JSON"},
      {"[]", "JSON object"},
      {"null", "JSON object"},
      {"\"a\"", "JSON object"},
      {"{\"a\":1}x", "no JSON"},
      {"{'a':1}", "no JSON"},
      {"{\"a\":NaN}", "no JSON"},
      {"{\"a\":\"\xff\"}", "no JSON"},
      {"{\"a\":\"\\ud800\"}", "no JSON"},
      {std::string("{\"a\":\"\0\"}", 9), "no JSON"},
      {std::string(70, '['), "nested"},
      {absl::StrCat("{\"a\":", std::string(70, '['), std::string(70, ']'), "}"), "nested"},
  };
  for (const std::string path : {"/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"}) {
    for (const auto& [body, text] : bodies) {
      HttpConnectionForTests connection(At());
      connection.Send(absl::StrCat("POST ", path, " HTTP/1.1\r\nHost: localhost\r\nContent-Length: ", body.size(),
                                   "\r\n\r\n", body));
      ExpectError(connection.Read(), 400, text, absl::StrCat(path, " ", body.substr(0, 40)));
    }
  }
}

TEST_F(HttpHostileTest, EachBadFieldIsNamed) {
  struct Bad {
    const char* field;
    const char* value;
    const char* text;
  };
  const std::vector<Bad> common = {
      {"model", "1", "model: must be a string"},
      {"model", "\"gpt-4o\"", "is not served here"},
      {"temperature", "\"hot\"", "temperature: must be a number"},
      {"temperature", "-1", "temperature: must be within"},
      {"temperature", "1e30", "temperature: must be within"},
      {"top_p", "0", "top_p: must be within"},
      {"top_p", "1.5", "top_p: must be within"},
      {"top_p", "[]", "top_p: must be a number"},
      {"top_k", "-5", "top_k: must be within"},
      {"top_k", "1.5", "top_k: must be an integer"},
      {"top_k", "99999999999", "top_k: must be within"},
      {"min_p", "2", "min_p: must be within"},
      {"min_p", "{}", "min_p: must be a number"},
      {"presence_penalty", "3", "presence_penalty: must be within"},
      {"frequency_penalty", "-3", "frequency_penalty: must be within"},
      {"repetition_penalty", "0", "repetition_penalty: must be within"},
      {"repetition_penalty", "true", "repetition_penalty: must be a number"},
      {"seed", "\"x\"", "seed: must be an integer"},
      {"seed", "1.5", "seed: must be an integer"},
      {"n", "0", "n: must be within"},
      {"n", "100000", "n: must be within"},
      {"n", "2147483647", "n: must be within [1, 64], is 2147483647"},
      {"n", "\"2\"", "n: must be an integer"},
      {"max_tokens", "-1", "max_tokens: must be at least 1"},
      {"max_tokens", "100000", "max_tokens"},
      {"max_tokens", "1.5", "max_tokens: must be an integer"},
      {"max_tokens", "99999999999", "max_tokens: must be within"},
      {"min_tokens", "-1", "min_tokens: must be within"},
      {"stop", "1", "stop: must be a string or an array"},
      {"stop", "[1]", "stop[0]: must be a string"},
      {"stop", "[\"\"]", "stop[0]: must have 1"},
      {"stop", "{}", "stop: must be a string or an array"},
      {"stop_token_ids", "\"a\"", "stop_token_ids: must be an array"},
      {"stop_token_ids", "[\"a\"]", "stop_token_ids[0]: must be a token id"},
      {"stop_token_ids", "[-1]", "stop_token_ids[0]"},
      {"stop_token_ids", "[99999999]", "stop_token_ids[0]"},
      {"logit_bias", "[]", "logit_bias: must be an object"},
      {"logit_bias", "{\"a\":1}", "is no token id"},
      {"logit_bias", "{\"1\":\"b\"}", "logit_bias.1: must be a number"},
      {"logit_bias", "{\"99999999\":1}", "logit_bias: token 99999999 outside"},
      {"logit_bias", "{\"-1\":1}", "logit_bias: token -1 outside"},
      {"ignore_eos", "1", "ignore_eos: must be true or false"},
      {"skip_special_tokens", "\"no\"", "skip_special_tokens: must be true or false"},
      {"stream", "\"yes\"", "stream: must be true or false"},
      {"stream", "1", "stream: must be true or false"},
      {"stream_options", "{\"include_usage\":true}", "stream_options: is allowed with"},
      {"stream_options", "[]", "stream_options: must be an object"},
      {"prompt_logprobs", "100", "prompt_logprobs: must be within"},
      {"use_beam_search", "true", "use_beam_search"},
      {"allowed_token_ids", "[5]", "allowed_token_ids: is not supported"},
      {"bad_words", "[\"a\"]", "bad_words: is not supported"},
      {"include_stop_str_in_output", "true", "include_stop_str_in_output: is not supported"},
      {"truncate_prompt_tokens", "3", "truncate_prompt_tokens: is not supported"},
      {"guided_whitespace_pattern", "\" \"", "guided_whitespace_pattern: is not supported"},
      {"return_token_ids", "true", "return_token_ids: is not supported"},
      {"return_tokens_as_token_ids", "true", "return_tokens_as_token_ids: is not supported"},
      {"response_format", "1", "response_format: must be an object"},
      {"response_format", "{\"type\":\"xml\"}", "response_format.type: must be"},
      {"response_format", "{\"type\":\"json_schema\"}", "response_format.json_schema: is missing"},
      {"response_format", "{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{\"not\":{}}}}", "json_schema"},
      {"guided_json", "1", "guided_json: must be a schema"},
      {"guided_regex", "\"(\"", "regex"},
      {"guided_choice", "[1]", "guided_choice[0]: must be a string"},
      {"guided_choice", "[]", "guided_choice: is empty"},
      {"guided_choice", "[\"\"]", "choice"},
      {"guided_grammar", "\"nonsense\"", "grammar"},
      {"structured_outputs", "[]", "structured_outputs: must be an object"},
      {"structured_outputs", "{\"structural_tag\":\"x\"}", "structured_outputs.structural_tag: is not supported"},
      {"request_id", "7", "request_id: must be a string"},
      {"add_special_tokens", "3", "add_special_tokens: must be true or false"},
  };
  const std::vector<Bad> chat = {
      {"messages", "null", "messages: is missing"},
      {"messages", "\"hi\"", "messages: must be an array"},
      {"messages", "[]", "messages: is empty"},
      {"messages", "[1]", "messages[0]: must be an object"},
      {"messages", "[{}]", "messages[0].role: is missing"},
      {"messages", "[{\"role\":1}]", "messages[0].role: must be a string"},
      {"messages", "[{\"role\":\"user\",\"content\":1}]", "messages[0].content: must be a string or an array"},
      {"messages", "[{\"role\":\"user\",\"content\":[1]}]", "messages[0].content[0]: must be an object"},
      {"messages", "[{\"role\":\"user\",\"content\":[{}]}]", "messages[0].content[0].type"},
      {"messages", "[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{\"url\":\"x\"}}]}]",
       "image_url"},
      {"messages", "[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]", "messages[0].content[0].text"},
      {"messages", "[{\"role\":\"assistant\",\"tool_calls\":1}]", "messages[0].tool_calls: must be an array"},
      {"messages", "[{\"role\":\"assistant\",\"tool_calls\":[{}]}]", "messages[0].tool_calls[0].function"},
      {"tools", "1", "tools: must be an array"},
      {"tools", "[1]", "tools[0]"},
      {"chat_template_kwargs", "[]", "chat_template_kwargs: must be an object"},
      {"reasoning_effort", "3", "reasoning_effort: must be a string"},
      {"add_generation_prompt", "0", "add_generation_prompt: must be true or false"},
      {"continue_final_message", "true", "continue_final_message: wants a last message of the assistant"},
      {"functions", "[{}]", "functions"},
      {"audio", "{\"voice\":\"a\"}", "audio"},
      {"chat_template", "\"x\"", "chat_template: is not supported"},
      {"documents", "[{\"text\":\"a\"}]", "documents: is not supported"},
      {"logprobs", "3", "logprobs: must be true or false"},
      {"top_logprobs", "3", "top_logprobs: is allowed with"},
      {"top_logprobs", "50", "top_logprobs: must be within"},
      {"max_completion_tokens", "-2", "max_tokens: must be at least 1"},
      {"max_completion_tokens", "\"a\"", "max_completion_tokens: must be an integer"},
  };
  const std::vector<Bad> completions = {
      {"prompt", "null", "prompt: is missing"},
      {"prompt", "1", "prompt: must be a string, strings"},
      {"prompt", "{}", "prompt: must be a string, strings"},
      {"prompt", "[]", "prompt: is empty"},
      {"prompt", "[[]]", "prompt: is empty"},
      {"prompt", "\"\"", "prompt: is empty"},
      {"prompt", "[\"a\",1]", "prompt[1]: must be a string or an array"},
      {"prompt", "[[1,\"a\"]]", "prompt[0][1]: must be a token id"},
      {"prompt", "[1,\"a\"]", "prompt[1]: must be a token id"},
      {"prompt", "[-1]", "-1 outside"},
      {"prompt", "[99999999]", "99999999 outside"},
      {"suffix", "\"x\"", "suffix"},
      {"best_of", "5", "best_of"},
      {"logprobs", "true", "logprobs: must be an integer"},
      {"logprobs", "99", "logprobs: must be within"},
      {"echo", "1", "echo: must be true or false"},
  };
  int num = 0;
  const auto expect = [&](const std::string& path, const json& good, const Bad& bad) {
    json body = good;
    body[bad.field] = json::parse(bad.value);
    const HttpAnswer answer = HttpCall(At(), "POST", path, body.dump());
    const bool is_missing = absl::string_view(bad.text).find("not served here") != absl::string_view::npos;
    ExpectError(answer, is_missing ? 404 : 400, bad.text, absl::StrCat(path, " ", bad.field, "=", bad.value));
    ++num;
  };
  const json good_chat = {{"messages", {{{"role", "user"}, {"content", "a"}}}}, {"max_tokens", 1}};
  const json good_completion = {{"prompt", "a"}, {"max_tokens", 1}};
  for (const Bad& bad : common) {
    expect("/v1/chat/completions", good_chat, bad);
    expect("/v1/completions", good_completion, bad);
  }
  for (const Bad& bad : chat) expect("/v1/chat/completions", good_chat, bad);
  for (const Bad& bad : completions) expect("/v1/completions", good_completion, bad);
  EXPECT_GE(num, 120);
}

TEST_F(HttpHostileTest, BadHeadsAreNamed) {
  const std::string host = "Host: localhost\r\n";
  ExpectError(Raw("NONSENSE\r\n\r\n"), 400, "not a request", "no request line");
  ExpectError(Raw("GET / HTTP/9.9\r\n\r\n"), 400, "not a request", "version");
  ExpectError(Raw("GET /health HTTP/1.1\r\n\r\n"), 400, "Host", "no host");
  ExpectError(Raw(absl::StrCat("GET /health HTTP/1.1\r\n", host, host, "\r\n")), 400, "Host", "two hosts");
  ExpectError(Raw(absl::StrCat("GET /health HTTP/1.1\r\n", host, "bad name: x\r\n\r\n")), 400, "not a request", "name");
  ExpectError(Raw(absl::StrCat("GET /health HTTP/1.1\r\n", host, "X: ", std::string(1 << 20, 'x'), "\r\n\r\n")), 431,
              "head is longer", "a header of 1 MB");
  ExpectError(Raw(absl::StrCat("GET /", std::string(100000, 'x'), " HTTP/1.1\r\n", host, "\r\n")), 431,
              "head is longer", "a long path");
  ExpectError(Raw(absl::StrCat("POST /v1/completions HTTP/1.1\r\n", host, "Content-Length: 99999999999\r\n\r\n")), 413,
              "limit 4194304", "a large body");
  ExpectError(Raw(absl::StrCat("POST /v1/completions HTTP/1.1\r\n", host, "Content-Length: -1\r\n\r\n")), 400,
              "not a request", "a negative length");
}

// A proxy before this server may see the border between requests elsewhere.
TEST_F(HttpHostileTest, SmuggledRequestsAreRefused) {
  const std::string head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n";
  for (const std::string fields :
       {"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", "Content-Length: 5\r\nContent-Length: 6\r\n",
        "Content-Length: 5, 5\r\n", "Transfer-Encoding: chunked, identity\r\n", "Transfer-Encoding: xchunked\r\n"}) {
    const HttpAnswer answer =
        Raw(absl::StrCat(head, fields, "\r\n0\r\n\r\nGET /version HTTP/1.1\r\nHost: localhost\r\n\r\n"));
    EXPECT_TRUE(answer.status == 400 || answer.status == 501) << fields << answer.status << answer.body;
    EXPECT_EQ(answer.headers.at("connection"), "close") << fields;
  }
  ExpectError(Raw(absl::StrCat(head, "Transfer-Encoding: chunked\r\n\r\nZZ\r\n")), 400, "bad body", "no chunk");
  const std::string body = R"({"prompt":"a","max_tokens":1})";
  const HttpAnswer chunked =
      Raw(absl::StrCat(head, "Transfer-Encoding: chunked\r\n\r\n", absl::Hex(10), "\r\n", body.substr(0, 10), "\r\n",
                       absl::Hex(body.size() - 10), "\r\n", body.substr(10), "\r\n0\r\n\r\n"));
  EXPECT_EQ(chunked.status, 200) << chunked.body;
  const HttpAnswer expects =
      Raw(absl::StrCat(head, "Expect: 100-continue\r\nContent-Length: ", body.size(), "\r\n\r\n", body));
  EXPECT_EQ(expects.status, 200) << expects.body;
}

TEST_F(HttpHostileTest, SlowClientsAreEnded) {
  HttpConnectionForTests silent(At()), slow_head(At()), slow_body(At());
  slow_head.Send("GET /health HTTP/1.1\r\nHost");
  slow_body.Send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{");
  ExpectError(slow_body.Read(absl::Seconds(15)), 408, "took too long", "a body that does not come");
  ExpectError(slow_head.Read(absl::Seconds(15)), 408, "took too long", "a head that does not end");
  EXPECT_TRUE(silent.WaitClosed(absl::Seconds(15)));
}

}  // namespace
}  // namespace switchyard
