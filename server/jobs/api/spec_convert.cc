#include "server/jobs/api/spec_convert.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "google/protobuf/unknown_field_set.h"
#include "proto/link/job_spec_codec.h"
#include "proto/support/errors.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::server {
namespace {

absl::Status CheckKnown(const google::protobuf::Message& message, const std::string& path) {
  using google::protobuf::FieldDescriptor;
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  if (const auto& unknown = reflection.GetUnknownFields(message); !unknown.empty()) {
    const std::string number = absl::StrCat(unknown.field(0).number());
    return rpc::BadField(path.empty() ? message.GetDescriptor()->name() : path,
                         absl::StrCat("field ", number, " is not known to this server"), "known fields", number);
  }
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE || field->is_repeated()) continue;
    const std::string inner = absl::StrCat(path, path.empty() ? "" : ".", field->name());
    RETURN_IF_ERROR(CheckKnown(reflection.GetMessage(message, field), inner));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<jobs::JobSpec> FromProto(const v1::JobSpec& message) {
  return link::FromProto(message, {.name = "server", .error = [](const link::SpecProblem& problem) {
                                     return rpc::BadField(problem.field, problem.text, problem.limit,
                                                          problem.is_text ? Quote(problem.actual) : problem.actual);
                                   }});
}

std::string EncodeSpec(const jobs::JobSpec& spec) {
  std::string bytes;
  google::protobuf::io::StringOutputStream stream(&bytes);
  google::protobuf::io::CodedOutputStream out(&stream);
  out.SetSerializationDeterministic(true);  // maps come sorted
  link::ToProto(spec).SerializeToCodedStream(&out);
  out.Trim();
  return bytes;
}

absl::Status CheckNoUnknownFields(const google::protobuf::Message& message) { return CheckKnown(message, ""); }

}  // namespace switchyard::server
