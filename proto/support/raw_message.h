// Messages as raw bytes, for gRPC's raw methods: parsing, serializing, and a check that explains malformed bytes.
//
// Protobuf's own parser only says "no", and takes a field with a wrong wire type for an unknown one.  CheckWire walks
// the wire format and names the first fault: a truncated or overlong varint, a length that passes the end, a wire type
// that the field does not have, text that is not UTF-8, nesting deeper than kMaxMessageDepth, groups (proto3 has none),
// a second occurrence of a singular field.  It allocates nothing that grows with the input.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "grpcpp/support/byte_buffer.h"

namespace switchyard::rpc {

inline constexpr int kMaxMessageDepth = 32;

// Returns OK, or INVALID_ARGUMENT "request is not a valid GenerateRequest: <reason> at byte N".
absl::Status CheckWire(const google::protobuf::Descriptor& type, absl::string_view bytes);

// Parses `buffer`.  Errors are CheckWire's.
absl::Status ParseRaw(const grpc::ByteBuffer& buffer, google::protobuf::Message* message);
grpc::ByteBuffer SerializeRaw(const google::protobuf::Message& message);

}  // namespace switchyard::rpc
