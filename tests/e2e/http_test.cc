// OpenAI's API over HTTP, beside the same requests over gRPC; and what HTTP's clients do wrong.
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "clients/cpp/client_error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/e2e/harness.h"
#include "tests/e2e/http_client.h"
#include "tests/e2e/metrics_page.h"

namespace switchyard {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class HttpTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { server_ = TestServer::Start({.flags = {"--max_streams=600"}}).release(); }
  static void TearDownTestSuite() { delete server_; }
  void SetUp() override { ASSERT_NE(server_, nullptr); }

  static const std::string& At() { return server_->http_address(); }
  static HttpAnswer Post(const std::string& path, const json& body) {
    return HttpCall(At(), "POST", path, body.dump());
  }
  static json Chat(const std::string& text, int max_tokens) {
    return {{"messages", {{{"role", "user"}, {"content", text}}}}, {"max_tokens", max_tokens}, {"temperature", 0}};
  }
  // The text and the finish reason of a stream's choices, and its usage.
  struct Streamed {
    std::map<int, std::string> texts, ends;
    json usage;
    int roles = 0;
  };
  static Streamed ReadStream(const HttpAnswer& answer, bool is_chat) {
    Streamed seen;
    const std::vector<std::string> events = answer.Events();
    EXPECT_FALSE(events.empty()) << answer.body;
    if (events.empty()) return seen;
    EXPECT_EQ(events.back(), "[DONE]");
    std::string id;
    for (size_t i = 0; i + 1 < events.size(); ++i) {
      const json event = json::parse(events[i]);
      EXPECT_EQ(event["object"], is_chat ? "chat.completion.chunk" : "text_completion");
      if (id.empty()) id = event["id"];
      EXPECT_EQ(event["id"], id);
      EXPECT_EQ(event["model"], "demo-model");
      if (event["choices"].empty()) {
        EXPECT_EQ(i + 2, events.size()) << "usage comes last";
        seen.usage = event["usage"];
      }
      for (const json& choice : event["choices"]) {
        const int index = choice["index"];
        EXPECT_EQ(seen.ends.count(index), 0u) << "nothing follows the end of a choice";
        if (is_chat) {
          if (choice["delta"].contains("role")) ++seen.roles;
          seen.texts[index] += choice["delta"].value("content", "");
        } else {
          seen.texts[index] += choice["text"].get<std::string>();
        }
        if (!choice["finish_reason"].is_null()) seen.ends[index] = choice["finish_reason"];
      }
    }
    return seen;
  }
  static TestServer* server_;
};
TestServer* HttpTest::server_ = nullptr;

TEST_F(HttpTest, ACompletionIsWhatGrpcGives) {
  for (const int tokens : {1, 7, 40}) {
    const StreamSeen grpc = Generate(server_->client(), TextRequest("In the beginning", tokens));
    const HttpAnswer http =
        Post("/v1/completions",
             {{"prompt", "In the beginning"}, {"max_tokens", tokens}, {"temperature", 0}, {"ignore_eos", true}});
    ASSERT_EQ(http.status, 200) << http.body;
    const json body = http.json();
    EXPECT_EQ(body["object"], "text_completion");
    EXPECT_EQ(body["choices"][0]["text"], grpc.choices[0].text);
    EXPECT_EQ(body["choices"][0]["finish_reason"], "length");
    EXPECT_EQ(body["usage"]["completion_tokens"], tokens);
    EXPECT_EQ(body["usage"]["prompt_tokens"], grpc.choices[0].finish.usage().prompt_tokens());
    EXPECT_EQ(body["usage"]["total_tokens"],
              body["usage"]["prompt_tokens"].get<int>() + body["usage"]["completion_tokens"].get<int>());
  }
}

TEST_F(HttpTest, AStreamIsTheWholeInPieces) {
  for (const bool is_chat : {true, false}) {
    const std::string path = is_chat ? "/v1/chat/completions" : "/v1/completions";
    json request = is_chat ? Chat("Name a colour", 24) : json{{"prompt", "Name"}, {"max_tokens", 24}};
    request.update({{"n", 3}, {"temperature", 1.0}, {"seed", 17}});
    const json whole = Post(path, request).json();
    request.update({{"stream", true}, {"stream_options", {{"include_usage", true}}}});
    const HttpAnswer answer = Post(path, request);
    EXPECT_THAT(answer.headers.at("content-type"), HasSubstr("text/event-stream"));
    const Streamed seen = ReadStream(answer, is_chat);
    ASSERT_EQ(whole["choices"].size(), 3u);
    for (const json& choice : whole["choices"]) {
      const int index = choice["index"];
      EXPECT_EQ(seen.texts.at(index), is_chat ? choice["message"]["content"] : choice["text"]);
      EXPECT_EQ(seen.ends.at(index), choice["finish_reason"]);
    }
    EXPECT_EQ(seen.usage["completion_tokens"], whole["usage"]["completion_tokens"]);
    EXPECT_EQ(seen.usage["prompt_tokens"], whole["usage"]["prompt_tokens"]);
    if (is_chat) EXPECT_EQ(seen.roles, 3);
  }
}

TEST_F(HttpTest, LogprobsHaveTheBytesOfTheText) {
  json request = Chat("Write ünïcödé", 30);
  request.update({{"logprobs", true}, {"top_logprobs", 3}});
  const json choice = Post("/v1/chat/completions", request).json()["choices"][0];
  std::string bytes;
  for (const json& position : choice["logprobs"]["content"]) {
    for (const int byte : position["bytes"]) bytes += static_cast<char>(byte);
    EXPECT_EQ(position["top_logprobs"].size(), 3u);
    EXPECT_LE(position["logprob"].get<double>(), 0);
    EXPECT_GE(position["top_logprobs"][0]["logprob"], position["top_logprobs"][2]["logprob"]);
  }
  // The token that ends an answer has log probabilities, too, but is no part of the text.
  std::string text = choice["message"]["content"];
  if (choice["finish_reason"] == "stop") text += "<|im_end|>";
  EXPECT_EQ(bytes, text);
}

// As lm-eval's local-completions scores texts.
TEST_F(HttpTest, EchoScoresAPromptOfTokenIds) {
  const json ids = Post("/tokenize", {{"prompt", "In the beginning was the word"}}).json()["tokens"];
  for (const int max_tokens : {0, 1}) {
    const json body =
        Post("/v1/completions",
             {{"prompt", {ids, ids}}, {"max_tokens", max_tokens}, {"temperature", 0}, {"echo", true}, {"logprobs", 1}})
            .json();
    ASSERT_EQ(body["choices"].size(), 2u) << body;
    for (const json& choice : body["choices"]) {
      const json& logprobs = choice["logprobs"];
      ASSERT_EQ(logprobs["token_logprobs"].size(), ids.size() + static_cast<size_t>(max_tokens));
      EXPECT_TRUE(logprobs["token_logprobs"][0].is_null());
      for (size_t i = 1; i < ids.size(); ++i) EXPECT_LT(logprobs["token_logprobs"][i], 0);
      EXPECT_THAT(choice["text"].get<std::string>(), testing::StartsWith("In the beginning was the word"));
      EXPECT_EQ(logprobs["tokens"].size(), logprobs["text_offset"].size());
    }
    EXPECT_EQ(body["choices"][0]["logprobs"], body["choices"][1]["logprobs"]);
    EXPECT_EQ(body["usage"]["completion_tokens"], 2 * max_tokens);
  }
}

TEST_F(HttpTest, StopStringsEndAndAreNamed) {
  const json plain = Post("/v1/completions", {{"prompt", "One, two"}, {"max_tokens", 40}, {"temperature", 0}}).json();
  const std::string text = plain["choices"][0]["text"];
  ASSERT_GE(text.size(), 12u);
  const std::string stop = text.substr(6, 3);
  const json body = Post("/v1/completions",
                         {{"prompt", "One, two"}, {"max_tokens", 40}, {"temperature", 0}, {"stop", {stop, "\x01"}}})
                        .json();
  EXPECT_EQ(body["choices"][0]["text"], text.substr(0, text.find(stop)));
  EXPECT_EQ(body["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(body["choices"][0]["stop_reason"], stop);
}

TEST_F(HttpTest, OutputsFollowSchemasRegexesAndChoices) {
  const json schema = {{"type", "object"},
                       {"properties", {{"ok", {{"type", "boolean"}}}, {"grade", {{"enum", {"a", "b"}}}}}},
                       {"required", {"ok", "grade"}},
                       {"additionalProperties", false}};
  json request = Chat("Answer", 200);
  request["response_format"] = {{"type", "json_schema"}, {"json_schema", {{"name", "answer"}, {"schema", schema}}}};
  const json whole = Post("/v1/chat/completions", request).json();
  ASSERT_TRUE(whole.contains("choices")) << whole;
  const json answer = json::parse(whole["choices"][0]["message"]["content"].get<std::string>(), nullptr, false);
  EXPECT_TRUE(answer.is_object() && answer["ok"].is_boolean() && answer.size() == 2u) << whole;
  EXPECT_EQ(whole["choices"][0]["finish_reason"], "stop");
  request["stream"] = true;
  EXPECT_EQ(ReadStream(Post("/v1/chat/completions", request), true).texts.at(0),
            whole["choices"][0]["message"]["content"]);

  const auto text = [](const json& more) {
    json body = {{"prompt", "It is"}, {"max_tokens", 20}, {"temperature", 0}};
    body.update(more);
    const json answer = Post("/v1/completions", body).json();
    return answer.contains("choices") ? answer["choices"][0]["text"].get<std::string>() : answer.dump();
  };
  EXPECT_THAT(text({{"guided_regex", "[0-9]{3}-[a-f]{2}"}}), testing::MatchesRegex("[0-9]+-[a-f]+"));
  EXPECT_THAT(text({{"guided_choice", {"red", "green"}}}), testing::AnyOf("red", "green"));
  EXPECT_THAT(text({{"structured_outputs", {{"choice", {"up", "down"}}}}}), testing::AnyOf("up", "down"));
  const json object =
      Post("/v1/responses", {{"input", "a"},
                             {"max_output_tokens", 200},
                             {"temperature", 0},
                             {"text", {{"format", {{"type", "json_schema"}, {"name", "x"}, {"schema", schema}}}}}})
          .json();
  ASSERT_EQ(object["status"], "completed") << object;
  EXPECT_TRUE(json::parse(object["output"][0]["content"][0]["text"].get<std::string>())["ok"].is_boolean());
}

// The model knows of no tools, and how it would write a call is not known: what it writes is held to them.
TEST_F(HttpTest, CallsThatMustBeMadeFollowTheirSchemas) {
  const auto tool = [](const char* name, const json& properties, const json& required) {
    return json{
        {"type", "function"},
        {"function",
         {{"name", name}, {"parameters", {{"type", "object"}, {"properties", properties}, {"required", required}}}}}};
  };
  json request = Chat("Add", 120);
  request["tools"] = {tool("add", {{"a", {{"type", "integer"}, {"maximum", 99}, {"minimum", 0}}}}, {"a"}),
                      tool("look", {{"where", {{"enum", {"up", "down"}}}}}, {"where"})};
  for (const json& choice : {json("required"), json{{"type", "function"}, {"function", {{"name", "add"}}}}}) {
    request["tool_choice"] = choice;
    request["parallel_tool_calls"] = false;
    for (const int seed : {1, 2, 3}) {
      request["seed"] = seed;
      request["temperature"] = 1.5;
      const json answer = Post("/v1/chat/completions", request).json();
      ASSERT_TRUE(answer.contains("choices")) << answer;
      const json& message = answer["choices"][0]["message"];
      EXPECT_EQ(answer["choices"][0]["finish_reason"], "tool_calls") << answer;
      ASSERT_EQ(message.value("tool_calls", json::array()).size(), 1u) << answer;
      const json& call = message["tool_calls"][0]["function"];
      const json arguments = json::parse(call["arguments"].get<std::string>(), nullptr, false);
      const bool is_add = call["name"] == "add";
      EXPECT_TRUE(is_add ? arguments["a"].is_number_integer() : arguments["where"].is_string()) << answer;
      EXPECT_TRUE(is_add || !choice.is_object());
    }
  }
  request["tools"][0]["function"]["parameters"]["not"] = json::object();
  request["tools"][0]["function"]["strict"] = true;
  const json error = Post("/v1/chat/completions", request).json()["error"];
  EXPECT_EQ(error["param"], "tools");
  EXPECT_THAT(error["message"].get<std::string>(), testing::HasSubstr("add: $: \"not\""));
}

TEST_F(HttpTest, ConstraintsThatCannotBeHeldToAreNamedAsTheClientDoes) {
  const auto error = [](const json& more) {
    json body = {{"messages", {{{"role", "user"}, {"content", "a"}}}}};
    body.update(more);
    return Post("/v1/chat/completions", body).json()["error"];
  };
  const json schema = {{"type", "object"}, {"not", json::object()}};
  EXPECT_EQ(error({{"response_format", {{"type", "json_schema"}, {"json_schema", {{"schema", schema}}}}}})["param"],
            "response_format.json_schema.schema");
  EXPECT_EQ(error({{"guided_regex", "("}})["param"], "guided_regex");
  EXPECT_EQ(error({{"structured_outputs", {{"grammar", "root ::= x"}}}})["param"], "structured_outputs.grammar");
}

TEST_F(HttpTest, OtherNamesOfThisHostAreRefused) {
  const auto status = [](const std::string& host) {
    return HttpCall(At(), "GET", "/v1/models", "", {"Host: " + host}).status;
  };
  for (const char* const own : {"localhost:8000", "127.0.0.1", "[::1]:8000", "[::1]", "a.localhost"})
    EXPECT_EQ(status(own), 200) << own;
  for (const char* const other : {"evil.example", "evil.example:8000", "localhost.evil.example", "10.0.0.1"})
    EXPECT_EQ(status(other), 403) << other;
  const auto named = TestServer::Start({.flags = {"--http_hosts=box.example"}});
  ASSERT_NE(named, nullptr);
  EXPECT_EQ(HttpCall(named->http_address(), "GET", "/v1/models", "", {"Host: Box.example:80"}).status, 200);
}

TEST_F(HttpTest, ContentPartsAndNullsAreRead) {
  const json plain = Post("/v1/chat/completions", Chat("Hello", 8)).json();
  json request = Chat("", 8);
  request["messages"][0]["content"] = {{{"type", "text"}, {"text", "Hello"}}};
  request.update(
      {{"stop", nullptr}, {"n", nullptr}, {"tools", nullptr}, {"user", "me"}, {"store", false}, {"top_p", 1}});
  const json parts = Post("/v1/chat/completions", request).json();
  EXPECT_EQ(parts["choices"][0]["message"], plain["choices"][0]["message"]) << parts;
}

TEST_F(HttpTest, SmallPaths) {
  EXPECT_EQ(HttpCall(At(), "GET", "/health").status, 200);
  EXPECT_EQ(HttpCall(At(), "GET", "/ready").json(), json({{"ready", true}}));
  EXPECT_EQ(HttpCall(At(), "GET", "/version").json()["version"].get<std::string>().find('.'), 1u);
  EXPECT_EQ(HttpCall(At(), "GET", "/load").json()["ready"], true);
  const json models = HttpCall(At(), "GET", "/v1/models").json();
  EXPECT_EQ(models["data"][0]["id"], "demo-model");
  EXPECT_EQ(HttpCall(At(), "GET", "/v1/models/demo-model").json(), models["data"][0]);
  EXPECT_EQ(HttpCall(At(), "GET", "/v1/models/demo%2Dmodel").json(), models["data"][0]);
  EXPECT_EQ(HttpCall(At(), "GET", "/v1/models/other").json()["error"]["code"], "model_not_found");
  EXPECT_THAT(HttpCall(At(), "GET", "/metrics").body, HasSubstr("switchyard_http_requests_total"));
  EXPECT_EQ(HttpCall(At(), "GET", "/nowhere?a=b").status, 404);
  const HttpAnswer wrong = HttpCall(At(), "DELETE", "/v1/chat/completions");
  EXPECT_EQ(wrong.status, 405);
  EXPECT_EQ(wrong.headers.at("allow"), "POST");
  const json ids = Post("/tokenize", {{"prompt", "Hi there"}, {"return_token_strs", true}}).json();
  EXPECT_EQ(ids["count"], ids["tokens"].size());
  EXPECT_EQ(ids["count"], ids["token_strs"].size());
  EXPECT_EQ(Post("/detokenize", {{"tokens", ids["tokens"]}}).json()["prompt"], "Hi there");
}

TEST_F(HttpTest, CountedTokensAreThoseThatAMessageSends) {
  const json user = {{"role", "user"}, {"content", "Name a colour"}};
  const json begun = {{"role", "assistant"}, {"content", "The colour is"}};
  for (const json& turns : {json::array({user}), json::array({user, begun})}) {
    json body = {{"messages", turns}};
    const json counted = Post("/v1/messages/count_tokens", body).json();
    body["max_tokens"] = 1;
    const json answer = Post("/v1/messages", body).json();
    ASSERT_TRUE(answer.contains("usage")) << answer;
    const json& usage = answer["usage"];
    EXPECT_EQ(counted.value("input_tokens", -1),
              usage["input_tokens"].get<int>() + usage["cache_read_input_tokens"].get<int>());
  }
}

TEST_F(HttpTest, AConnectionServesManyRequests) {
  HttpConnectionForTests connection(At());
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(connection.Request("POST", "/v1/completions", R"({"prompt":"a","max_tokens":2,"temperature":0})"));
    const HttpAnswer answer = connection.Read();
    EXPECT_EQ(answer.status, 200) << answer.body;
    EXPECT_EQ(answer.headers.at("connection"), "keep-alive");
  }
  // Two at once, and one without a body for HEAD.
  connection.Send("GET /version HTTP/1.1\r\nHost: localhost\r\n\r\nGET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_THAT(connection.Read().body, HasSubstr("version"));
  EXPECT_THAT(connection.Read().body, HasSubstr("demo-model"));
  connection.Request("GET", "/version", "", {"Connection: close"});
  EXPECT_EQ(connection.Read().headers.at("connection"), "close");
  EXPECT_TRUE(connection.WaitClosed(absl::Seconds(5)));
}

TEST_F(HttpTest, AClosedConnectionEndsTheWork) {
  constexpr int kTokens = 1000, kChoices = 8;  // seconds of work
  const auto made = [] { return Value(Scrape(server_->metrics_address()), "switchyard_generation_tokens_total"); };
  for (const bool streams : {true, false}) {
    ASSERT_TRUE(server_->WaitIdle());
    const double before = made();
    ASSERT_GE(before, 0);
    HttpConnectionForTests connection(At());
    const json request = {
        {"prompt", "a"}, {"max_tokens", kTokens}, {"n", kChoices}, {"ignore_eos", true}, {"stream", streams}};
    connection.Request("POST", "/v1/completions", request.dump());
    if (streams) {
      EXPECT_THAT(connection.ReadSome(300), HasSubstr("200 OK"));
    }
    ASSERT_TRUE(WaitUntil([&] { return made() > before; }, absl::Seconds(30)));
    connection.Close();
    EXPECT_TRUE(server_->WaitIdle());
    EXPECT_LT(made() - before, kChoices * kTokens) << "its work went on to its end";
  }
}

TEST_F(HttpTest, ManyStreamsAtOnceWithSlowReaders) {
  json request = Chat("Count", 40);
  request.update({{"stream", true}, {"ignore_eos", true}});
  const std::string wanted = ReadStream(Post("/v1/chat/completions", request), true).texts.at(0);
  constexpr int kStreams = 256;
  std::vector<std::unique_ptr<HttpConnectionForTests>> connections;
  for (int i = 0; i < kStreams; ++i) {
    connections.push_back(std::make_unique<HttpConnectionForTests>(At(), absl::StrCat("127.0.0.", 2 + i % 4)));
    ASSERT_TRUE(connections.back()->Request("POST", "/v1/chat/completions", request.dump())) << i;
  }
  absl::SleepFor(absl::Milliseconds(500));  // nobody reads
  for (const auto& connection : connections) {
    const HttpAnswer answer = connection->Read();
    ASSERT_EQ(answer.status, 200) << answer.body;
    EXPECT_EQ(ReadStream(answer, true).texts.at(0), wanted);
  }
  EXPECT_TRUE(server_->WaitIdle());
}

TEST_F(HttpTest, OriginsOfOtherSitesAreRefused) {
  const std::string body = R"({"prompt":"a","max_tokens":1})";
  EXPECT_EQ(HttpCall(At(), "POST", "/v1/completions", body, {"Origin: https://evil.example"}).status, 403);
  EXPECT_EQ(HttpCall(At(), "POST", "/v1/completions", body, {absl::StrCat("Origin: http://", At())}).status, 200);
  const auto open = TestServer::Start({.flags = {"--http_origins=https://chat.example,https://b.example"}});
  ASSERT_NE(open, nullptr);
  const HttpAnswer preflight = HttpCall(open->http_address(), "OPTIONS", "/v1/completions", "",
                                        {"Origin: https://chat.example", "Access-Control-Request-Method: POST"});
  EXPECT_EQ(preflight.status, 204);
  EXPECT_EQ(preflight.headers.at("access-control-allow-origin"), "https://chat.example");
  // Each client library has headers of its own.
  const auto allowed_headers = [&](const std::string& asked) {
    const HttpAnswer answer =
        HttpCall(open->http_address(), "OPTIONS", "/v1/messages", "",
                 {"Origin: https://chat.example", absl::StrCat("Access-Control-Request-Headers: ", asked)});
    return answer.headers.at("access-control-allow-headers");
  };
  for (const char* const asked : {"anthropic-version,x-api-key", "authorization, x-stainless-os"})
    EXPECT_EQ(allowed_headers(asked), asked);
  EXPECT_THAT(allowed_headers("x-a;<script>"), testing::StartsWith("Authorization, "));
  EXPECT_THAT(allowed_headers(std::string(4000, 'x')), testing::StartsWith("Authorization, "));
  const HttpAnswer allowed =
      HttpCall(open->http_address(), "POST", "/v1/completions", body, {"Origin: https://b.example"});
  EXPECT_EQ(allowed.headers.at("access-control-expose-headers"), "Retry-After, X-Request-Id");
  EXPECT_EQ(HttpCall(open->http_address(), "POST", "/v1/completions", body, {"Origin: https://c.example"}).status, 403);
}

// A client at a wrong port learns which is the right one.
TEST_F(HttpTest, PortsNameEachOther) {
  const auto port_of = [](const std::string& address) { return address.substr(address.rfind(':') + 1); };
  EXPECT_EQ(
      client::Client::Connect(At()).status().message(),
      absl::StrCat("cannot reach ", At(), ": this is the HTTP port; gRPC is on port ", port_of(server_->address())));
  EXPECT_THAT(client::Explain(client::Client::Connect(At()).status()),
              AllOf(HasSubstr("give the address of that port"), Not(HasSubstr("is the server running"))));
  EXPECT_THAT(std::string(client::Client::Connect(server_->metrics_address()).status().message()),
              HasSubstr("this is the page of metrics; gRPC is on the server's --port"));
  const HttpAnswer answer = HttpCall(server_->address(), "GET", "/v1/models");
  EXPECT_EQ(answer.status, 400);
  EXPECT_EQ(answer.body, absl::StrCat("switchyard: this port speaks gRPC; HTTP is on port ", port_of(At()), "\n"));
  EXPECT_EQ(HttpCall(At(), "GET", "/health").status, 200);
  rpc::TlsFiles tls;
  tls.on = true;
  EXPECT_THAT(std::string(client::Client::Connect(server_->address(), {.tls = tls}).status().message()),
              HasSubstr("it does not speak TLS; leave --tls and --tls_ca away"));
}

}  // namespace
}  // namespace switchyard
