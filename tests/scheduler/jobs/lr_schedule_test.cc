#include "scheduler/jobs/lr_schedule.h"

#include <cmath>
#include <limits>

#include "gtest/gtest.h"

namespace switchyard::jobs {
namespace {

constexpr LrSchedule kBase = {.peak = 1.0, .final_fraction = 0.1, .warmup_steps = 4, .total_steps = 21};

LrSchedule Of(LrShape shape) {
  LrSchedule schedule = kBase;
  schedule.shape = shape;
  return schedule;
}

TEST(LrScheduleTest, WarmsUpToThePeak) {
  for (const LrShape shape : {LrShape::kCosine, LrShape::kLinear, LrShape::kConstant, LrShape::kWsd}) {
    for (int64_t step = 0; step < 4; ++step) {
      EXPECT_DOUBLE_EQ(LearningRate(Of(shape), step), 0.25 * static_cast<double>(step + 1));
    }
    EXPECT_DOUBLE_EQ(LearningRate(Of(shape), 4), 1.0);
  }
}

TEST(LrScheduleTest, EndsWhereItShould) {
  for (const LrShape shape : {LrShape::kCosine, LrShape::kLinear, LrShape::kWsd}) {
    EXPECT_NEAR(LearningRate(Of(shape), 20), 0.1, 1e-15);
    EXPECT_NEAR(LearningRate(Of(shape), 1000), 0.1, 1e-15);
  }
  EXPECT_DOUBLE_EQ(LearningRate(Of(LrShape::kConstant), 1000), 1.0);
}

TEST(LrScheduleTest, Halfway) {
  EXPECT_NEAR(LearningRate(Of(LrShape::kCosine), 12), 0.55, 1e-15);
  EXPECT_NEAR(LearningRate(Of(LrShape::kLinear), 12), 0.55, 1e-15);
  EXPECT_NEAR(LearningRate(Of(LrShape::kCosine), 8), 0.1 + 0.45 * (1 + std::sqrt(0.5)), 1e-15);
  // 0.8 * 21 = 16.8: steps 0 … 15 are stable, 16 … 20 fall.
  EXPECT_DOUBLE_EQ(LearningRate(Of(LrShape::kWsd), 15), 1.0);
  EXPECT_DOUBLE_EQ(LearningRate(Of(LrShape::kWsd), 16), 1.0);
  EXPECT_NEAR(LearningRate(Of(LrShape::kWsd), 17), 0.1 + 0.5 * 0.9, 1e-15);
}

TEST(LrScheduleTest, NeverRisesAfterWarmUp) {
  for (const LrShape shape : {LrShape::kCosine, LrShape::kLinear, LrShape::kConstant, LrShape::kWsd}) {
    for (int64_t step = 4; step < 30; ++step) {
      EXPECT_LE(LearningRate(Of(shape), step + 1), LearningRate(Of(shape), step));
    }
  }
}

TEST(LrScheduleTest, OneStepAndNoWarmUp) {
  EXPECT_DOUBLE_EQ(LearningRate({.peak = 2, .total_steps = 1}, 0), 2);
  EXPECT_DOUBLE_EQ(LearningRate({.peak = 2, .warmup_steps = 1, .total_steps = 1}, 0), 2);
}

TEST(LrScheduleTest, SaysWhatIsWrong) {
  const auto message = [](LrSchedule schedule) { return std::string(Validate(schedule).message()); };
  EXPECT_TRUE(Validate(kBase).ok());
  LrSchedule wrong = kBase;
  wrong.peak = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(message(wrong), "learning rate: peak is nan, must be positive and finite");
  wrong.peak = 0;
  EXPECT_EQ(message(wrong), "learning rate: peak is 0, must be positive and finite");
  wrong = kBase;
  wrong.final_fraction = 1.5;
  EXPECT_EQ(message(wrong), "learning rate: final_fraction is 1.5, must be in [0, 1]");
  wrong = kBase;
  wrong.warmup_steps = 22;
  EXPECT_EQ(message(wrong), "learning rate: warmup_steps is 22, must be in [0, total_steps]");
  wrong = kBase;
  wrong.total_steps = 0;
  EXPECT_EQ(message(wrong), "learning rate: total_steps is 0, must be at least 1");
  wrong = kBase;
  wrong.decay_fraction = 0;
  EXPECT_EQ(message(wrong), "learning rate: decay_fraction is 0, must be in (0, 1]");
}

}  // namespace
}  // namespace switchyard::jobs
