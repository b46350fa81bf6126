// Sees requests from their arrival to their end: writes the request log and exports spans, as far as flags ask for
// them.
//
// Thread-safe but for Open, StartExport and Stop.  Outlives the calls and the engine.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "server/metrics/metrics.h"
#include "server/observe/observed_request.h"
#include "server/observe/otlp_exporter.h"
#include "server/observe/request_log.h"

namespace switchyard::server {

class RequestObserver {
 public:
  struct Options {
    std::string request_log;           // --request_log; empty: none
    std::string otlp_endpoint;         // --otlp_endpoint; empty: no spans
    double sample_ratio = 1;           // of traces that begin here
    ServerMetrics* metrics = nullptr;  // borrowed
  };
  // Opens the log.  INVALID_ARGUMENT: it cannot.
  static absl::StatusOr<std::unique_ptr<RequestObserver>> Open(Options options);
  ~RequestObserver();

  // Spans say so of this server.  Call before the first Begin; does nothing without an endpoint.
  void StartExport(OtlpResource resource);

  struct Call {
    CallProtocol protocol = CallProtocol::kGrpc;
    std::string api = "grpc";  // or the HTTP path
    std::string key;           // name of the caller's key
    std::string client;        // its address
    std::string model;         // that is served
    absl::Time arrival;
    absl::Span<const absl::string_view> traceparents = {}, tracestates = {};  // the headers' values
  };
  // Begins to observe a call.  Null: neither the log nor a trace wants it.
  std::shared_ptr<ObservedRequest> Begin(Call call);

  // Opens the log again by its name.
  void Reopen();
  // Writes and sends what waits, two seconds at most for each.  Later requests are dropped.
  void Stop();

 private:
  explicit RequestObserver(Options options) : options_(std::move(options)) {}
  void Finish(RequestRecord record);

  const Options options_;
  std::unique_ptr<RequestLog> log_;
  std::unique_ptr<OtlpExporter> exporter_;
};

}  // namespace switchyard::server
