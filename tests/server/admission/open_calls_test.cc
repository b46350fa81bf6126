#include "server/admission/open_calls.h"

#include <atomic>
#include <memory>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"

namespace switchyard::server {
namespace {

class FakeCall final : public OpenCalls::Call {
 public:
  explicit FakeCall(OpenCalls* calls) : calls_(calls) { calls_->Add(this); }
  ~FakeCall() { calls_->Remove(this); }
  void CheckTime(absl::Time) override {
    ++looks;
    CheckAt(again);
    if (looks == 1) looked_at.Notify();
  }
  using Call::CheckAt;

  std::atomic<int> looks{0};
  absl::Time again = absl::InfiniteFuture();
  absl::Notification looked_at;

 private:
  OpenCalls* const calls_;
};

const absl::Time kNow = absl::UnixEpoch() + absl::Hours(1);

// Calls that are not due are not checked, so a flood of them costs none of their locks.
TEST(OpenCallsTest, OnlyWhatIsDueIsLookedAt) {
  OpenCalls calls;
  std::vector<std::unique_ptr<FakeCall>> many;
  for (int i = 0; i < 1000; ++i) many.push_back(std::make_unique<FakeCall>(&calls));
  for (auto& call : many) call->CheckAt(kNow + absl::Seconds(1));
  FakeCall due(&calls), never(&calls);
  due.CheckAt(kNow);
  calls.CheckTime(kNow);
  EXPECT_EQ(due.looks, 1);
  calls.CheckTime(kNow + absl::Milliseconds(999));
  EXPECT_EQ(due.looks, 1) << "it said that nobody need come again";
  for (auto& call : many) ASSERT_EQ(call->looks, 0);
  calls.CheckTime(kNow + absl::Seconds(1));
  for (auto& call : many) ASSERT_EQ(call->looks, 1);
  EXPECT_EQ(never.looks, 0);
}

TEST(OpenCallsTest, ACallSaysWhenToComeAgain) {
  OpenCalls calls;
  FakeCall call(&calls);
  call.CheckAt(kNow);
  call.again = kNow + absl::Seconds(2);
  for (int tick = 0; tick < 4; ++tick) calls.CheckTime(kNow + absl::Milliseconds(500) * tick);
  EXPECT_EQ(call.looks, 1);
  calls.CheckTime(kNow + absl::Seconds(2));
  EXPECT_EQ(call.looks, 2);
}

TEST(OpenCallsTest, ItsThreadLooksUntilItIsStopped) {
  OpenCalls calls;
  FakeCall call(&calls);
  calls.Start();
  call.CheckAt(MonotonicNow());
  EXPECT_TRUE(call.looked_at.WaitForNotificationWithTimeout(absl::Seconds(30)));
  calls.Stop();
  FakeCall late(&calls);
  late.CheckAt(MonotonicNow());
  calls.Stop();
  EXPECT_EQ(late.looks, 0);
}

}  // namespace
}  // namespace switchyard::server
