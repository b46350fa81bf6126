// Converts messages of the API to JSON and back by reflection, so a new field of proto/ needs no line here.
//
// Keys are the fields' names; enums are their names without prefix, in lower case ("JOB_STATE_RUNNING" = "running");
// numbers are numbers, 64 bits too; a google.rpc.Status is {"code", "reason", "message"}.  Left out: optional fields
// and messages that are unset, enums that are unspecified.  What is read may also be protobuf's own JSON: keys as
// "learningRate", enums as "JOB_STATE_RUNNING" or their numbers, numbers as texts, null for a default.  Pure.
#pragma once

#include <initializer_list>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "clients/cli/json_fwd.h"

namespace google::protobuf {
class EnumDescriptor;
class Message;
}  // namespace google::protobuf

namespace switchyard::cli {

Json ToJson(const google::protobuf::Message& message);
// Converts these fields only, in this order.  REQUIRES: the message has them.
Json ToJson(const google::protobuf::Message& message, std::initializer_list<const char*> fields);

// Returns an enum value's name as above; "" for the unspecified value.
std::string EnumName(const google::protobuf::EnumDescriptor* type, int value);

// The message as protobuf's own JSON, over several lines, with fields that have their defaults left out.
std::string CanonicalJson(const google::protobuf::Message& message);

// Sets the fields that the object contains; a list or a map replaces the message's.  InvalidArgument
// "optimizer.learning_rate must be a number, is "x""; for an unknown key it suggests the nearest one.
absl::Status MergeJson(const Json& object, google::protobuf::Message* message);
// The same for one field, such as "optimizer.learning_rate".  REQUIRES: the field exists.
absl::Status MergeField(absl::string_view path, const Json& value, google::protobuf::Message* message);

}  // namespace switchyard::cli
