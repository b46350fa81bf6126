// Time slices for training: the engine sends them only while there is nothing to serve.
#include <string>

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "tests/server/engine/engine_fixture.h"

namespace switchyard::server {
namespace {

class EngineSlicesTest : public EngineTest {
 protected:
  void AwaitSlices(int more) {
    const int wanted = worker->slices() + more;
    const absl::Time end = absl::Now() + kPatience;
    while (worker->slices() < wanted && absl::Now() < end) absl::SleepFor(absl::Milliseconds(1));
    EXPECT_GE(worker->slices(), wanted);
  }
};

TEST_F(EngineSlicesTest, NobodyWantsThemNobodyGetsThem) {
  StartReady();
  AwaitTick(MonotonicNow() + absl::Milliseconds(300));
  EXPECT_EQ(worker->slices(), 0);
}

TEST_F(EngineSlicesTest, TheyComeWhileThereIsNothingToServe) {
  StartReady();
  engine->slices()->Want(true);
  AwaitSlices(3);
  EXPECT_EQ(engine->slices()->num_slices(), 1) << "renewed in time, it is one";

  // No slices while a step is under way, however long it takes.
  worker->Allow(0);
  Reader reader;
  Submit(reader, "r", 2);
  worker->AwaitHeld();
  const int before = worker->slices();
  const absl::Duration given = engine->slices()->given(MonotonicNow());
  AwaitTick(MonotonicNow() + absl::Milliseconds(400));
  EXPECT_EQ(worker->slices(), before);
  EXPECT_EQ(engine->slices()->given(MonotonicNow()), given);
  worker->Allow(-1);
  EXPECT_TRUE(reader.End().ok());
  EXPECT_EQ(reader.text(), "ab");
  AwaitSlices(2);
  EXPECT_GE(engine->slices()->num_slices(), 2);
  EXPECT_GT(engine->slices()->given(MonotonicNow()), given);

  engine->slices()->Want(false);
  AwaitTick(MonotonicNow() + absl::Milliseconds(100));
  const int last = worker->slices();
  AwaitTick(MonotonicNow() + absl::Milliseconds(300));
  EXPECT_EQ(worker->slices(), last);
}

// Answers are the same, and training gets its share although there is always something to serve.
TEST_F(EngineSlicesTest, WithAShareStepsWaitForTheirs) {
  config.train_share = 0.5;
  StartReady();
  engine->slices()->Want(true);
  AwaitSlices(1);
  const int64_t before = engine->slices()->num_slices();
  worker->set_step_ms(10);
  Reader reader;
  Submit(reader, "r", 40);
  EXPECT_TRUE(reader.End().ok());
  EXPECT_EQ(reader.text(), "abcdefghijklmnopqrstuvwxyzabcdefghijklmn");
  // 40 steps of 10 ms are as long as eight slices of 50 ms.
  EXPECT_GE(engine->slices()->num_slices(), before + 4);
}

}  // namespace
}  // namespace switchyard::server
