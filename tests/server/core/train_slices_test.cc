// When training may run on serving workers: slices while there is nothing to serve, and a share where one is owed.
#include "server/train_slices.h"

#include "gtest/gtest.h"

namespace switchyard {
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
  slices.StepDone(absl::Hours(1));
  EXPECT_FALSE(slices.Owes(kStart));
}

TEST(TrainSlices, AFifthIsOwed) {
  TrainSlices slices(0.2);
  slices.StepDone(absl::Hours(1));
  EXPECT_FALSE(slices.Owes(kStart)) << "nobody wants it";
  slices.Want(true);
  slices.StepDone(199 * kMs);
  EXPECT_FALSE(slices.Owes(kStart));
  slices.StepDone(2 * kMs);
  ASSERT_TRUE(slices.Owes(kStart));  // 50 ms of 250
  EXPECT_EQ(slices.PayOwed(kStart), kStart + 50 * kMs);
  EXPECT_EQ(slices.PayOwed(kStart + 20 * kMs), kStart + 50 * kMs);
  EXPECT_TRUE(slices.Owes(kStart + 49 * kMs));
  EXPECT_FALSE(slices.Owes(kStart + 50 * kMs)) << "it is paid";
}

TEST(TrainSlices, ALongStepIsNotPaidAtOnceAndIdlenessPaysAll) {
  TrainSlices slices(0.5);
  slices.Want(true);
  slices.StepDone(absl::Hours(1));
  EXPECT_EQ(slices.PayOwed(kStart), kStart + 50 * kMs);
  ASSERT_TRUE(slices.Owes(kStart + 50 * kMs));
  EXPECT_EQ(slices.PayOwed(kStart + 50 * kMs), kStart + 100 * kMs);
  EXPECT_FALSE(slices.Owes(kStart + 100 * kMs));
  slices.StepDone(absl::Hours(1));
  slices.Idle();
  EXPECT_FALSE(slices.Owes(kStart + 200 * kMs));
}

}  // namespace
}  // namespace switchyard
