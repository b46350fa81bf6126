// The request log and the traces of a real server with two workers, over gRPC and HTTP.
#include <signal.h>
#include <sys/stat.h>

#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/e2e/harness.h"
#include "tests/e2e/http_client.h"
#include "tests/server/observe/otlp_receiver.h"
#include "tests/workers/model/temp_dir.h"

namespace switchyard {
namespace {

using nlohmann::json;
using server::SpanSeen;
using testing::HasSubstr;
using testing::Not;

constexpr absl::Duration kSoon = absl::Seconds(60);
constexpr char kSecret[] = "zanzibar quokka";  // what no log and no span may have

std::string Traceparent(const std::string& trace_id, const char* flags = "01") {
  return absl::StrCat("00-", trace_id, "-b7ad6b7169203331-", flags);
}

class ObserveTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    dir_ = new model::TempDir;
    receiver_ = new server::OtlpReceiver;
    server_ = TestServer::Start({.workers = 2,
                                 .flags = {"--request_log=" + LogPath(), "--otlp_endpoint=" + receiver_->endpoint(),
                                           "--otlp_sample_ratio=0", "--max_streams=8"}})
                  .release();
  }
  static void TearDownTestSuite() {
    delete server_;
    delete receiver_;
    delete dir_;
  }
  void SetUp() override { ASSERT_NE(server_, nullptr); }

  static std::string LogPath() { return dir_->File("requests.jsonl"); }
  static std::string LogText(const std::string& path) {
    std::ifstream file(path);
    return std::string(std::istreambuf_iterator<char>(file), {});
  }
  // Waits for the line of the request of that id, in one of the logs.
  static json LineOf(const std::string& id, const std::string& path = LogPath()) {
    json found;
    EXPECT_TRUE(WaitUntil(
        [&] {
          std::ifstream file(path);
          for (std::string line; std::getline(file, line);) {
            const json parsed = json::parse(line, nullptr, false);
            if (parsed.is_object() && parsed["id"] == id) found = parsed;
          }
          return !found.is_null();
        },
        kSoon))
        << id << " is not in " << LogText(path);
    return found;
  }
  // Waits until the trace has a span of each name; returns them.
  static std::map<std::string, SpanSeen> SpansOf(const std::string& trace_id, const std::vector<std::string>& names) {
    std::map<std::string, SpanSeen> found;
    EXPECT_TRUE(receiver_->Wait([&](const std::vector<SpanSeen>& spans) {
      found.clear();
      for (const SpanSeen& span : spans) {
        if (span.trace_id == trace_id) found[span.name] = span;
      }
      return std::all_of(names.begin(), names.end(), [&](const std::string& name) { return found.count(name) > 0; });
    })) << trace_id
        << " has not all spans";
    return found;
  }
  // Generates over gRPC with metadata.
  static grpc::Status Generate(v1::GenerateRequest request, const std::string& traceparent,
                               const std::string& tracestate = "") {
    const auto stub = v1::InferenceService::NewStub(server_->channel());
    grpc::ClientContext context;
    context.AddMetadata("traceparent", traceparent);
    if (!tracestate.empty()) context.AddMetadata("tracestate", tracestate);
    const auto stream = stub->Generate(&context, request);
    v1::GenerateResponse message;
    while (stream->Read(&message)) {
    }
    return stream->Finish();
  }
  static v1::GenerateRequest Request(const std::string& id, int max_tokens) {
    v1::GenerateRequest request = TextRequest(absl::StrCat("Tell me of ", kSecret), max_tokens);
    request.set_request_id(id);
    return request;
  }

  static model::TempDir* dir_;
  static server::OtlpReceiver* receiver_;
  static TestServer* server_;
};
model::TempDir* ObserveTest::dir_ = nullptr;
server::OtlpReceiver* ObserveTest::receiver_ = nullptr;
TestServer* ObserveTest::server_ = nullptr;

TEST_F(ObserveTest, ARequestOverGrpcIsInTheLogAndInItsTrace) {
  const std::string trace = "0af7651916cd43dd8448eb211c80319c";
  ASSERT_TRUE(Generate(Request("grpc-1", 5), Traceparent(trace), "vendor=1").ok());
  const json line = LineOf("grpc-1");
  EXPECT_EQ(line["api"], "grpc");
  EXPECT_EQ(line["client"], "127.0.0.1");
  EXPECT_EQ(line["key"], nullptr);
  EXPECT_EQ(line["model"], "demo-model");
  EXPECT_GT(line["prompt_tokens"], 0);
  EXPECT_EQ(line["output_tokens"], 5);
  EXPECT_EQ(line["outcome"], "length");
  EXPECT_EQ(line["code"], "OK");
  EXPECT_EQ(line["http_status"], nullptr);
  EXPECT_EQ(line["trace_id"], trace);
  const double phases = line["queue_seconds"].get<double>() + line["prefill_seconds"].get<double>() +
                        line["decode_seconds"].get<double>();
  EXPECT_LE(phases, line["total_seconds"].get<double>() + 1e-5);
  EXPECT_LE(line["ttft_seconds"], line["total_seconds"]);

  const std::map<std::string, SpanSeen> spans =
      SpansOf(trace, {"switchyard.v1.InferenceService/Generate", "queue", "prefill", "decode", "prefill on worker 0",
                      "prefill on worker 1", "decode on worker 0", "decode on worker 1"});
  const SpanSeen& root = spans.at("switchyard.v1.InferenceService/Generate");
  EXPECT_EQ(root.parent_span_id, "b7ad6b7169203331");
  EXPECT_EQ(root.state, "vendor=1");
  EXPECT_EQ(root.kind, 2);
  EXPECT_EQ(root.attributes.at("gen_ai.operation.name"), "text_completion");
  EXPECT_EQ(root.attributes.at("gen_ai.usage.output_tokens"), "5");
  EXPECT_EQ(root.attributes.at("gen_ai.response.finish_reasons"), "length");
  EXPECT_EQ(root.attributes.at("server.port"), server_->address().substr(server_->address().rfind(':') + 1));
  for (const char* phase : {"queue", "prefill", "decode"}) {
    EXPECT_EQ(spans.at(phase).parent_span_id, root.span_id) << phase;
    EXPECT_GE(spans.at(phase).start_nanos, root.start_nanos - 1000) << phase;
    EXPECT_LE(spans.at(phase).end_nanos, root.end_nanos + 1000) << phase;
  }
  EXPECT_EQ(spans.at("queue").end_nanos, spans.at("prefill").start_nanos);
  EXPECT_EQ(spans.at("prefill").end_nanos, spans.at("decode").start_nanos);
  // Two workers computed it, one of them its attention.
  const std::string rank = spans.at("decode").attributes.at("switchyard.worker.rank");
  EXPECT_TRUE(rank == "0" || rank == "1") << rank;
  EXPECT_FALSE(spans.at("decode").attributes.at("switchyard.worker.host").empty());
  for (const char* worker : {"decode on worker 0", "decode on worker 1"}) {
    const SpanSeen& span = spans.at(worker);
    EXPECT_EQ(span.parent_span_id, spans.at("decode").span_id);
    EXPECT_GE(std::stoi(span.attributes.at("switchyard.steps")), 4);
    EXPECT_GT(std::stod(span.attributes.at("switchyard.step_seconds")), 0) << worker;
  }
  EXPECT_EQ(receiver_->resource()["service.name"], "switchyard");
  EXPECT_FALSE(receiver_->resource()["service.version"].empty());
  EXPECT_EQ(receiver_->resource()["service.instance.id"].size(), 32u);
}

TEST_F(ObserveTest, ARequestOverHttpIsInTheLogAndInItsTrace) {
  const std::string trace = "1af7651916cd43dd8448eb211c80319c";
  const json body = {{"messages", {{{"role", "user"}, {"content", kSecret}}}},
                     {"max_tokens", 4},
                     {"ignore_eos", true},
                     {"stream", true},
                     {"n", 2},
                     {"request_id", "http-1"}};
  const HttpAnswer answer = HttpCall(server_->http_address(), "POST", "/v1/chat/completions", body.dump(),
                                     {"traceparent: " + Traceparent(trace)});
  ASSERT_EQ(answer.status, 200) << answer.body;
  const json line = LineOf("http-1");
  EXPECT_EQ(line["api"], "/v1/chat/completions");
  EXPECT_EQ(line["client"], "127.0.0.1");
  EXPECT_EQ(line["stream"], true);
  EXPECT_EQ(line["n"], 2);
  EXPECT_EQ(line["output_tokens"], 8);
  EXPECT_EQ(line["http_status"], 200);
  EXPECT_EQ(line["outcome"], "length");
  EXPECT_EQ(line["trace_id"], trace);
  const std::map<std::string, SpanSeen> spans =
      SpansOf(trace, {"POST /v1/chat/completions", "queue", "prefill", "decode"});
  const SpanSeen& root = spans.at("POST /v1/chat/completions");
  EXPECT_EQ(root.parent_span_id, "b7ad6b7169203331");
  EXPECT_EQ(root.attributes.at("gen_ai.operation.name"), "chat");
  EXPECT_EQ(root.attributes.at("gen_ai.request.choice.count"), "2");
  EXPECT_EQ(root.attributes.at("gen_ai.response.finish_reasons"), "length,length");
  EXPECT_EQ(root.attributes.at("http.response.status_code"), "200");
  EXPECT_EQ(root.attributes.at("server.port"), server_->http_address().substr(server_->http_address().rfind(':') + 1));
}

TEST_F(ObserveTest, SeveralPromptsOfACallAreOneRequest) {
  const json body = {
      {"prompt", {"one", "two", "three"}}, {"max_tokens", 2}, {"ignore_eos", true}, {"request_id", "prompts"}};
  const HttpAnswer answer = HttpCall(server_->http_address(), "POST", "/v1/completions", body.dump());
  ASSERT_EQ(answer.status, 200) << answer.body;
  const std::string id = answer.json()["id"].get<std::string>();
  EXPECT_TRUE(WaitUntil([&] { return absl::StrContains(LogText(LogPath()), "\"prompts\":3"); }, kSoon)) << id;
  EXPECT_THAT(LogText(LogPath()), HasSubstr("\"prompts\":3,\"n\":1"));
  EXPECT_THAT(LogText(LogPath()), HasSubstr("\"output_tokens\":6"));
}

TEST_F(ObserveTest, RefusedRequestsHaveAnOutcome) {
  const std::string trace = "2af7651916cd43dd8448eb211c80319c";
  v1::GenerateRequest request = Request("bad-grpc", 1);
  request.mutable_sampling()->set_temperature(-1);
  EXPECT_EQ(Generate(request, Traceparent(trace)).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  const json line = LineOf("bad-grpc");
  EXPECT_EQ(line["outcome"], "error");
  EXPECT_EQ(line["code"], "INVALID_ARGUMENT");
  EXPECT_EQ(line["reason"], "BAD_FIELD");
  EXPECT_EQ(line["prompts"], 0);
  EXPECT_EQ(line["ttft_seconds"], nullptr);
  const SpanSeen root =
      SpansOf(trace, {"switchyard.v1.InferenceService/Generate"}).at("switchyard.v1.InferenceService/Generate");
  EXPECT_EQ(root.status, 2);
  EXPECT_EQ(root.attributes.at("error.type"), "BAD_FIELD");

  const std::string of_http = "3af7651916cd43dd8448eb211c80319c";
  const HttpAnswer answer = HttpCall(server_->http_address(), "POST", "/v1/completions", "{\"prompt\": 5}",
                                     {"traceparent: " + Traceparent(of_http)});
  EXPECT_EQ(answer.status, 400);
  EXPECT_EQ(
      SpansOf(of_http, {"POST /v1/completions"}).at("POST /v1/completions").attributes.at("http.response.status_code"),
      "400");
  EXPECT_THAT(LogText(LogPath()),
              HasSubstr(absl::StrCat("\"reason\":\"BAD_FIELD\",\"http_status\":400,\"trace_id\":\"", of_http)));
  const HttpAnswer foreign = HttpCall(server_->http_address(), "POST", "/v1/completions", "{}",
                                      {"Origin: http://elsewhere", "traceparent: " + Traceparent(of_http)});
  EXPECT_EQ(foreign.status, 403);
  EXPECT_TRUE(WaitUntil([] { return absl::StrContains(LogText(LogPath()), "\"http_status\":403"); }, kSoon));
}

TEST_F(ObserveTest, AClientThatGoesAwayIsAnAbort) {
  const auto stub = v1::InferenceService::NewStub(server_->channel());
  grpc::ClientContext context;
  const auto stream = stub->Generate(&context, Request("gone", 900));
  v1::GenerateResponse message;
  ASSERT_TRUE(stream->Read(&message));
  context.TryCancel();
  while (stream->Read(&message)) {
  }
  (void)stream->Finish();
  const json line = LineOf("gone");
  EXPECT_EQ(line["outcome"], "abort");
  EXPECT_EQ(line["code"], "CANCELLED");
  EXPECT_GE(line["output_tokens"], 1);
  EXPECT_NE(line["ttft_seconds"], nullptr) << "what the engine knows of it is there, too";
}

TEST_F(ObserveTest, TheParentDecidesWhatIsSampled) {
  const std::string not_sampled = "4af7651916cd43dd8448eb211c80319c", sampled = "5af7651916cd43dd8448eb211c80319c";
  ASSERT_TRUE(Generate(Request("not-sampled", 1), Traceparent(not_sampled, "00")).ok());
  ASSERT_TRUE(Generate(Request("malformed", 1), "00-ABC").ok());
  ASSERT_TRUE(Generate(Request("sampled", 1), Traceparent(sampled)).ok());
  EXPECT_EQ(LineOf("not-sampled")["trace_id"], not_sampled);
  EXPECT_EQ(LineOf("malformed")["trace_id"].get<std::string>().size(), 32u) << "one of its own";
  SpansOf(sampled, {"decode"});  // spans go out in order
  for (const SpanSeen& span : receiver_->spans()) {
    EXPECT_NE(span.trace_id, not_sampled);
    EXPECT_NE(span.trace_id, LineOf("malformed")["trace_id"]) << "--otlp_sample_ratio=0";
  }
}

TEST_F(ObserveTest, AfterARenameAndSighupTheLogIsANewFile) {
  const std::string old = dir_->File("requests.jsonl.1");
  ASSERT_TRUE(Generate(Request("before", 1), "").ok());
  LineOf("before");
  struct stat st = {};
  ASSERT_EQ(stat(LogPath().c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 0777, 0600u);
  ASSERT_EQ(rename(LogPath().c_str(), old.c_str()), 0);
  server_->process().Signal(SIGHUP);
  ASSERT_TRUE(server_->process().WaitForOutput("requests.jsonl: opened again", kSoon));
  ASSERT_TRUE(Generate(Request("after", 1), "").ok());
  LineOf("after");
  EXPECT_THAT(LogText(old), Not(HasSubstr("\"after\"")));
  EXPECT_THAT(absl::StrCat(LogText(old), LogText(LogPath())), Not(HasSubstr("quokka")));
  for (const SpanSeen& span : receiver_->spans()) {
    for (const auto& [key, value] : span.attributes) EXPECT_THAT(value, Not(HasSubstr("quokka"))) << key;
  }
}

TEST_F(ObserveTest, ZMetricsCountSpans) {  // last
  const std::string page = Scrape(server_->metrics_address());
  for (const char* result : {"failed", "dropped"}) {
    EXPECT_THAT(page, testing::ContainsRegex(absl::StrCat("otlp_spans_total\\{[^}]*result=\"", result, "\"\\} 0\n")));
  }
  EXPECT_THAT(page, testing::ContainsRegex("otlp_spans_total\\{[^}]*result=\"sent\"\\} [1-9]"));
  EXPECT_THAT(page, testing::ContainsRegex("request_log_dropped_total\\{[^}]*\\} 0\n"));
}

// Nobody listens at the endpoint, and the log is standard output.
TEST(ObserveWithoutCollectorTest, RequestsAreServed) {
  std::string endpoint;
  {
    server::OtlpReceiver gone;
    endpoint = gone.endpoint();
  }
  const auto server = TestServer::Start({.workers = 1, .flags = {"--request_log=-", "--otlp_endpoint=" + endpoint}});
  ASSERT_NE(server, nullptr);
  v1::GenerateRequest request = TextRequest("Once", 3);
  request.set_request_id("unseen");
  EXPECT_TRUE(Generate(server->client(), request).ok());
  EXPECT_TRUE(server->process().WaitForOutput("\"id\":\"unseen\"", kSoon));
  EXPECT_TRUE(WaitUntil([&] { return absl::StrContains(server->process().Output(), ": spans are lost: "); }, kSoon));
  EXPECT_THAT(Scrape(server->metrics_address()),
              testing::ContainsRegex("otlp_spans_total\\{[^}]*result=\"failed\"\\} [1-9]"));
}

}  // namespace
}  // namespace switchyard
