#include "proto/support/raw_message.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "grpcpp/support/slice.h"
#include "proto/support/errors.h"
#include "proto/support/wire_check.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::rpc {

absl::Status ParseRaw(const grpc::ByteBuffer& buffer, google::protobuf::Message* message) {
  grpc::Slice slice;
  absl::string_view bytes;
  if (buffer.Valid() && buffer.Length() > 0) {
    if (!buffer.DumpToSingleSlice(&slice).ok()) {
      return MakeError(absl::StatusCode::kInternal, v1::ENGINE_ERROR, "the request's bytes could not be read");
    }
    bytes = absl::string_view(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  RETURN_IF_ERROR(CheckWire(*message->GetDescriptor(), bytes));
  if (!message->ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return MakeError(absl::StatusCode::kInvalidArgument, v1::BAD_REQUEST_BYTES,
                     absl::StrCat("request is not a valid ", message->GetDescriptor()->name()));
  }
  return absl::OkStatus();
}

grpc::ByteBuffer SerializeRaw(const google::protobuf::Message& message) {
  std::string bytes;
  message.SerializeToString(&bytes);
  grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

}  // namespace switchyard::rpc
