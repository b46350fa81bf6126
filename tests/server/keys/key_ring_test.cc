#include "server/keys/key_ring.h"

#include <sys/stat.h>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/support/api_key.h"
#include "proto/support/errors.h"
#include "scheduler/base/constant_time.h"
#include "tests/workers/model/temp_dir.h"

namespace switchyard::server {
namespace {

using testing::HasSubstr;
using testing::Not;

class KeyRingTest : public testing::Test {
 protected:
  void SetUp() override {
    Write({{"alice", "user"}, {"tina", "trainer"}, {"root", "admin"}});
    auto ring = KeyRing::Open(dir_.File("keys"));
    ASSERT_TRUE(ring.ok()) << ring.status();
    ring_ = *std::move(ring);
  }
  // The key of NAME is "key-NAME".
  void Write(const std::vector<std::pair<std::string, std::string>>& keys) {
    std::string text;
    for (const auto& [name, role] : keys) {
      absl::StrAppend(&text, name, " ", role, " sha256:", absl::BytesToHexString(rpc::DigestOfKey("key-" + name)),
                      "\n");
    }
    ASSERT_EQ(chmod(dir_.Write("keys", text).c_str(), 0600), 0);
  }
  v1::ErrorReason Try(absl::string_view method, std::vector<absl::string_view> values) {
    return rpc::ReasonOf(ring_->Admit(method, values).status());
  }

  model::TempDir dir_;
  std::unique_ptr<KeyRing> ring_;
};

TEST_F(KeyRingTest, OneKnownKeyIsWanted) {
  constexpr char kMethod[] = "InferenceService/Generate";
  const absl::StatusOr<Caller> caller = ring_->Admit(kMethod, {"Bearer key-alice"});
  ASSERT_TRUE(caller.ok()) << caller.status();
  EXPECT_EQ(caller->name, "alice");
  EXPECT_EQ(caller->role, Role::kUser);
  EXPECT_TRUE(ring_->Admit(kMethod, {"bearer key-alice"}).ok());
  for (const char* value : {"", "Bearer", "Bearer ", "key-alice", "Basic key-alice", "Bearer key-alic",
                            "Bearer key-alice ", "Bearer  key-alice", "Bearer KEY-ALICE"}) {
    EXPECT_EQ(Try(kMethod, {value}), v1::NO_KEY) << value;
    EXPECT_EQ(ring_->Admit(kMethod, {value}).status().code(), absl::StatusCode::kUnauthenticated);
    EXPECT_THAT(std::string(ring_->Admit(kMethod, {value}).status().message()), Not(HasSubstr("key-ali")));
  }
  EXPECT_EQ(Try(kMethod, {}), v1::NO_KEY);
  EXPECT_EQ(Try(kMethod, {"Bearer key-alice", "Bearer key-alice"}), v1::NO_KEY);
}

TEST_F(KeyRingTest, ErrorsNameThePlaceWhereTheClientPutsItsKey) {
  static constexpr char kMethod[] = "InferenceService/Generate";
  const auto said = [this](std::vector<absl::string_view> values, KeyPlace place) {
    return std::string(ring_->Admit(kMethod, values, place).status().message());
  };
  EXPECT_THAT(said({}, KeyPlace::kMetadata), HasSubstr("metadata `authorization: Bearer KEY`"));
  EXPECT_THAT(said({}, KeyPlace::kHeader), HasSubstr("header `Authorization: Bearer KEY`"));
  EXPECT_THAT(said({"Basic a"}, KeyPlace::kHeader), HasSubstr("the header `Authorization` must have one value"));
}

TEST_F(KeyRingTest, RolesCount) {
  EXPECT_EQ(Try("TrainingService/GetJob", {"Bearer key-alice"}), v1::WRONG_ROLE);
  EXPECT_TRUE(ring_->Admit("TrainingService/GetJob", {"Bearer key-tina"}).ok());
  const absl::Status refused = ring_->Admit("AdminService/GetPlan", {"Bearer key-tina"}).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(refused.message(), "the key tina has the role trainer; AdminService/GetPlan wants admin");
  EXPECT_TRUE(ring_->Admit("AdminService/GetPlan", {"Bearer key-root"}).ok());
  EXPECT_EQ(Try("AdminService/New", {"Bearer key-root"}), v1::WRONG_ROLE);  // a method without a role is nobody's
}

TEST_F(KeyRingTest, ANewFileCountsAndABadOneDoesNot) {
  constexpr char kMethod[] = "InferenceService/Generate";
  Write({{"bob", "user"}});
  EXPECT_TRUE(ring_->Admit(kMethod, {"Bearer key-alice"}).ok());  // not read yet
  EXPECT_EQ(ring_->Reload().value_or(0), 1u);
  EXPECT_EQ(Try(kMethod, {"Bearer key-alice"}), v1::NO_KEY);
  EXPECT_TRUE(ring_->Admit(kMethod, {"Bearer key-bob"}).ok());
  ASSERT_EQ(chmod(dir_.Write("keys", "# none\nbob user\n").c_str(), 0600), 0);
  EXPECT_THAT(std::string(ring_->Reload().status().message()), HasSubstr("keys:2: must be NAME"));
  EXPECT_TRUE(ring_->Admit(kMethod, {"Bearer key-bob"}).ok());
}

TEST(ApiKeyTest, KeysAreDrawnAndHashed) {
  const std::string key = rpc::DrawApiKey();
  EXPECT_EQ(key.size(), 3u + 64u);
  EXPECT_NE(key, rpc::DrawApiKey());
  EXPECT_TRUE(rpc::CheckKeyText(key).ok());
  // FIPS 180-2, appendix B, and the empty message.
  EXPECT_EQ(absl::BytesToHexString(rpc::DigestOfKey("abc")),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(absl::BytesToHexString(rpc::DigestOfKey("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(absl::BytesToHexString(rpc::DigestOfKey("")),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  for (const char* bad : {"", "a b", "a\n", "\x01", "k\xc3\xa9y"}) EXPECT_FALSE(rpc::CheckKeyText(bad).ok()) << bad;
  EXPECT_FALSE(rpc::CheckKeyText(std::string(1001, 'k')).ok());
}

TEST(ConstantTimeTest, ComparesAllBytes) {
  EXPECT_TRUE(ConstantTimeEqual("", ""));
  EXPECT_TRUE(ConstantTimeEqual("secret", "secret"));
  for (const char* other : {"Secret", "secreT", "secre", "secrets", ""})
    EXPECT_FALSE(ConstantTimeEqual("secret", other));
}

}  // namespace
}  // namespace switchyard::server
