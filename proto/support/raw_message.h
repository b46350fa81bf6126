// Messages as raw bytes: what a gRPC raw method receives and sends.
#pragma once

#include "absl/status/status.h"
#include "google/protobuf/message.h"
#include "grpcpp/support/byte_buffer.h"

namespace switchyard::rpc {

// Parses `buffer`; on failure INVALID_ARGUMENT with the reason and the byte (wire_check.h).
absl::Status ParseRaw(const grpc::ByteBuffer& buffer, google::protobuf::Message* message);
grpc::ByteBuffer SerializeRaw(const google::protobuf::Message& message);

}  // namespace switchyard::rpc
