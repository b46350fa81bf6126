// The front pool is bounded and fair, and finishes accepted work.
#include "server/admission/front_pool.h"

#include <memory>
#include <new>
#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "grpcpp/support/status.h"
#include "gtest/gtest.h"
#include "proto/support/errors.h"

namespace switchyard::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int64_t kKiB = 1024;

// A pool of one thread, which is kept busy until Go.
class FrontPoolTest : public testing::Test {
 protected:
  void Make(FrontPool::Limits limits, int64_t room = int64_t{1} << 40) {
    pool_ = std::make_unique<FrontPool>(1, limits, [room] { return room; });
    pool_->Post({.client = "first",
                 .run =
                     [this] {
                       started_.Notify();
                       go_.WaitForNotification();
                     },
                 .refuse = [](const absl::Status& why) { ADD_FAILURE() << why; }});
    started_.WaitForNotification();
  }
  void Post(const std::string& client, int64_t bytes = 0, const std::string& name = "") {
    const std::string said = name.empty() ? client : name;
    pool_->Post({.client = client,
                 .bytes = bytes,
                 .run = [this, said] { ran_.push_back(said); },
                 .refuse =
                     [this, said](const absl::Status& why) {
                       refused_.push_back(said);
                       last_ = why;
                     }});
  }
  void Go() {
    go_.Notify();
    pool_.reset();
  }

  absl::Notification started_, go_;
  std::unique_ptr<FrontPool> pool_;
  std::vector<std::string> ran_, refused_;
  absl::Status last_;
};

TEST(FrontPoolThreadsTest, OneIsKeptForShortTexts) {
  FrontPool pool(2, {.calls = 10, .bytes = 1 << 30, .bytes_per_client = 1 << 30}, [] { return int64_t{1} << 40; });
  absl::Notification first_runs, go, second_ran, short_ran;
  const auto refuse = [](const absl::Status& why) { ADD_FAILURE() << why; };
  pool.Post({.client = "first",
             .bytes = 100 * kKiB,
             .run =
                 [&] {
                   first_runs.Notify();
                   go.WaitForNotification();
                 },
             .refuse = refuse});
  first_runs.WaitForNotification();
  pool.Post({.client = "second", .bytes = 100 * kKiB, .run = [&] { second_ran.Notify(); }, .refuse = refuse});
  pool.Post({.client = "third", .bytes = kKiB, .run = [&] { short_ran.Notify(); }, .refuse = refuse});
  EXPECT_TRUE(short_ran.WaitForNotificationWithTimeout(absl::Seconds(60))) << "it waits behind long texts";
  EXPECT_FALSE(second_ran.HasBeenNotified());
  go.Notify();
  EXPECT_TRUE(second_ran.WaitForNotificationWithTimeout(absl::Seconds(60)));
}

TEST_F(FrontPoolTest, RefusesBeyondItsBoundAndRunsTheRestAtItsEnd) {
  Make({.calls = 3, .bytes = kKiB * kKiB, .bytes_per_client = kKiB * kKiB});
  for (int i = 0; i < 3; ++i) Post("a");
  EXPECT_THAT(refused_, IsEmpty());
  Post("a", 0, "fourth");
  EXPECT_THAT(refused_, ElementsAre("fourth"));
  EXPECT_EQ(last_.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(pool_->num_refused(), 1);
  Go();
  EXPECT_THAT(ran_, ElementsAre("a", "a", "a"));
}

TEST_F(FrontPoolTest, ClientsTakeTurns) {
  Make({.calls = 100, .bytes = kKiB * kKiB, .bytes_per_client = kKiB * kKiB});
  for (int i = 0; i < 5; ++i) Post("a");
  Post("b");
  Post("b");
  Post("c");
  Go();
  EXPECT_THAT(ran_, ElementsAre("a", "b", "c", "a", "b", "a", "a", "a"));
}

TEST_F(FrontPoolTest, OneClientHasItsShareOfTheBytes) {
  Make({.calls = 100, .bytes = 1000 * kKiB, .bytes_per_client = 100 * kKiB});
  Post("a", 60 * kKiB, "a1");
  Post("a", 60 * kKiB, "a2");
  EXPECT_THAT(refused_, ElementsAre("a2"));
  const rpc::ErrorView view = rpc::ViewError(rpc::ToGrpcStatus(last_, ""));
  EXPECT_EQ(view.reason, "QUEUE_FULL");
  EXPECT_EQ(view.details.metadata().at("limit"), "102400");
  EXPECT_EQ(view.details.metadata().at("actual"), "131072") << "4 KiB for a call's own sake";
  EXPECT_GT(view.retry_after, absl::ZeroDuration());
  EXPECT_THAT(std::string(last_.message()), HasSubstr("one client"));
  Post("b", 60 * kKiB);
  EXPECT_EQ(pool_->waiting_bytes(), 2 * 64 * kKiB);
  Go();
  EXPECT_THAT(ran_, ElementsAre("a1", "b"));
}

TEST_F(FrontPoolTest, WhereAllIsFullWhoHoldsMostGivesWay) {
  Make({.calls = 100, .bytes = 200 * kKiB, .bytes_per_client = 150 * kKiB});
  for (const char* name : {"a1", "a2"}) Post("a", 60 * kKiB, name);
  Post("b", 50 * kKiB, "b1");
  EXPECT_THAT(refused_, IsEmpty());
  Post("c", 40 * kKiB, "c1");
  EXPECT_THAT(refused_, ElementsAre("a2"));
  Post("b", 70 * kKiB, "b2");
  EXPECT_THAT(refused_, ElementsAre("a2", "b2")) << "it would be the one that holds most";
  Go();
  EXPECT_THAT(ran_, ElementsAre("a1", "b1", "c1"));
}

TEST_F(FrontPoolTest, ACallThatFindsNoMemoryIsRefusedAndTheNextRuns) {
  Make({.calls = 100, .bytes = kKiB * kKiB, .bytes_per_client = kKiB * kKiB});
  pool_->Post({.client = "a",
               .run = [] { throw std::bad_alloc(); },
               .refuse =
                   [this](const absl::Status& why) {
                     refused_.push_back("a");
                     last_ = why;
                   }});
  Post("b");
  Go();
  EXPECT_THAT(refused_, ElementsAre("a"));
  EXPECT_EQ(last_.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(ran_, ElementsAre("b"));
}

TEST_F(FrontPoolTest, ACallThatWouldNeedMoreMemoryThanIsLeftIsNotBegun) {
  Make({.calls = 100, .bytes = kKiB * kKiB, .bytes_per_client = kKiB * kKiB}, /*room=*/kKiB * kKiB);
  Post("a", 500 * kKiB, "large");
  Post("a", 10 * kKiB, "small");
  Go();
  EXPECT_THAT(refused_, ElementsAre("large"));
  EXPECT_THAT(std::string(last_.message()), HasSubstr("memory"));
  EXPECT_THAT(ran_, ElementsAre("small"));
}

TEST(FrontPoolThreadsTest, TasksRunSideBySide) {
  FrontPool pool(2, {.calls = 8, .bytes = kKiB * kKiB, .bytes_per_client = kKiB * kKiB});
  absl::Notification first, second;
  const auto refuse = [](const absl::Status& why) { ADD_FAILURE() << why; };
  pool.Post({.client = "a",
             .run =
                 [&] {
                   second.WaitForNotification();
                   first.Notify();
                 },
             .refuse = refuse});
  pool.Post({.client = "a", .run = [&] { second.Notify(); }, .refuse = refuse});
  first.WaitForNotification();
}

TEST(FrontClientOfPeerTest, IsAnAddressAndOnLoopbackAConnection) {
  EXPECT_EQ(FrontClientOfPeer("ipv4:10.0.0.1:4711"), "ipv4:10.0.0.1");
  EXPECT_EQ(FrontClientOfPeer("ipv4:127.0.0.1:4711"), "ipv4:127.0.0.1:4711");
  EXPECT_EQ(FrontClientOfPeer("ipv6:%5B::1%5D:4711"), "ipv6:%5B::1%5D:4711");
  EXPECT_EQ(FrontClientOfPeer("ipv6:[fd00::1]:4711"), "ipv6:fd00::/64");
  EXPECT_EQ(FrontClientOfPeer("unix-abstract:ipv4:127.0.0.1:4711%23ab-7"), "ipv4:127.0.0.1:4711");
  EXPECT_EQ(FrontClientOfPeer("unix-abstract:ipv4:10.0.0.1:4711%23ab-7"), "ipv4:10.0.0.1");
}

}  // namespace
}  // namespace switchyard::server
