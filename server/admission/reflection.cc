#include "server/admission/reflection.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/descriptor.pb.h"
#include "proto/support/errors.h"
#include "proto/support/raw_message.h"
#include "scheduler/base/text/quote.h"

namespace switchyard::server {
namespace {

namespace pb = google::protobuf;
namespace reflection = grpc::reflection::v1;

// Adds the file and what it imports, each once.
void AddFile(const pb::FileDescriptor& file, std::set<const pb::FileDescriptor*>* added,
             reflection::FileDescriptorResponse* out) {
  if (!added->insert(&file).second) return;
  pb::FileDescriptorProto message;
  file.CopyTo(&message);
  out->add_file_descriptor_proto(message.SerializeAsString());
  for (int i = 0; i < file.dependency_count(); ++i) AddFile(*file.dependency(i), added, out);
}

void SetError(grpc::StatusCode code, const std::string& text, reflection::ServerReflectionResponse* out) {
  out->mutable_error_response()->set_error_code(code);
  out->mutable_error_response()->set_error_message(text);
}

// Answers with the file, or with NOT_FOUND if it is null.
void SetFile(const pb::FileDescriptor* file, const std::string& what, reflection::ServerReflectionResponse* out) {
  if (file == nullptr) return SetError(grpc::StatusCode::NOT_FOUND, absl::StrCat("there is no ", what), out);
  std::set<const pb::FileDescriptor*> added;
  AddFile(*file, &added, out->mutable_file_descriptor_response());
}

const pb::FileDescriptor* FileOfExtension(const reflection::ExtensionRequest& request) {
  const pb::DescriptorPool& pool = *pb::DescriptorPool::generated_pool();
  const pb::Descriptor* const type = pool.FindMessageTypeByName(request.containing_type());
  if (type == nullptr) return nullptr;
  const pb::FieldDescriptor* const extension = pool.FindExtensionByNumber(type, request.extension_number());
  return extension == nullptr ? nullptr : extension->file();
}

void SetExtensionNumbers(const std::string& name, reflection::ServerReflectionResponse* out) {
  const pb::DescriptorPool& pool = *pb::DescriptorPool::generated_pool();
  const pb::Descriptor* const type = pool.FindMessageTypeByName(name);
  if (type == nullptr) {
    return SetError(grpc::StatusCode::NOT_FOUND, absl::StrCat("there is no message type ", Quote(name)), out);
  }
  std::vector<const pb::FieldDescriptor*> extensions;
  pool.FindAllExtensions(type, &extensions);
  out->mutable_all_extension_numbers_response()->set_base_type_name(name);
  for (const pb::FieldDescriptor* extension : extensions)
    out->mutable_all_extension_numbers_response()->add_extension_number(extension->number());
}

// The longest name that a request has.
size_t NameBytes(const reflection::ServerReflectionRequest& request) {
  return std::max({request.file_by_filename().size(), request.file_containing_symbol().size(),
                   request.file_containing_extension().containing_type().size(),
                   request.all_extension_numbers_of_type().size(), request.list_services().size(),
                   request.host().size()});
}

class ReflectionCall final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  explicit ReflectionCall(const ReflectionAnswers* answers) : answers_(answers) { StartRead(&incoming_); }

  void OnReadDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::OK);
    reflection::ServerReflectionRequest request;
    if (const absl::Status status = rpc::ParseRaw(incoming_, &request); !status.ok())
      return Finish(rpc::ToGrpcStatus(status, ""));
    outgoing_ = rpc::SerializeRaw(answers_->Answer(request));
    StartWrite(&outgoing_);
  }
  void OnWriteDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::CANCELLED);
    StartRead(&incoming_);
  }
  void OnDone() override { delete this; }

 private:
  const ReflectionAnswers* const answers_;
  grpc::ByteBuffer incoming_, outgoing_;
};

}  // namespace

ReflectionAnswers::ReflectionAnswers(std::vector<std::string> services) : services_(std::move(services)) {
  services_.emplace_back(reflection::ServerReflection::service_full_name());
  services_.emplace_back(grpc::reflection::v1alpha::ServerReflection::service_full_name());
  std::sort(services_.begin(), services_.end());
}

reflection::ServerReflectionResponse ReflectionAnswers::Answer(
    const reflection::ServerReflectionRequest& request) const {
  using Request = reflection::ServerReflectionRequest;
  reflection::ServerReflectionResponse answer;
  if (const size_t bytes = NameBytes(request); bytes > kMostNameBytes) {
    SetError(grpc::StatusCode::INVALID_ARGUMENT,
             absl::StrCat("a name of ", bytes, " bytes: ", kMostNameBytes, " is the limit"), &answer);
    return answer;
  }
  answer.set_valid_host(request.host());
  *answer.mutable_original_request() = request;
  const pb::DescriptorPool& pool = *pb::DescriptorPool::generated_pool();
  switch (request.message_request_case()) {
    case Request::kFileByFilename:
      SetFile(pool.FindFileByName(request.file_by_filename()), absl::StrCat("file ", Quote(request.file_by_filename())),
              &answer);
      break;
    case Request::kFileContainingSymbol:
      SetFile(pool.FindFileContainingSymbol(request.file_containing_symbol()),
              absl::StrCat("symbol ", Quote(request.file_containing_symbol())), &answer);
      break;
    case Request::kFileContainingExtension:
      SetFile(FileOfExtension(request.file_containing_extension()),
              absl::StrCat("extension ", request.file_containing_extension().extension_number(), " of ",
                           Quote(request.file_containing_extension().containing_type())),
              &answer);
      break;
    case Request::kAllExtensionNumbersOfType:
      SetExtensionNumbers(request.all_extension_numbers_of_type(), &answer);
      break;
    case Request::kListServices:
      for (const std::string& name : services_) answer.mutable_list_services_response()->add_service()->set_name(name);
      break;
    case Request::MESSAGE_REQUEST_NOT_SET:
      SetError(grpc::StatusCode::INVALID_ARGUMENT, "the request asks for nothing", &answer);
      break;
  }
  return answer;
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* NewReflectionCall(const ReflectionAnswers* answers) {
  return new ReflectionCall(answers);
}

}  // namespace switchyard::server
