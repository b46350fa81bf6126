// A reflection client such as grpcurl: lists the services, describes one, and calls it by its description.
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "google/protobuf/descriptor.h"
#include "google/protobuf/descriptor.pb.h"
#include "google/protobuf/dynamic_message.h"
#include "gtest/gtest.h"
#include "proto/support/raw_message.h"
#include "tests/server/server_fixture.h"

namespace switchyard::server {
namespace {

namespace pb = google::protobuf;
using MessagePtr = std::unique_ptr<pb::Message>;

class ReflectionTest : public ServerTest {
 protected:
  // Sends a request with its field `field` set to `text`; returns null without an answer.
  MessagePtr Ask(const std::string& field, const std::string& text) {
    const auto message = [](const char* name) {
      const std::string full = std::string("grpc.reflection.v1alpha.") + name;
      const pb::Descriptor* type = pb::DescriptorPool::generated_pool()->FindMessageTypeByName(full);
      return MessagePtr(pb::MessageFactory::generated_factory()->GetPrototype(type)->New());
    };
    const MessagePtr request = message("ServerReflectionRequest");
    request->GetReflection()->SetString(request.get(), request->GetDescriptor()->FindFieldByName(field), text);
    MessagePtr response = message("ServerReflectionResponse");
    const grpc::Status status =
        CallUnary("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", *request, response.get());
    EXPECT_TRUE(status.ok()) << status.error_message();
    return status.ok() ? std::move(response) : nullptr;
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

  static const pb::Message& Part(const pb::Message& message, const char* field) {
    return message.GetReflection()->GetMessage(message, message.GetDescriptor()->FindFieldByName(field));
  }
  static std::vector<std::string> Strings(const pb::Message& message, const char* field) {
    std::vector<std::string> out;
    const pb::FieldDescriptor* of = message.GetDescriptor()->FindFieldByName(field);
    for (int i = 0; i < message.GetReflection()->FieldSize(message, of); ++i)
      out.push_back(message.GetReflection()->GetRepeatedString(message, of, i));
    return out;
  }

  // Adds the file that defines `symbol`, with its imports, to `pool_`; returns false if the server does not know it.
  bool Describe(const std::string& symbol) {
    const MessagePtr answer = Ask("file_containing_symbol", symbol);
    if (answer == nullptr) return false;
    std::map<std::string, pb::FileDescriptorProto> files;
    for (const std::string& bytes : Strings(Part(*answer, "file_descriptor_response"), "file_descriptor_proto")) {
      pb::FileDescriptorProto file;
      EXPECT_TRUE(file.ParseFromString(bytes));
      files[file.name()] = file;
    }
    while (!files.empty()) {
      const size_t before = files.size();
      for (auto it = files.begin(); it != files.end();) {
        bool can = true;
        for (const std::string& needed : it->second.dependency()) can = can && !files.contains(needed);
        if (can && pool_.FindFileByName(it->first) == nullptr) {
          EXPECT_NE(pool_.BuildFile(it->second), nullptr);
        }
        it = can ? files.erase(it) : std::next(it);
      }
      if (files.size() == before) return false;
    }
    return pool_.FindServiceByName(symbol) != nullptr;
  }

  pb::DescriptorPool pool_;
};

TEST_F(ReflectionTest, DescribesEachServiceThatItLists) {
  const MessagePtr answer = Ask("list_services", "*");
  ASSERT_NE(answer, nullptr);
  const pb::Message& list = Part(*answer, "list_services_response");
  const pb::FieldDescriptor* services = list.GetDescriptor()->FindFieldByName("service");
  const int count = list.GetReflection()->FieldSize(list, services);
  EXPECT_GE(count, 3);  // that of users, health, reflection
  for (int i = 0; i < count; ++i) {
    const pb::Message& service = list.GetReflection()->GetRepeatedMessage(list, services, i);
    const std::string name =
        service.GetReflection()->GetString(service, service.GetDescriptor()->FindFieldByName("name"));
    EXPECT_TRUE(Describe(name)) << name << " is listed but not described";
  }
}

TEST_F(ReflectionTest, HealthIsCalledByItsDescription) {
  ASSERT_TRUE(Describe("grpc.health.v1.Health"));
  const pb::MethodDescriptor* check = pool_.FindServiceByName("grpc.health.v1.Health")->FindMethodByName("Check");
  ASSERT_NE(check, nullptr);
  pb::DynamicMessageFactory factory;
  const MessagePtr request(factory.GetPrototype(check->input_type())->New());
  const MessagePtr response(factory.GetPrototype(check->output_type())->New());
  const grpc::Status status = CallUnary("/grpc.health.v1.Health/Check", *request, response.get());
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response->ShortDebugString(), "status: SERVING");
}

}  // namespace
}  // namespace switchyard::server
