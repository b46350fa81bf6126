#include "workers/train/step/evaluation_record.h"

#include <vector>

#include "gtest/gtest.h"

namespace switchyard::train {
namespace {

// The record after evaluations of steps 10, 20 …
EvaluationRecord After(const std::vector<double>& losses, double min_improvement = 0) {
  EvaluationRecord record;
  int64_t step = 0;
  for (const double loss : losses) record = WithEvaluation(record, step += 10, loss, min_improvement);
  return record;
}

TEST(EvaluationRecordTest, TheLeastLossIsTheBest) {
  EXPECT_EQ(After({}).best_step, 0);
  EXPECT_EQ(After({3}), (EvaluationRecord{.best_step = 10, .best_loss = 3, .counted_loss = 3}));
  EXPECT_EQ(After({3, 2, 2.5, 4}), (EvaluationRecord{.best_step = 20, .best_loss = 2, .counted_loss = 2, .stale = 2}));
  EXPECT_EQ(After({3, 2, 2}).best_step, 20) << "of equal ones the first";
}

TEST(EvaluationRecordTest, SmallStepsBecomeAnImprovement) {
  // Neither 2.95 nor 2.91 is 0.1 below 3; 2.85 is.
  EXPECT_EQ(After({3, 2.95, 2.91}, 0.1),
            (EvaluationRecord{.best_step = 30, .best_loss = 2.91, .counted_loss = 3, .stale = 2}));
  EXPECT_EQ(After({3, 2.95, 2.91, 2.85}, 0.1),
            (EvaluationRecord{.best_step = 40, .best_loss = 2.85, .counted_loss = 2.85, .stale = 0}));
}

TEST(EvaluationRecordTest, PatienceIsOfEvaluationsInARow) {
  const auto ends = [](const std::vector<double>& losses, int32_t patience) {
    return EndsEarly(After(losses), {.patience = patience});
  };
  EXPECT_FALSE(ends({3}, 1));
  EXPECT_TRUE(ends({3, 3}, 1));
  EXPECT_FALSE(ends({3, 4, 2, 3}, 2)) << "an improvement begins a new count";
  EXPECT_TRUE(ends({3, 4, 2, 3, 2}, 2));
  EXPECT_FALSE(ends({3, 4, 5, 6, 7, 8}, 0)) << "no rule";
}

}  // namespace
}  // namespace switchyard::train
