// Each method with each role, over real gRPC.
#include "gmock/gmock.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "server/keys/roles.h"
#include "tests/server/keys/keyed_server.h"

namespace switchyard::server {
namespace {

using testing::HasSubstr;
using testing::Not;

const std::pair<const char*, Role> kCallers[] = {
    {"alice", Role::kUser}, {"tina", Role::kTrainer}, {"root", Role::kAdmin}};

TEST_F(KeyedServerTest, EachMethodWithEachRole) {
  for (const MethodRole& row : MethodRoles()) {
    for (const char* name : {"", "nobody"}) {
      const grpc::Status status = CallAs(name, row.method);
      EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED) << row.method << " " << status.error_message();
      EXPECT_EQ(rpc::ViewError(status).reason, "NO_KEY") << row.method;
      EXPECT_THAT(status.error_message(), Not(HasSubstr("key-nobody")));
    }
    for (const auto& [name, role] : kCallers) {
      const grpc::Status status = CallAs(name, row.method);
      const bool refused = status.error_code() == grpc::StatusCode::PERMISSION_DENIED;
      EXPECT_EQ(refused, role < row.least) << row.method << " by " << name << ": " << status.error_message();
      EXPECT_EQ(rpc::ViewError(status).reason == "WRONG_ROLE", role < row.least) << row.method;
      EXPECT_NE(status.error_code(), grpc::StatusCode::UNAUTHENTICATED) << row.method << " by " << name;
    }
  }
}

TEST_F(KeyedServerTest, HealthAndWorkersNeedNoKey) {
  const auto health = grpc::health::v1::Health::NewStub(channel_);
  grpc::health::v1::HealthCheckResponse answer;
  grpc::ClientContext context;
  EXPECT_TRUE(health->Check(&context, grpc::health::v1::HealthCheckRequest(), &answer).ok());
  EXPECT_EQ(answer.status(), grpc::health::v1::HealthCheckResponse::SERVING);
  const auto worker = ConnectWorker();
  v1::GenerateResponse message;
  const auto context_of = ContextOf("alice");
  const auto stream = stub_->Generate(context_of.get(), Request(2));
  int tokens = 0;
  while (stream->Read(&message)) ++tokens;
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_GT(tokens, 0);
}

TEST_F(KeyedServerTest, ReflectionIsOff) {
  for (const char* version : {"v1", "v1alpha"}) {
    const std::string service = absl::StrCat("/grpc.reflection.", version, ".ServerReflection/");
    EXPECT_EQ(Call("ServerReflectionInfo", "", service).error_code(), grpc::StatusCode::UNIMPLEMENTED) << version;
  }
}

TEST_F(KeyedServerTest, AReloadCountsAndABadFileDoesNot) {
  EXPECT_TRUE(CallAs("alice", "InferenceService/GetLoad").ok());
  WriteKeys(dir_, KeyLine("carol", "user"));
  server_->ReloadFiles();
  EXPECT_EQ(CallAs("alice", "InferenceService/GetLoad").error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_TRUE(CallAs("carol", "InferenceService/GetLoad").ok());
  WriteKeys(dir_, "carol");
  testing::internal::CaptureStderr();
  server_->ReloadFiles();
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("/keys:1: must be NAME ROLE"));
  EXPECT_TRUE(CallAs("carol", "InferenceService/GetLoad").ok());
}

TEST_F(KeyedServerTest, ABadFileIsNoStart) {
  WriteKeys(dir_, "alice user sha256:abc\nbob\n");
  const absl::StatusOr<std::unique_ptr<Server>> server = Server::Start(config_);
  ASSERT_FALSE(server.ok());
  EXPECT_THAT(std::string(server.status().message()), testing::AllOf(HasSubstr("keys:1:"), HasSubstr("keys:2:")));
}

}  // namespace
}  // namespace switchyard::server
