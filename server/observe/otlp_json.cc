#include "server/observe/otlp_json.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "scheduler/base/text/json_value.h"

namespace switchyard::server {
namespace {

using SpanJson = nlohmann::ordered_json;

constexpr int kKindInternal = 1, kKindServer = 2;
constexpr int kStatusError = 2;
// Of a span's flags: whether its parent is in another process is known; it is.
constexpr int kFlagSampled = 1, kFlagKnowsRemote = 0x100, kFlagIsRemote = 0x200;
constexpr char kRpcService[] = "switchyard.v1.InferenceService";

// A list of attributes: {"key": …, "value": {"stringValue": …}}.
class Attributes {
 public:
  void Text(const char* key, absl::string_view value) { Add(key, "stringValue", std::string(value)); }
  void TextIfAny(const char* key, absl::string_view value) {
    if (!value.empty()) Text(key, value);
  }
  void Whole(const char* key, int64_t value) { Add(key, "intValue", absl::StrCat(value)); }
  void Real(const char* key, double value) { Add(key, "doubleValue", value); }
  void Texts(const char* key, const std::vector<std::string>& values) {
    SpanJson list = SpanJson::array();
    for (const std::string& value : values) list.push_back({{"stringValue", value}});
    Add(key, "arrayValue", {{"values", std::move(list)}});
  }
  SpanJson Take() { return std::move(list_); }

 private:
  void Add(const char* key, const char* type, SpanJson value) {
    list_.push_back({{"key", key}, {"value", {{type, std::move(value)}}}});
  }
  SpanJson list_ = SpanJson::array();
};

std::string Nanos(const RequestRecord& record, absl::Time time) {
  return absl::StrCat(std::max<int64_t>(absl::ToUnixNanos(record.OnWallClock(time)), 0));
}

SpanJson SpanOf(const RequestRecord& record, const std::string& id, const std::string& parent, absl::string_view name,
                int kind, absl::Time start, absl::Time end) {
  SpanJson span = {{"traceId", record.trace.trace_id}, {"spanId", id}};
  if (!record.trace.state.empty()) span["traceState"] = record.trace.state;
  if (!parent.empty()) span["parentSpanId"] = parent;
  int flags = kFlagSampled | kFlagKnowsRemote;
  if (kind == kKindServer && !parent.empty()) flags |= kFlagIsRemote;
  span["flags"] = flags;
  span["name"] = std::string(name);
  span["kind"] = kind;
  span["startTimeUnixNano"] = Nanos(record, start);
  span["endTimeUnixNano"] = Nanos(record, std::max(start, end));
  return span;
}

void AddCall(const OtlpResource& resource, const RequestRecord& record, Attributes* out) {
  if (record.protocol == CallProtocol::kGrpc) {
    out->Text("rpc.system", "grpc");
    out->Text("rpc.service", kRpcService);
    out->Text("rpc.method", "Generate");
  } else {
    out->Text("http.request.method", "POST");
    out->Text("http.route", record.api);
    out->Text("url.path", record.api);
    if (record.http_status.has_value()) out->Whole("http.response.status_code", *record.http_status);
  }
  out->Text("server.address", resource.address);
  out->Whole("server.port", record.protocol == CallProtocol::kGrpc ? resource.grpc_port : resource.http_port);
  out->TextIfAny("client.address", record.client);
  out->TextIfAny("user.name", record.key);
}

// Stop strings are left out: they are the client's text.
void AddAsked(const RequestRecord& record, Attributes* out) {
  out->Text("gen_ai.operation.name", record.is_chat ? "chat" : "text_completion");
  out->Text("gen_ai.provider.name", "switchyard");
  out->TextIfAny("gen_ai.request.model", record.model);
  if (record.num_prompts == 0) return;
  const batching::SamplingParams& sampling = record.sampling;
  out->Whole("gen_ai.request.max_tokens", record.max_tokens);
  out->Real("gen_ai.request.temperature", sampling.temperature);
  out->Real("gen_ai.request.top_p", sampling.top_p);
  if (sampling.top_k > 0) out->Whole("gen_ai.request.top_k", sampling.top_k);
  out->Real("gen_ai.request.frequency_penalty", sampling.frequency_penalty);
  out->Real("gen_ai.request.presence_penalty", sampling.presence_penalty);
  out->Whole("gen_ai.request.seed", static_cast<int64_t>(sampling.seed));
  if (record.num_choices != 1) out->Whole("gen_ai.request.choice.count", record.num_choices);
}

void AddAnswer(const RequestRecord& record, Attributes* out) {
  out->TextIfAny("gen_ai.response.id", record.id);
  if (record.num_prompts > 0) {
    const RequestTotals totals = TotalsOf(record);
    out->TextIfAny("gen_ai.response.model", record.model);
    std::vector<std::string> reasons;
    for (const ChoiceRecord& choice : record.choices) reasons.emplace_back(FinishReasonName(choice.reason));
    if (!reasons.empty()) out->Texts("gen_ai.response.finish_reasons", reasons);
    out->Whole("gen_ai.usage.input_tokens", record.prompt_tokens);
    out->Whole("gen_ai.usage.output_tokens", totals.output_tokens);
    out->Whole("gen_ai.usage.cache_read.input_tokens", totals.cached_tokens);
    if (totals.ttft.has_value()) out->Real("gen_ai.server.time_to_first_token", absl::ToDoubleSeconds(*totals.ttft));
  }
  out->Text("switchyard.outcome", OutcomeOf(record));
  if (record.code != "OK") out->Text("error.type", record.reason.empty() ? record.code : record.reason);
}

// Adds the spans of one choice, which are children of the request's.
class ChoiceSpans {
 public:
  ChoiceSpans(const RequestRecord& record, const ChoiceRecord& choice, const RandomBits& random, SpanJson* spans)
      : record_(record), choice_(choice), random_(random), spans_(spans) {}

  void Add() {
    const batching::SequenceTimings& times = choice_.timings;
    const auto known = [](absl::Time time) { return time != absl::InfinitePast(); };
    if (!known(times.queued)) return;
    const bool scheduled = known(times.first_scheduled), began = known(times.first_token);
    Phase("queue", times.queued, scheduled ? times.first_scheduled : times.finished, nullptr, {});
    if (!scheduled) return;
    Phase("prefill", times.first_scheduled, began ? times.first_token : times.finished,
          began ? &choice_.prefill_worker : &choice_.decode_worker, choice_.prefill_times);
    if (began) Phase("decode", times.first_token, times.last_token, &choice_.decode_worker, choice_.decode_times);
  }

 private:
  void Phase(const char* name, absl::Time start, absl::Time end, const WorkerName* worker,
             absl::Span<const WorkerTime> times) {
    const std::string id = DrawSpanId(random_);
    SpanJson span = SpanOf(record_, id, record_.trace.span_id, name, kKindInternal, start, end);
    Attributes attributes;
    attributes.Whole("switchyard.choice", choice_.choice);
    const absl::string_view phase = name;
    if (phase == "prefill") {
      attributes.Whole("switchyard.prompt_tokens", choice_.usage.prompt_tokens);
      attributes.Whole("switchyard.cached_tokens", choice_.usage.cached_tokens);
    } else if (phase == "decode") {
      attributes.Whole("switchyard.output_tokens", choice_.usage.completion_tokens);
      attributes.Whole("switchyard.preemptions", choice_.usage.preemptions);
    }
    if (worker != nullptr && worker->rank >= 0) {
      attributes.Whole("switchyard.worker.rank", worker->rank);
      attributes.TextIfAny("switchyard.worker.host", worker->host);
      if (worker->pid != 0) attributes.Whole("switchyard.worker.pid", worker->pid);
      attributes.TextIfAny("switchyard.worker.device", worker->device);
    }
    span["attributes"] = attributes.Take();
    spans_->push_back(std::move(span));
    for (size_t rank = 0; rank < times.size(); ++rank) {
      SpanJson child =
          SpanOf(record_, DrawSpanId(random_), id, absl::StrCat(name, " on worker ", rank), kKindInternal, start, end);
      Attributes of;
      of.Whole("switchyard.worker.rank", static_cast<int64_t>(rank));
      of.Whole("switchyard.steps", times[rank].steps);
      of.Real("switchyard.step_seconds", times[rank].total_seconds);
      of.Real("switchyard.attention_seconds", times[rank].attention_seconds);
      of.Real("switchyard.expert_seconds", times[rank].expert_seconds);
      of.Real("switchyard.exchange_seconds", times[rank].exchange_seconds);
      child["attributes"] = of.Take();
      spans_->push_back(std::move(child));
    }
  }

  const RequestRecord& record_;
  const ChoiceRecord& choice_;
  const RandomBits& random_;
  SpanJson* const spans_;
};

void AddSpans(const OtlpResource& resource, const RequestRecord& record, const RandomBits& random, SpanJson* spans) {
  const std::string name = record.protocol == CallProtocol::kGrpc ? absl::StrCat(kRpcService, "/Generate")
                                                                  : absl::StrCat("POST ", record.api);
  SpanJson span =
      SpanOf(record, record.trace.span_id, record.trace.parent_span_id, name, kKindServer, record.arrival, record.end);
  Attributes attributes;
  AddCall(resource, record, &attributes);
  AddAsked(record, &attributes);
  AddAnswer(record, &attributes);
  span["attributes"] = attributes.Take();
  span["status"] = SpanJson::object();
  if (OutcomeOf(record) == "error")
    span["status"] = {{"code", kStatusError}, {"message", record.reason.empty() ? record.code : record.reason}};
  spans->push_back(std::move(span));
  for (const ChoiceRecord& choice : record.choices) ChoiceSpans(record, choice, random, spans).Add();
}

}  // namespace

int64_t NumSpans(const RequestRecord& record) {
  int64_t spans = 1;
  for (const ChoiceRecord& choice : record.choices) {
    const batching::SequenceTimings& times = choice.timings;
    if (times.queued == absl::InfinitePast()) continue;
    ++spans;
    if (times.first_scheduled == absl::InfinitePast()) continue;
    spans += 1 + static_cast<int64_t>(choice.prefill_times.size());
    if (times.first_token != absl::InfinitePast()) spans += 1 + static_cast<int64_t>(choice.decode_times.size());
  }
  return spans;
}

std::string OtlpBody(const OtlpResource& resource, absl::Span<const std::shared_ptr<const RequestRecord>> records,
                     const RandomBits& random) {
  SpanJson spans = SpanJson::array();
  for (const auto& record : records) AddSpans(resource, *record, random, &spans);
  Attributes of;
  of.Text("service.name", "switchyard");
  of.Text("service.version", resource.version);
  of.Text("service.instance.id", resource.instance_id);
  const SpanJson scope = {{"scope", {{"name", "switchyard"}, {"version", resource.version}}},
                          {"spans", std::move(spans)}};
  const SpanJson body = {{"resourceSpans", SpanJson::array({{{"resource", {{"attributes", of.Take()}}},
                                                             {"scopeSpans", SpanJson::array({scope})}}})}};
  return JsonText(body);
}

}  // namespace switchyard::server
