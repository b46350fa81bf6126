#include "workers/moe/experts/timed_copier.h"

#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "scheduler/base/clock.h"

namespace switchyard::moe {
namespace {

class SecondFails : public HostExpertCopier {
 public:
  Finished Await() override {
    Finished finished = HostExpertCopier::Await();
    if (++copies_ == 2) finished.status = absl::UnavailableError("gone");
    return finished;
  }

 private:
  int copies_ = 0;
};

TEST(TimedCopierTest, CountsWhatWasCopied) {
  TimedCopier copier(std::make_unique<SecondFails>());
  EXPECT_EQ(copier.bytes(), 0);
  EXPECT_EQ(copier.seconds(), 0);
  const std::vector<char> from(4 << 20, 'x');
  std::vector<char> to(from.size());
  const ExpertChunk chunk = {
      .id = {}, .bytes = static_cast<int64_t>(from.size()), .from = from.data(), .to = to.data()};
  ASSERT_TRUE(copier.Copy(chunk).ok());
  EXPECT_EQ(to, from);
  EXPECT_EQ(copier.bytes(), 4 << 20);
  const double once = copier.seconds();
  EXPECT_GT(once, 0);
  EXPECT_EQ(copier.Copy(chunk).message(), "gone");
  EXPECT_EQ(copier.bytes(), 4 << 20) << "a copy that failed says nothing of how fast they are";
  EXPECT_EQ(copier.seconds(), once);
  ASSERT_TRUE(copier.Copy(chunk).ok());
  EXPECT_EQ(copier.bytes(), 8 << 20);
  EXPECT_GT(copier.seconds(), once);
}

// The wall clock may jump under a copy.
TEST(TimedCopierTest, MeasuresByTheMonotonicClock) {
  static absl::Time now;
  class TakesTwoSeconds : public HostExpertCopier {
   public:
    Finished Await() override {
      now += absl::Seconds(2);
      return HostExpertCopier::Await();
    }
  };
  now = absl::FromUnixSeconds(1'700'000'000);
  simulated_now = [] { return now; };
  TimedCopier copier(std::make_unique<TakesTwoSeconds>());
  const char from = 'x';
  char to = 0;
  const absl::Status copied = copier.Copy({.id = {}, .bytes = 1, .from = &from, .to = &to});
  simulated_now = nullptr;
  ASSERT_TRUE(copied.ok()) << copied;
  EXPECT_DOUBLE_EQ(copier.seconds(), 2);
}

}  // namespace
}  // namespace switchyard::moe
