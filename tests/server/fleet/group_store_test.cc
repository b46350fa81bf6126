// The rendezvous stores: write-once keys, a token for each, waiters that are always answered.
#include "server/fleet/group_store.h"

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace switchyard::server {
namespace {

using Answer = std::optional<GroupStore::Values>;

class GroupStoreTest : public testing::Test {
 protected:
  void SetUp() override { store.Open("t1"); }

  void Get(std::vector<std::string> keys, Answer* answer, absl::Duration wait = absl::Seconds(5)) {
    store.Get("t1", std::move(keys), now + wait, [answer](GroupStore::Values values) {
      EXPECT_FALSE(answer->has_value()) << "answered twice";
      *answer = std::move(values);
    });
  }

  GroupStore store;
  absl::Time now = absl::UnixEpoch() + absl::Hours(9);
};

TEST_F(GroupStoreTest, KeysAreWrittenOnce) {
  EXPECT_TRUE(store.Set("t1", "rank0", "address").ok());
  EXPECT_TRUE(store.Set("t1", "rank0", "address").ok()) << "a repeated call is no conflict";
  const absl::Status status = store.Set("t1", "rank0", "other");
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(std::string(status.message()), "rendezvous: key rank0 is set; two workers with one rank?");
  Answer answer;
  Get({"rank0"}, &answer);
  ASSERT_TRUE(answer && answer->ok());
  EXPECT_EQ(answer->value(), std::vector<std::string>{"address"});
}

TEST_F(GroupStoreTest, StrangersAndOldEpochsAreRefused) {
  EXPECT_EQ(store.Set("t0", "k", "v").code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(store.Set("", "k", "v").code(), absl::StatusCode::kPermissionDenied);
  Answer answer;
  store.Get("t0", {"k"}, now, [&](GroupStore::Values values) { answer = std::move(values); });
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status().code(), absl::StatusCode::kPermissionDenied);
  store.Close("t1");
  store.Open("t2");
  EXPECT_EQ(store.Set("t1", "k", "v").code(), absl::StatusCode::kPermissionDenied) << "a zombie of epoch t1";
  store.CloseAll();
  EXPECT_EQ(store.Set("t2", "k", "v").code(), absl::StatusCode::kPermissionDenied);
  store.Open("");
  EXPECT_EQ(store.Set("", "k", "v").code(), absl::StatusCode::kPermissionDenied) << "a closed store has no token";
}

TEST_F(GroupStoreTest, WaitersAreAnsweredByTheLastKey) {
  Answer both, one, never;
  Get({"a", "b"}, &both);
  Get({"b"}, &one);
  Get({"c"}, &never);
  EXPECT_TRUE(store.Set("t1", "a", "1").ok());
  EXPECT_FALSE(both);
  EXPECT_TRUE(store.Set("t1", "b", "2").ok());
  ASSERT_TRUE(both && both->ok());
  EXPECT_EQ(both->value(), (std::vector<std::string>{"1", "2"}));
  ASSERT_TRUE(one && one->ok());
  EXPECT_FALSE(never);
  store.Open("t1");
  ASSERT_TRUE(never);
  EXPECT_EQ(never->status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(store.Set("t1", "a", "new").code(), absl::StatusCode::kOk) << "the old values are gone";
}

TEST_F(GroupStoreTest, GroupsHaveStoresOfTheirOwn) {
  store.Open("t2");
  Answer waits;
  Get({"a"}, &waits);
  EXPECT_TRUE(store.Set("t2", "a", "other").ok());
  EXPECT_FALSE(waits) << "of another group";
  store.Close("t2");
  EXPECT_FALSE(waits);
  EXPECT_TRUE(store.Set("t1", "a", "own").ok());
  ASSERT_TRUE(waits && waits->ok());
  EXPECT_EQ(waits->value(), std::vector<std::string>{"own"});
}

TEST_F(GroupStoreTest, SweepEndsWaitsOverTime) {
  Answer early, late;
  Get({"x"}, &early, absl::Seconds(1));
  Get({"y"}, &late, absl::Seconds(2));
  store.Sweep(now + absl::Milliseconds(999));
  EXPECT_FALSE(early);
  store.Sweep(now + absl::Seconds(1));
  ASSERT_TRUE(early);
  EXPECT_EQ(early->status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(std::string(early->status().message()), "rendezvous: nobody set x");
  EXPECT_FALSE(late);
  store.Sweep(now + absl::Hours(1));
  EXPECT_TRUE(late);
}

TEST_F(GroupStoreTest, ACallbackMayUseTheStore) {
  Answer second;
  store.Get("t1", {"a"}, now, [&](GroupStore::Values) {
    EXPECT_TRUE(store.Set("t1", "from_callback", "v").ok());
    Get({"from_callback"}, &second);
  });
  EXPECT_TRUE(store.Set("t1", "a", "1").ok());
  EXPECT_TRUE(second && second->ok());
}

TEST_F(GroupStoreTest, LimitsAreEnforced) {
  EXPECT_EQ(store.Set("t1", "", "v").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(store.Set("t1", std::string(GroupStore::kMaxKeyBytes + 1, 'k'), "v").code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(store.Set("t1", std::string(GroupStore::kMaxKeyBytes, 'k'), "v").ok());
  EXPECT_EQ(store.Set("t1", "big", std::string(GroupStore::kMaxValueBytes + 1, 'v')).code(),
            absl::StatusCode::kInvalidArgument);
  for (size_t i = 1; i < GroupStore::kMaxKeys; ++i) ASSERT_TRUE(store.Set("t1", absl::StrCat("k", i), "").ok());
  EXPECT_EQ(store.Set("t1", "one more", "").code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace switchyard::server
