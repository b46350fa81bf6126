// Distances in thousandths: {marginal, path, probe}; -1: no estimate.
#include "scheduler/popularity/predictors/best_predictor.h"

#include <vector>

#include "gtest/gtest.h"

namespace switchyard::popularity {
namespace {

constexpr int kMarginal = 0, kPath = 1, kProbe = 2;

class BestPredictorTest : public testing::Test {
 protected:
  // Returns who decides in the layer after so many batches of these distances.
  int After(int batches, std::vector<int64_t> thousandths) {
    for (int64_t& distance : thousandths)
      distance = distance < 0 ? BestPredictor::kNoEstimate : distance * kWholeDistance / 1000;
    for (int batch = 0; batch < batches; ++batch) best_.Add(1, thousandths);
    EXPECT_EQ(best_.Of(0), kMarginal) << "another layer's business";
    return best_.Of(1);
  }

  BestPredictor best_{2, 3};
};

TEST_F(BestPredictorTest, TheLeastDistantDecidesOnceThereIsEvidence) {
  EXPECT_EQ(After(15, {200, 150, 50}), kMarginal);
  EXPECT_EQ(After(1, {200, 150, 50}), kProbe);
  EXPECT_EQ(After(60, {200, 150, 180}), kPath);
}

TEST_F(BestPredictorTest, AnotherOneIsTakenOnlyIfItIsBetterByASixteenth) {
  EXPECT_EQ(After(20, {200, 100, 110}), kPath);
  EXPECT_EQ(After(90, {200, 100, 96}), kPath);
  EXPECT_EQ(After(90, {200, 100, 90}), kProbe);
}

TEST_F(BestPredictorTest, OneThatGetsWorseThanMarginalDecidesNoMore) {
  EXPECT_EQ(After(20, {300, -1, 250}), kProbe);
  EXPECT_EQ(After(60, {300, -1, 700}), kMarginal);
}

TEST_F(BestPredictorTest, WithoutAnEstimateThereIsNoEvidence) {
  EXPECT_EQ(After(100, {-1, 10, 10}), kMarginal) << "marginal has no estimate: the batch says nothing";
  EXPECT_EQ(After(100, {200, -1, -1}), kMarginal);
  EXPECT_EQ(After(15, {200, 10, -1}), kMarginal);
  EXPECT_EQ(After(1, {200, 10, -1}), kPath);
}

}  // namespace
}  // namespace switchyard::popularity
