// Spans in OTLP's JSON: their shape, their attributes and their times.
#include "server/observe/otlp_json.h"

#include <memory>
#include <set>
#include <string>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/observe/otlp_receiver.h"
#include "tests/server/observe/record_fixture.h"

namespace switchyard::server {
namespace {

using testing::Contains;
using testing::Pair;

class OtlpJsonTest : public testing::Test {
 protected:
  std::vector<SpanSeen> Spans(const RequestRecord& record) {
    const OtlpResource resource = {
        .version = "1.2", .instance_id = "abc", .address = "127.0.0.1", .grpc_port = 50051, .http_port = 8000};
    const auto shared = std::make_shared<const RequestRecord>(record);
    body_ = OtlpBody(resource, {shared}, [this] { return ++drawn_; });
    return OtlpBodyReader::Read(body_, &resource_);
  }
  static const SpanSeen* Named(const std::vector<SpanSeen>& spans, const std::string& name, const std::string& choice) {
    for (const SpanSeen& span : spans) {
      const auto at = span.attributes.find("switchyard.choice");
      if (span.name == name && (choice.empty() || (at != span.attributes.end() && at->second == choice))) return &span;
    }
    ADD_FAILURE() << "no span " << name << " of choice " << choice;
    static const SpanSeen none;
    return &none;
  }

  uint64_t drawn_ = 0;
  std::string body_;
  std::map<std::string, std::string> resource_;
};

TEST_F(OtlpJsonTest, ARequestIsAServerSpanWithItsAttributes) {
  const std::vector<SpanSeen> spans = Spans(TestRecord());
  EXPECT_THAT(resource_, testing::ElementsAre(Pair("service.instance.id", "abc"), Pair("service.name", "switchyard"),
                                              Pair("service.version", "1.2")));
  const SpanSeen& span = spans.at(0);
  EXPECT_EQ(span.name, "POST /v1/chat/completions");
  EXPECT_EQ(span.kind, 2);
  EXPECT_EQ(span.trace_id, "0af7651916cd43dd8448eb211c80319c");
  EXPECT_EQ(span.parent_span_id, "b7ad6b7169203331");
  EXPECT_EQ(span.span_id, "00f067aa0ba902b7");
  EXPECT_EQ(span.state, "foo=1");
  EXPECT_EQ(span.start_nanos, 1796880000000000000);
  EXPECT_EQ(span.end_nanos, 1796880000100000000);
  EXPECT_EQ(span.status, 0);
  const std::map<std::string, std::string> wanted = {{"http.request.method", "POST"},
                                                     {"http.route", "/v1/chat/completions"},
                                                     {"url.path", "/v1/chat/completions"},
                                                     {"http.response.status_code", "200"},
                                                     {"server.address", "127.0.0.1"},
                                                     {"server.port", "8000"},
                                                     {"client.address", "10.0.0.1"},
                                                     {"user.name", "alice"},
                                                     {"gen_ai.operation.name", "chat"},
                                                     {"gen_ai.provider.name", "switchyard"},
                                                     {"gen_ai.request.model", "demo"},
                                                     {"gen_ai.request.max_tokens", "16"},
                                                     {"gen_ai.request.temperature", "0.5"},
                                                     {"gen_ai.request.top_p", "1"},
                                                     {"gen_ai.request.top_k", "7"},
                                                     {"gen_ai.request.frequency_penalty", "0"},
                                                     {"gen_ai.request.presence_penalty", "0"},
                                                     {"gen_ai.request.seed", "42"},
                                                     {"gen_ai.request.choice.count", "2"},
                                                     {"gen_ai.response.id", "req-1"},
                                                     {"gen_ai.response.model", "demo"},
                                                     {"gen_ai.response.finish_reasons", "stop,length"},
                                                     {"gen_ai.usage.input_tokens", "12"},
                                                     {"gen_ai.usage.output_tokens", "21"},
                                                     {"gen_ai.usage.cache_read.input_tokens", "4"},
                                                     {"gen_ai.server.time_to_first_token", "0.02"},
                                                     {"switchyard.outcome", "length"}};
  EXPECT_EQ(span.attributes, wanted);
}

TEST_F(OtlpJsonTest, EachChoiceHasItsPhasesAndTheirWorkers) {
  const RequestRecord record = TestRecord();
  const std::vector<SpanSeen> spans = Spans(record);
  EXPECT_EQ(spans.size(), 1u + 2 * 3 + 4) << "two choices of three phases, the first with two workers in two phases";
  EXPECT_EQ(NumSpans(record), static_cast<int64_t>(spans.size()));
  std::set<std::string> ids;
  for (const SpanSeen& span : spans) {
    EXPECT_TRUE(ids.insert(span.span_id).second);
    EXPECT_EQ(span.trace_id, record.trace.trace_id);
    EXPECT_EQ(span.kind, &span == &spans[0] ? 2 : 1) << span.name;
  }
  const int64_t start = 1796880000000000000;
  const SpanSeen& queue = *Named(spans, "queue", "0");
  EXPECT_EQ(queue.parent_span_id, record.trace.span_id);
  EXPECT_EQ(queue.start_nanos, start + 1000000);
  EXPECT_EQ(queue.end_nanos, start + 3000000);
  const SpanSeen& prefill = *Named(spans, "prefill", "0");
  EXPECT_EQ(prefill.start_nanos, start + 3000000);
  EXPECT_EQ(prefill.end_nanos, start + 20000000);
  EXPECT_THAT(prefill.attributes,
              testing::IsSupersetOf({Pair("switchyard.worker.rank", "1"), Pair("switchyard.worker.host", "node-1"),
                                     Pair("switchyard.worker.pid", "11"), Pair("switchyard.worker.device", "cuda:0"),
                                     Pair("switchyard.prompt_tokens", "12"), Pair("switchyard.cached_tokens", "4")}));
  const SpanSeen& decode = *Named(spans, "decode", "1");
  EXPECT_EQ(decode.start_nanos, start + 25000000);
  EXPECT_EQ(decode.end_nanos, start + 90000000);
  EXPECT_THAT(decode.attributes, Contains(Pair("switchyard.worker.rank", "0")));
  EXPECT_THAT(decode.attributes, Contains(Pair("switchyard.output_tokens", "16")));
  const SpanSeen& worker = *Named(spans, "prefill on worker 1", "");
  EXPECT_EQ(worker.parent_span_id, prefill.span_id);
  EXPECT_THAT(worker.attributes, Contains(Pair("switchyard.expert_seconds", "0.005")));
  EXPECT_THAT(worker.attributes, Contains(Pair("switchyard.steps", "1")));
}

TEST_F(OtlpJsonTest, ARefusedRequestIsOneSpanWithAnError) {
  RequestRecord record = RefusedRecord();
  record.trace = {.trace_id = "0af7651916cd43dd8448eb211c80319c", .span_id = "00f067aa0ba902b7", .sampled = true};
  const std::vector<SpanSeen> spans = Spans(record);
  ASSERT_EQ(spans.size(), 1u);
  EXPECT_EQ(spans[0].name, "switchyard.v1.InferenceService/Generate");
  EXPECT_EQ(spans[0].status, 2);
  EXPECT_EQ(spans[0].parent_span_id, "");
  EXPECT_THAT(spans[0].attributes,
              testing::IsSupersetOf({Pair("error.type", "QUEUE_FULL"), Pair("rpc.system", "grpc"),
                                     Pair("rpc.service", "switchyard.v1.InferenceService"),
                                     Pair("rpc.method", "Generate"), Pair("server.port", "50051")}));
  EXPECT_EQ(spans[0].attributes.count("gen_ai.usage.input_tokens"), 0u);
  record.reason.clear();
  EXPECT_THAT(Spans(record).at(0).attributes, Contains(Pair("error.type", "RESOURCE_EXHAUSTED")));
}

TEST_F(OtlpJsonTest, AChoiceHasThePhasesThatItReached) {
  RequestRecord record = TestRecord();
  record.choices.resize(1);
  ChoiceRecord& choice = record.choices[0];
  choice.prefill_times.clear();
  choice.decode_times.clear();
  const auto names = [&] {
    std::vector<std::string> all;
    for (const SpanSeen& span : Spans(record)) all.push_back(span.name);
    EXPECT_EQ(NumSpans(record), static_cast<int64_t>(all.size()));
    all.erase(all.begin());
    return all;
  };
  EXPECT_THAT(names(), testing::ElementsAre("queue", "prefill", "decode"));
  choice.timings.first_token = absl::InfinitePast();
  EXPECT_THAT(names(), testing::ElementsAre("queue", "prefill"));
  choice.timings.first_scheduled = absl::InfinitePast();
  EXPECT_THAT(names(), testing::ElementsAre("queue"));
  choice.timings.queued = absl::InfinitePast();
  EXPECT_THAT(names(), testing::ElementsAre());
}

TEST_F(OtlpJsonTest, BytesThatAreNotUtf8StayJson) {
  RequestRecord record = TestRecord();
  record.id = "\xff\"\n";
  EXPECT_THAT(Spans(record).at(0).attributes, Contains(Pair("gen_ai.response.id", "\xef\xbf\xbd\"\n")));
}

}  // namespace
}  // namespace switchyard::server
