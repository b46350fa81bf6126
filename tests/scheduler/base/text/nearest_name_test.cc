#include "scheduler/base/text/nearest_name.h"

#include "gtest/gtest.h"

namespace switchyard {
namespace {

TEST(EditDistanceTest, Edits) {
  EXPECT_EQ(EditDistance("", "abc"), 3u);
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3u);
  EXPECT_EQ(EditDistance("same", "same"), 0u);
}

TEST(NearestNameTest, OnlyWhatIsNear) {
  const std::vector<std::string> names = {"model", "port", "max_model_len"};
  EXPECT_EQ(NearestName("modle", names), "model");
  EXPECT_EQ(NearestName("max_model_length", names), "max_model_len");
  EXPECT_EQ(NearestName("xyzzyx", names), "");
  EXPECT_EQ(NearestName("port", {}), "");
}

}  // namespace
}  // namespace switchyard
