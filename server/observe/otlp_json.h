// Requests as spans of OpenTelemetry: the body of OTLP/HTTP with JSON (opentelemetry-proto 1.x), pure.
//
// A request is a SERVER span with the attributes of the conventions for generative AI (gen_ai.*), RPC or HTTP; each of
// its choices has children queue, prefill and decode, as far as it got, which name the worker that computed its
// attention. Of choice 0, prefill and decode have a child for each worker with what its steps took.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "server/observe/request_record.h"

namespace switchyard::server {

// What the spans say of this server.
struct OtlpResource {
  std::string version;      // service.version
  std::string instance_id;  // service.instance.id: drawn at each start
  std::string address;      // server.address
  int grpc_port = 0, http_port = 0;
};

// Returns how many spans the record has.
int64_t NumSpans(const RequestRecord& record);

// Returns an ExportTraceServiceRequest in Protobuf's JSON form, as OTLP wants it: ids in hex, 64-bit numbers as
// strings, enumerations as numbers.  REQUIRES: the records are traced (they have span ids).
std::string OtlpBody(const OtlpResource& resource, absl::Span<const std::shared_ptr<const RequestRecord>> records,
                     const RandomBits& random);

}  // namespace switchyard::server
