// A reflection client such as grpcurl, by v1 and v1alpha: lists the services, describes each, and calls one by its
// description.
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/descriptor.pb.h"
#include "google/protobuf/dynamic_message.h"
#include "grpc/reflection/v1/reflection.grpc.pb.h"
#include "grpc/reflection/v1alpha/reflection.grpc.pb.h"
#include "gtest/gtest.h"
#include "proto/support/raw_message.h"
#include "tests/server/server_fixture.h"

namespace switchyard::server {
namespace {

namespace pb = google::protobuf;
namespace reflection_v1 = grpc::reflection::v1;
namespace reflection_v1alpha = grpc::reflection::v1alpha;
using testing::HasSubstr;

constexpr char kHealth[] = "grpc.health.v1.Health";

// One version of reflection: its stub, and its messages.
template <class Service, class Request, class Response>
class Client {
 public:
  explicit Client(const std::shared_ptr<grpc::Channel>& channel)
      : stub_(Service::NewStub(channel)), stream_(stub_->ServerReflectionInfo(&context_)) {}

  // Sends a request that `fill` has filled; an empty answer if the call has ended.
  Response Ask(const std::function<void(Request*)>& fill) {
    Request request;
    fill(&request);
    Response response;
    EXPECT_TRUE(stream_->Write(request) && stream_->Read(&response)) << request.ShortDebugString();
    return response;
  }
  std::vector<std::string> Services() {
    std::vector<std::string> names;
    const Response answer = Ask([](auto* r) { r->set_list_services("*"); });
    for (const auto& service : answer.list_services_response().service()) names.push_back(service.name());
    return names;
  }
  // Adds the file that defines `symbol`, with its imports, to `pool`; returns false if the server does not know it.
  bool Describe(const std::string& symbol, pb::DescriptorPool* pool) {
    const Response answer = Ask([&](auto* r) { r->set_file_containing_symbol(symbol); });
    std::map<std::string, pb::FileDescriptorProto> files;
    for (const std::string& bytes : answer.file_descriptor_response().file_descriptor_proto()) {
      pb::FileDescriptorProto file;
      EXPECT_TRUE(file.ParseFromString(bytes));
      files[file.name()] = file;
    }
    while (!files.empty()) {
      const size_t before = files.size();
      for (auto it = files.begin(); it != files.end();) {
        bool can = true;
        for (const std::string& needed : it->second.dependency()) can = can && !files.contains(needed);
        if (can && pool->FindFileByName(it->first) == nullptr) {
          EXPECT_NE(pool->BuildFile(it->second), nullptr);
        }
        it = can ? files.erase(it) : std::next(it);
      }
      if (files.size() == before) return false;
    }
    return pool->FindServiceByName(symbol) != nullptr;
  }
  grpc::Status End() {
    stream_->WritesDone();
    return stream_->Finish();
  }

 private:
  grpc::ClientContext context_;
  const std::unique_ptr<typename Service::Stub> stub_;
  const std::unique_ptr<grpc::ClientReaderWriter<Request, Response>> stream_;
};
using ClientV1 = Client<reflection_v1::ServerReflection, reflection_v1::ServerReflectionRequest,
                        reflection_v1::ServerReflectionResponse>;
using ClientV1Alpha = Client<reflection_v1alpha::ServerReflection, reflection_v1alpha::ServerReflectionRequest,
                             reflection_v1alpha::ServerReflectionResponse>;

class ReflectionTest : public ServerTest {
 protected:
  template <class OneClient>
  void DescribesAll(const std::shared_ptr<grpc::Channel>& channel, const std::vector<std::string>& wanted) {
    OneClient client(channel);
    EXPECT_EQ(client.Services(), wanted);
    pb::DescriptorPool pool;
    for (const std::string& name : wanted) {
      EXPECT_TRUE(client.Describe(name, &pool)) << name << " is listed but not described";
    }
    EXPECT_TRUE(client.End().ok());
  }
  grpc::Status CallUnary(const std::string& method, const pb::Message& request, pb::Message* response) {
    grpc::GenericStub stub(channel_);
    grpc::ClientContext context;
    const grpc::ByteBuffer bytes = rpc::SerializeRaw(request);
    grpc::ByteBuffer answer;
    grpc::Status status;
    absl::Notification done;
    stub.UnaryCall(&context, method, grpc::StubOptions(), &bytes, &answer, [&](grpc::Status result) {
      status = std::move(result);
      done.Notify();
    });
    done.WaitForNotification();
    if (status.ok()) {
      EXPECT_TRUE(rpc::ParseRaw(answer, response).ok());
    }
    return status;
  }
};

TEST_F(ReflectionTest, EachPortListsAndDescribesItsServices) {
  const std::vector<std::string> users = {kHealth, "grpc.reflection.v1.ServerReflection",
                                          "grpc.reflection.v1alpha.ServerReflection", "switchyard.v1.InferenceService"};
  DescribesAll<ClientV1>(channel_, users);
  DescribesAll<ClientV1Alpha>(channel_, users);
  const std::vector<std::string> operators = {kHealth, "grpc.reflection.v1.ServerReflection",
                                              "grpc.reflection.v1alpha.ServerReflection", "switchyard.v1.AdminService",
                                              "switchyard.v1.TrainingService"};
  DescribesAll<ClientV1>(admin_channel_, operators);
  DescribesAll<ClientV1Alpha>(admin_channel_, operators);
}

TEST_F(ReflectionTest, HealthIsCalledByItsDescription) {
  ClientV1 client(channel_);
  pb::DescriptorPool pool;
  ASSERT_TRUE(client.Describe(kHealth, &pool));
  const pb::MethodDescriptor* check = pool.FindServiceByName(kHealth)->FindMethodByName("Check");
  ASSERT_NE(check, nullptr);
  pb::DynamicMessageFactory factory;
  const std::unique_ptr<pb::Message> request(factory.GetPrototype(check->input_type())->New());
  const std::unique_ptr<pb::Message> response(factory.GetPrototype(check->output_type())->New());
  const grpc::Status status = CallUnary("/grpc.health.v1.Health/Check", *request, response.get());
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response->ShortDebugString(), "status: SERVING");
  EXPECT_TRUE(client.End().ok());
}

// Every kind of request on one call, and the request in its answer.
TEST_F(ReflectionTest, FilesSymbolsAndExtensions) {
  using Request = reflection_v1::ServerReflectionRequest;
  ClientV1 client(channel_);
  const auto file = [](const reflection_v1::ServerReflectionResponse& answer) {
    pb::FileDescriptorProto first;
    if (answer.file_descriptor_response().file_descriptor_proto_size() == 0) return "none: " + answer.DebugString();
    EXPECT_TRUE(first.ParseFromString(answer.file_descriptor_response().file_descriptor_proto(0)));
    return first.name();
  };
  const auto answer = client.Ask([](Request* r) {
    r->set_host("here");
    r->set_file_by_filename("switchyard/v1/inference.proto");
  });
  EXPECT_EQ(file(answer), "switchyard/v1/inference.proto");
  EXPECT_EQ(answer.valid_host(), "here");
  EXPECT_EQ(answer.original_request().file_by_filename(), "switchyard/v1/inference.proto");
  for (const char* symbol : {"switchyard.v1.InferenceService.Generate", "switchyard.v1.GenerateRequest",
                             "switchyard.v1.GenerateRequest.request_id", "switchyard.v1.GenerateRequest.prompt"}) {
    EXPECT_EQ(file(client.Ask([&](Request* r) { r->set_file_containing_symbol(symbol); })),
              "switchyard/v1/inference.proto")
        << symbol;
  }
  const auto numbers =
      client.Ask([](Request* r) { r->set_all_extension_numbers_of_type("google.protobuf.MessageOptions"); });
  EXPECT_EQ(numbers.message_response_case(), numbers.kAllExtensionNumbersResponse) << "without any";
  EXPECT_EQ(numbers.all_extension_numbers_response().base_type_name(), "google.protobuf.MessageOptions");
  EXPECT_TRUE(client.End().ok());
}

TEST_F(ReflectionTest, WhatThereIsNotIsAnErrorOnACallThatGoesOn) {
  using Request = reflection_v1::ServerReflectionRequest;
  ClientV1 client(channel_);
  const std::function<void(Request*)> unknown[] = {
      [](Request* r) { r->set_file_by_filename("none.proto"); },
      [](Request* r) { r->set_file_containing_symbol("switchyard.v1.None"); },
      [](Request* r) { r->set_file_containing_symbol(""); },
      [](Request* r) { r->set_all_extension_numbers_of_type("switchyard.v1.None"); },
      [](Request* r) {
        r->mutable_file_containing_extension()->set_containing_type("google.protobuf.MessageOptions");
        r->mutable_file_containing_extension()->set_extension_number(77777);
      }};
  for (const auto& fill : unknown) {
    const auto answer = client.Ask(fill);
    EXPECT_EQ(answer.error_response().error_code(), grpc::StatusCode::NOT_FOUND) << answer.ShortDebugString();
    EXPECT_THAT(answer.error_response().error_message(), HasSubstr("there is no "));
  }
  for (const auto& [fill, why] : {std::pair<std::function<void(Request*)>, const char*>([](Request*) {}, "nothing"),
                                  {[](Request* r) { r->set_file_by_filename(std::string(1025, 'x')); }, "1024 is"}}) {
    const auto answer = client.Ask(fill);
    EXPECT_EQ(answer.error_response().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(answer.error_response().error_message(), HasSubstr(why));
  }
  EXPECT_EQ(client.Services().size(), 4u);
  EXPECT_TRUE(client.End().ok());
}

TEST_F(ReflectionTest, BytesThatAreNoRequestEndTheCall) {
  for (const char* version : {"v1", "v1alpha"}) {
    const grpc::Status status =
        Call("ServerReflectionInfo", "\xff\xff", absl::StrCat("/grpc.reflection.", version, ".ServerReflection/"));
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
  }
}

// Open calls hold no threads, so many may be open; each is answered.
TEST_F(ReflectionTest, ManyCallsAreOpenAtOnce) {
  std::vector<std::unique_ptr<ClientV1>> clients;
  for (int i = 0; i < 100; ++i) clients.push_back(std::make_unique<ClientV1>(channel_));
  for (const auto& client : clients) EXPECT_EQ(client->Services().size(), 4u);
  for (const auto& client : clients) EXPECT_TRUE(client->End().ok());
}

}  // namespace
}  // namespace switchyard::server
