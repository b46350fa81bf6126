// What comes in on the HTTP port.  Boost.Beast splits heads and chunks, so this is our layer over it.  The first byte
// modulo 5 says which part of it.
// 0: a connection (http_connection.h); the next four bytes are the sizes of the pieces in which the rest comes. However
// it is cut the requests are the same and it is refused or not; they are within the limits; nothing is handled behind a
// refusal; in the end the connection is closed and holds nothing.
// 1 to 4: the body of a request of an API and, behind a NUL, what a model answers; the next byte chooses the model's
// format.  A body that is taken gives valid messages, and one that is not a refusal that says why; answers are JSON.
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "boost/asio/io_context.hpp"
#include "boost/asio/post.hpp"
#include "boost/asio/strand.hpp"
#include "nlohmann/json.hpp"
#include "proto/support/errors.h"
#include "proto/support/raw_message.h"
#include "server/http/apis/anthropic.h"
#include "server/http/apis/chat.h"
#include "server/http/apis/completions.h"
#include "server/http/apis/responses.h"
#include "server/http/http_connection.h"
#include "server/observe/trace_context.h"
#include "tests/fuzz/fuzz.h"

namespace switchyard::fuzz {
namespace {

using Json = nlohmann::json;

// --- connections ---

constexpr uint32_t kHeadBytes = 400;
constexpr int64_t kBodyBytes = 600;
constexpr size_t kMostBytes = 2048;  // of a connection: each is sent by itself once

// What came of a connection.
struct Outcome {
  std::vector<std::string> requests;
  std::vector<int> refusals;  // statuses; one at most
};

std::string TextOf(const server::HttpRequest& request) {
  std::string text = absl::StrCat(request.method, "\n", request.path, "\n", request.query);
  for (const auto& [name, value] : request.headers) absl::StrAppend(&text, "\n", name, "\n", value);
  return text;
}

void Note(const server::HttpRequest& request, Outcome* outcome) {
  SY_CHECK(outcome->refusals.empty());
  SY_CHECK(!request.method.empty());
  SY_CHECK(!absl::StrContains(request.path, '?'));
  SY_CHECK(request.body.size() <= static_cast<size_t>(kBodyBytes));
  const std::string head = TextOf(request);
  SY_CHECK(head.size() <= kHeadBytes);  // without what comes behind a chunked body
  const auto trace =
      server::ParseTraceContext(request.Values(server::kTraceparent), request.Values(server::kTracestate));
  if (trace.has_value()) SY_CHECK(trace->trace_id.size() == 32 && trace->parent_span_id.size() == 16);
  outcome->requests.push_back(absl::StrCat(head, "\n\n", request.body));
}

server::HttpServer::Options OptionsFor(Outcome* outcome) {
  server::HttpServer::Options options;
  options.head_bytes = kHeadBytes;
  options.body_bytes = kBodyBytes;
  options.requests_a_second = 1e9;
  options.handler = [outcome](const std::shared_ptr<server::HttpExchange>& exchange) {
    Note(exchange->request(), outcome);
    exchange->Reply({.body = "{}"});
  };
  options.refuse = [](int status, const std::string& why) {
    SY_CHECK(status >= 400 && status < 600 && !why.empty());
    return server::HttpReply{.status = status, .body = why};
  };
  options.finish_head = [outcome](const server::HttpRequest& request, server::HttpReply* reply) {
    if (request.method.empty()) outcome->refusals.push_back(reply->status);  // of what is no request
  };
  return options;
}

// Everything happens here, on this thread: the connection takes its turns between the pieces.
Outcome Serve(absl::string_view bytes, const std::array<size_t, 4>& pieces) {
  Outcome outcome;
  int ends[2];
  SY_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
  const UniqueFd client(ends[1]);
  const auto shared = std::make_shared<server::HttpShared>(OptionsFor(&outcome));
  boost::asio::io_context context(1);
  server::HttpConnection::Socket socket(context, boost::asio::local::stream_protocol(), ends[0]);
  {
    const auto connection = std::make_shared<server::HttpConnection>(
        std::move(socket), UniqueFd(), boost::asio::make_strand(context.get_executor()), shared, "ipv4:10.0.0.1:1000");
    absl::MutexLock lock(&shared->mu);
    shared->open.insert(connection);
    boost::asio::post(connection->strand(), [connection] { connection->Start(); });
  }
  const auto turn = [&] {  // reads the answers, so that they have room
    char answer[4096];
    do context.poll();
    while (recv(client.get(), answer, sizeof(answer), MSG_DONTWAIT) > 0);
  };
  turn();
  for (size_t i = 0; !bytes.empty(); ++i) {
    const absl::string_view piece = bytes.substr(0, pieces[i % pieces.size()]);
    if (send(client.get(), piece.data(), piece.size(), MSG_NOSIGNAL) < 0) break;  // the connection is closed
    bytes.remove_prefix(piece.size());
    turn();
  }
  shutdown(client.get(), SHUT_WR);
  turn();
  SY_CHECK(outcome.refusals.size() <= 1);
  SY_CHECK_EQ(shared->bodies.held(), 0);
  absl::MutexLock lock(&shared->mu);
  SY_CHECK(shared->open.empty());
  return outcome;
}

void CheckConnection(absl::string_view input) {
  std::array<size_t, 4> sizes = {};
  if (input.size() < sizes.size()) return;
  for (size_t i = 0; i < sizes.size(); ++i) sizes[i] = 1 + static_cast<uint8_t>(input[i]);
  const absl::string_view bytes = input.substr(sizes.size(), kMostBytes);
  const size_t all = bytes.size() + 1;
  const Outcome whole = Serve(bytes, {all, all, all, all});
  for (const std::array<size_t, 4>& pieces : {sizes, std::array<size_t, 4>{1, 1, 1, 1}}) {
    const Outcome cut = Serve(bytes, pieces);
    SY_CHECK(cut.requests == whole.requests);
    // Its status may differ: Beast finds what is wrong in a line at once, or once the head's end is there.
    SY_CHECK_EQ(cut.refusals.size(), whole.refusals.size());
  }
}

// --- bodies ---

const text::TextProcessor& TextWith(uint8_t choice) {
  constexpr std::pair<const char*, const char*> kParsers[] = {
      {"hermes", "deepseek_r1"}, {"qwen3_coder", "qwen3"}, {"openai", "openai_gptoss"}, {"none", "none"}};
  static const auto* const texts = [&] {
    auto* const made = new std::vector<std::unique_ptr<const text::TextProcessor>>();  // never destroyed
    for (const auto& [tools, reasoning] : kParsers) {
      server::ServerConfig config;
      config.model = "deploy/demo-model";
      config.tokenizer = "deploy/demo-model/tokenizer.json";
      config.tool_call_parser = tools;
      config.reasoning_parser = reasoning;
      made->push_back(text::TextProcessor::Load(config).value());
    }
    return made;
  }();
  return *(*texts)[choice % texts->size()];
}

std::unique_ptr<server::ResponseWriter> NewWriter(uint8_t api, const text::TextProcessor* text) {
  if (api == 1) return server::NewChatWriter(text, /*created=*/0);
  if (api == 2) return server::NewCompletionsWriter(text, /*created=*/0);
  if (api == 3) return server::NewResponsesWriter(text, /*created=*/0);
  return server::NewAnthropicWriter(text);
}

void CheckRefusal(const absl::Status& status, server::ErrorShape shape) {
  SY_CHECK(rpc::ReasonOf(status) != v1::ERROR_REASON_UNSPECIFIED);
  const server::HttpReply reply = server::ErrorReply(shape, status);
  SY_CHECK(reply.status >= 400 && reply.status < 500);
  SY_CHECK(Json::accept(reply.body));
}

void CheckAnswer(absl::string_view output, server::ResponseWriter* writer) {
  v1::GenerateResponse message;
  message.set_request_id("req-1");
  message.set_model("demo");
  message.set_text(Utf8(output));
  message.mutable_finish()->set_reason(v1::FINISH_REASON_STOP);
  const std::string events = writer->Add(0, message), end = writer->Finish();
  if (!writer->streams()) {
    SY_CHECK(events.empty());
    return SY_CHECK(Json::accept(end));
  }
  const std::string stream = absl::StrCat(events, end);
  for (absl::string_view line : absl::StrSplit(stream, '\n')) {
    if (absl::ConsumePrefix(&line, "data: ")) SY_CHECK(line == "[DONE]" || Json::accept(line));
  }
}

void CheckBody(uint8_t api, absl::string_view input) {
  constexpr int32_t kMostChoices = 8;  // (the engine's limit comes before the first answer)
  const text::TextProcessor& text = TextWith(static_cast<uint8_t>(input[0]));
  const auto [body, output] = CutAtNul(input.substr(1));
  const auto writer = NewWriter(api, &text);
  auto requests = writer->Parse(std::string(body));
  CheckSameEnd(requests, NewWriter(api, &text)->Parse(std::string(body)));
  if (!requests.ok()) return CheckRefusal(requests.status(), writer->error_shape());
  SY_CHECK(!requests->empty());
  int32_t num_choices = 0;
  for (v1::GenerateRequest& request : *requests) {
    writer->Complete(&request);
    SY_CHECK(request.prompt_case() != v1::GenerateRequest::PROMPT_NOT_SET);
    SY_CHECK_OK(rpc::CheckWire(*v1::GenerateRequest::descriptor(), request.SerializeAsString()));
    num_choices = std::max(num_choices, request.n());
  }
  // As a request is converted: the output begins behind the rendered prompt, and is held to what it must be.
  (void)writer->BeginOutput(absl::StrCat("<|im_start|>assistant\n", input[0] % 2 == 0 ? "" : "<think>\n"));
  if (const auto held = writer->Constrain(std::nullopt); held.has_value()) SY_CHECK(!held->calls.empty());
  if (num_choices <= kMostChoices) CheckAnswer(output, writer.get());
}

}  // namespace

void Fuzz(absl::string_view input) {
  if (input.size() < 2) return;
  const uint8_t part = static_cast<uint8_t>(input[0]) % 5;
  if (part == 0) return CheckConnection(input.substr(1));
  CheckBody(part, input.substr(1));
}

}  // namespace switchyard::fuzz
