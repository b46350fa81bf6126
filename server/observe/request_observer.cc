#include "server/observe/request_observer.h"

#include <utility>

#include "absl/random/random.h"
#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::server {
namespace {

uint64_t DrawBits() {
  thread_local absl::BitGen gen;
  return absl::Uniform<uint64_t>(gen);
}

constexpr const char* kResults[] = {"sent", "dropped", "failed"};  // by OtlpExporter::Result

}  // namespace

absl::StatusOr<std::unique_ptr<RequestObserver>> RequestObserver::Open(Options options) {
  std::unique_ptr<RequestObserver> observer(new RequestObserver(std::move(options)));
  const Options& o = observer->options_;
  if (!o.request_log.empty()) {
    ASSIGN_OR_RETURN(observer->log_,
                     RequestLog::Open({.path = o.request_log, .on_dropped = [metrics = o.metrics](int64_t requests) {
                                         metrics->request_log_dropped->Increment(static_cast<double>(requests));
                                       }}));
  }
  return observer;
}

RequestObserver::~RequestObserver() { Stop(); }

void RequestObserver::StartExport(OtlpResource resource) {
  if (options_.otlp_endpoint.empty()) return;
  resource.instance_id = absl::StrCat(DrawSpanId(&DrawBits), DrawSpanId(&DrawBits));
  OtlpExporter::Options options;
  options.endpoint = options_.otlp_endpoint;
  options.resource = std::move(resource);
  options.random = &DrawBits;
  options.on_spans = [metrics = options_.metrics](OtlpExporter::Result result, int64_t spans) {
    metrics->otlp_spans(kResults[static_cast<size_t>(result)]).Increment(static_cast<double>(spans));
  };
  exporter_ = std::make_unique<OtlpExporter>(std::move(options));
}

std::shared_ptr<ObservedRequest> RequestObserver::Begin(Call call) {
  RequestRecord record;
  std::optional<TraceContext> parent = ParseTraceContext(call.traceparents, call.tracestates);
  if (exporter_ != nullptr) {
    record.trace = BeginSpan(std::move(parent), options_.sample_ratio, &DrawBits);
  } else if (parent.has_value()) {
    record.trace = *std::move(parent);
  }
  if (log_ == nullptr && !record.trace.sampled) return nullptr;
  record.protocol = call.protocol;
  record.api = std::move(call.api);
  record.key = std::move(call.key);
  record.client = std::move(call.client);
  record.model = std::move(call.model);
  record.arrival = record.end = call.arrival;
  return std::make_shared<ObservedRequest>(std::move(record),
                                           [this](RequestRecord finished) { Finish(std::move(finished)); });
}

void RequestObserver::Finish(RequestRecord record) {
  // Shared: by the queues of both.
  const auto shared = std::make_shared<const RequestRecord>(std::move(record));
  if (log_ != nullptr) log_->Add(shared);
  if (exporter_ != nullptr && shared->trace.sampled) exporter_->Add(shared);
}

void RequestObserver::Reopen() {
  if (log_ != nullptr) log_->Reopen();
}

void RequestObserver::Stop() {
  if (log_ != nullptr) log_->Stop();
  if (exporter_ != nullptr) exporter_->Stop();
}

}  // namespace switchyard::server
