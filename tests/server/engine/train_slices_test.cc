// Time slices of training on serving workers: while there is nothing to serve, and when a share is owed.
#include "server/engine/train_slices.h"

#include "gtest/gtest.h"

namespace switchyard::server {
namespace {

const absl::Time kStart = absl::FromUnixSeconds(1000);
constexpr absl::Duration kMs = absl::Milliseconds(1);

TEST(TrainSlices, NobodyWantsNone) {
  TrainSlices slices(0);
  EXPECT_EQ(slices.Next(kStart), absl::ZeroDuration());
  slices.Want(true);
  EXPECT_EQ(slices.Next(kStart), TrainSlices::kSlice);
  slices.Want(false);
  EXPECT_EQ(slices.Next(kStart + 10 * kMs), absl::ZeroDuration());
  EXPECT_EQ(slices.given(kStart + 100 * kMs), 10 * kMs);
}

TEST(TrainSlices, ASliceIsRenewedBeforeItIsOver) {
  TrainSlices slices(0);
  slices.Want(true);
  EXPECT_EQ(slices.Next(kStart), TrainSlices::kSlice);
  EXPECT_EQ(slices.Next(kStart + 50 * kMs), absl::ZeroDuration());
  EXPECT_EQ(slices.Next(kStart + 150 * kMs), TrainSlices::kSlice);
  EXPECT_EQ(slices.num_slices(), 1);
  EXPECT_EQ(slices.given(kStart + 390 * kMs), 390 * kMs);
  EXPECT_EQ(slices.given(kStart + 900 * kMs), 400 * kMs) << "nobody has renewed it";
  EXPECT_EQ(slices.Next(kStart + 900 * kMs), TrainSlices::kSlice);
  EXPECT_EQ(slices.num_slices(), 2);
  EXPECT_EQ(slices.given(kStart + 950 * kMs), 450 * kMs);
}

TEST(TrainSlices, AStepEndsIt) {
  TrainSlices slices(0);
  slices.Want(true);
  (void)slices.Next(kStart);
  slices.End(kStart + 30 * kMs);
  slices.End(kStart + 40 * kMs);
  EXPECT_EQ(slices.given(kStart + 90 * kMs), 30 * kMs);
  EXPECT_EQ(slices.Next(kStart + 100 * kMs), TrainSlices::kSlice);
  EXPECT_EQ(slices.given(kStart + 110 * kMs), 40 * kMs);
}

TEST(TrainSlices, WithoutAShareNothingIsOwed) {
  TrainSlices slices(0);
  slices.Want(true);
  slices.StepDone(kStart, kStart + absl::Hours(1));
  EXPECT_FALSE(slices.Owes(kStart + absl::Hours(1)));
}

TEST(TrainSlices, AFifthIsOwed) {
  TrainSlices slices(0.2);
  slices.StepDone(kStart - absl::Hours(2), kStart - absl::Hours(1));
  EXPECT_FALSE(slices.Owes(kStart)) << "nobody wants it";
  slices.Want(true);
  slices.StepDone(kStart - 201 * kMs, kStart - 2 * kMs);
  EXPECT_FALSE(slices.Owes(kStart));
  slices.StepDone(kStart - 2 * kMs, kStart);
  ASSERT_TRUE(slices.Owes(kStart));  // 50 ms of 250
  EXPECT_EQ(slices.PayOwed(kStart), kStart + 50 * kMs);
  EXPECT_EQ(slices.PayOwed(kStart + 20 * kMs), kStart + 50 * kMs);
  EXPECT_TRUE(slices.Owes(kStart + 49 * kMs));
  EXPECT_FALSE(slices.Owes(kStart + 50 * kMs)) << "it is paid";
}

// Returns how many times in a row a step waits for a slice from now on.
int PaidAt(TrainSlices* slices, absl::Time* now) {
  int paid = 0;
  for (; slices->Owes(*now); ++paid) *now = slices->PayOwed(*now);
  return paid;
}

// A step of 800 ms leaves training a fifth of the time, as four of 200 ms do.
TEST(TrainSlices, ALongStepIsPaidInFull) {
  TrainSlices slices(0.2);
  slices.Want(true);
  absl::Time now = kStart + 801 * kMs;
  slices.StepDone(kStart, now);
  EXPECT_EQ(PaidAt(&slices, &now), 4);
}

// Two steps under way at a time count the time of one.
TEST(TrainSlices, StepsThatOverlapCountOnce) {
  TrainSlices slices(0.2);
  slices.Want(true);
  absl::Time now = kStart;
  int paid = 0;
  for (int step = 1; step <= 10; ++step) {
    now += 101 * kMs;
    slices.StepDone(now - 202 * kMs, now);
    absl::Time then = now;
    paid += PaidAt(&slices, &then);
  }
  EXPECT_EQ(paid, 5) << "of 1.1 seconds, as the first began before";
}

TEST(TrainSlices, AStepThatHangsIsNotPaidInFullAndIdlenessPaysAll) {
  TrainSlices slices(0.5);
  slices.Want(true);
  absl::Time now = kStart + absl::Hours(1);
  slices.StepDone(kStart, now);
  EXPECT_EQ(PaidAt(&slices, &now), 20) << "a second's";
  slices.StepDone(now, now + absl::Hours(1));
  slices.Idle();
  EXPECT_FALSE(slices.Owes(now + absl::Hours(1)));
}

}  // namespace
}  // namespace switchyard::server
