#include "server/keys/roles.h"

#include <set>
#include <string>

#include "google/protobuf/descriptor.h"
#include "gtest/gtest.h"
#include "switchyard/v1/admin.pb.h"
#include "switchyard/v1/inference.pb.h"
#include "switchyard/v1/training.pb.h"

namespace switchyard::server {
namespace {

// A new method without a role fails here, and nobody may call it.
TEST(RolesTest, TheTableHasEveryMethodAndNoOther) {
  std::set<std::string> methods, table;
  for (const google::protobuf::FileDescriptor* file :
       {v1::GenerateRequest::descriptor()->file(), v1::GetPlanRequest::descriptor()->file(),
        v1::SubmitJobRequest::descriptor()->file()}) {
    for (int i = 0; i < file->service_count(); ++i) {
      for (int j = 0; j < file->service(i)->method_count(); ++j)
        methods.insert(file->service(i)->name() + "/" + file->service(i)->method(j)->name());
    }
  }
  EXPECT_GE(methods.size(), 17u);
  for (const MethodRole& row : MethodRoles()) EXPECT_TRUE(table.insert(row.method).second) << row.method << " twice";
  EXPECT_EQ(table, methods);
}

TEST(RolesTest, WhoMayCallWhat) {
  EXPECT_EQ(LeastRoleOf("InferenceService/Generate"), Role::kUser);
  EXPECT_EQ(LeastRoleOf("TrainingService/GetJob"), Role::kTrainer);
  for (const char* method : {"AdminService/GetProfile", "AdminService/GetExperts", "AdminService/GetPlan"})
    EXPECT_EQ(LeastRoleOf(method), Role::kAdmin) << method;
  EXPECT_EQ(LeastRoleOf("InferenceService/New"), std::nullopt);
  EXPECT_EQ(LeastRoleOf(""), std::nullopt);
}

TEST(RolesTest, NamesAndRoles) {
  for (const Role role : {Role::kUser, Role::kTrainer, Role::kAdmin}) EXPECT_EQ(ParseRole(NameOf(role)), role);
  EXPECT_EQ(ParseRole("root"), std::nullopt);
  EXPECT_EQ(ParseRole(""), std::nullopt);
}

TEST(RolesTest, OnlyItsOwnerAndAdminsTouchAThing) {
  EXPECT_TRUE((Caller{"alice", Role::kUser}.MayTouch("alice")));
  EXPECT_FALSE((Caller{"alice", Role::kTrainer}.MayTouch("bob")));
  EXPECT_FALSE((Caller{"alice", Role::kTrainer}.MayTouch("")));
  EXPECT_TRUE((Caller{"root", Role::kAdmin}.MayTouch("bob")));
  EXPECT_TRUE(Caller().MayTouch("bob"));  // without a keys file
}

}  // namespace
}  // namespace switchyard::server
