#include "proto/support/raw_message.h"

#include <algorithm>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/wire_format_lite.h"
#include "grpcpp/support/slice.h"
#include "proto/support/errors.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/base/text/utf8.h"

namespace switchyard::rpc {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::internal::WireFormatLite;

// The most bytes of a tag or a length: protobuf takes no more, not even where they are zeros.
constexpr size_t kShortVarint = 5;

class Walker {
 public:
  explicit Walker(absl::string_view bytes) : bytes_(bytes) {}

  absl::Status Message(const Descriptor& type, size_t end, int depth) {
    if (depth > kMaxMessageDepth) return FaultAt(pos_, absl::StrCat("nested deeper than ", kMaxMessageDepth));
    absl::InlinedVector<int, 16> seen;
    while (pos_ < end) {
      const size_t at = pos_;
      uint64_t tag = 0;
      RETURN_IF_ERROR(Varint(end, &tag, kShortVarint));
      const uint64_t number = tag >> 3;
      if (tag > 0xffffffffu || number == 0) return FaultAt(at, "field number 0 or too large");
      const FieldDescriptor* field = type.FindFieldByNumber(static_cast<int>(number));
      RETURN_IF_ERROR(CheckOnce(field, at, &seen));
      RETURN_IF_ERROR(Value(field, static_cast<int>(tag & 7), at, end, depth));
    }
    return absl::OkStatus();
  }

 private:
  absl::Status CheckOnce(const FieldDescriptor* field, size_t at, absl::InlinedVector<int, 16>* seen) {
    if (field == nullptr || field->is_repeated()) return absl::OkStatus();
    // At most one member of a oneof may occur, once.
    const auto* oneof = field->real_containing_oneof();
    const int key = oneof ? -1 - oneof->index() : field->number();
    if (std::find(seen->begin(), seen->end(), key) != seen->end()) {
      return FaultAt(at,
                     oneof ? absl::StrCat("more than one of ", oneof->name()) : absl::StrCat("second ", field->name()));
    }
    seen->push_back(key);
    return absl::OkStatus();
  }

  absl::Status Value(const FieldDescriptor* field, int wire, size_t at, size_t end, int depth) {
    if (wire == 3 || wire == 4) return FaultAt(at, "a group");
    if (wire > 5) return FaultAt(at, absl::StrCat("wire type ", wire));
    if (field != nullptr) {
      const int expected = WireFormatLite::WireTypeForFieldType(static_cast<WireFormatLite::FieldType>(field->type()));
      const bool packed = field->is_packable() && wire == 2;
      if (wire != expected && !packed) {
        return FaultAt(at, absl::StrCat(field->name(), " has wire type ", wire, ", not ", expected));
      }
    }
    uint64_t value = 0;
    switch (wire) {
      case 0:
        return Varint(end, &value);
      case 1:
        return Skip(8, end);
      case 5:
        return Skip(4, end);
      default:
        return Delimited(field, end, depth);
    }
  }

  absl::Status Delimited(const FieldDescriptor* field, size_t end, int depth) {
    const size_t at = pos_;
    uint64_t length = 0;
    RETURN_IF_ERROR(Varint(end, &length));
    if (length > end - pos_)
      return FaultAt(at, absl::StrCat("length ", length, " passes the end by ", length - (end - pos_)));
    if (pos_ - at > kShortVarint) return FaultAt(at, absl::StrCat("varint of more than ", kShortVarint, " bytes"));
    const size_t inner_end = pos_ + static_cast<size_t>(length);
    if (field != nullptr && field->type() == FieldDescriptor::TYPE_MESSAGE) {
      return Message(*field->message_type(), inner_end, depth + 1);
    }
    if (field != nullptr && field->type() == FieldDescriptor::TYPE_STRING) {
      const size_t bad = FindInvalidUtf8(bytes_.substr(pos_, inner_end - pos_));
      if (bad != absl::string_view::npos) return FaultAt(pos_ + bad, absl::StrCat(field->name(), " is not UTF-8"));
    }
    if (field != nullptr && field->is_packable()) return Packed(*field, at, inner_end);
    pos_ = inner_end;
    return absl::OkStatus();
  }

  absl::Status Packed(const FieldDescriptor& field, size_t at, size_t end) {
    const int wire = WireFormatLite::WireTypeForFieldType(static_cast<WireFormatLite::FieldType>(field.type()));
    uint64_t value = 0;
    if (wire == 0) {
      while (pos_ < end) RETURN_IF_ERROR(Varint(end, &value));
      return absl::OkStatus();
    }
    const size_t size = wire == 1 ? 8 : 4;
    if ((end - pos_) % size != 0) {
      return FaultAt(at, absl::StrCat(field.name(), ": ", end - pos_, " packed bytes are no multiple of ", size));
    }
    pos_ = end;
    return absl::OkStatus();
  }

  absl::Status Varint(size_t end, uint64_t* value, size_t most_bytes = 10) {
    const size_t at = pos_;
    *value = 0;
    for (size_t shift = 0; shift < 7 * most_bytes; shift += 7) {
      if (pos_ >= end) return FaultAt(at, "truncated varint");
      const uint8_t byte = static_cast<uint8_t>(bytes_[pos_++]);
      if (shift < 64) *value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return absl::OkStatus();
    }
    return FaultAt(at, absl::StrCat("varint of more than ", most_bytes, " bytes"));
  }

  absl::Status Skip(size_t count, size_t end) {
    if (end - pos_ < count) return FaultAt(pos_, "truncated field");
    pos_ += count;
    return absl::OkStatus();
  }

  static absl::Status FaultAt(size_t at, absl::string_view reason) {
    return absl::InvalidArgumentError(absl::StrCat(reason, " at byte ", at));
  }

  absl::string_view bytes_;
  size_t pos_ = 0;
};

}  // namespace

absl::Status CheckWire(const Descriptor& type, absl::string_view bytes) {
  const absl::Status status = Walker(bytes).Message(type, bytes.size(), 0);
  if (status.ok()) return status;
  return MakeError(absl::StatusCode::kInvalidArgument, v1::BAD_REQUEST_BYTES,
                   absl::StrCat("request is not a valid ", type.name(), ": ", status.message()),
                   {{"field", type.name()}, {"actual", std::string(status.message())}});
}

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
