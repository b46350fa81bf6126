// A flag's share of memory: what it may say, and how many parts that are.
#include "scheduler/base/memory_share.h"

#include "gtest/gtest.h"

namespace switchyard {
namespace {

TEST(MemoryShareTest, IsAShareOrBytes) {
  ASSERT_TRUE(ParseMemoryShare("25%").ok());
  EXPECT_EQ(ParseMemoryShare("25%")->PartsOf(64, 10), 16);
  EXPECT_EQ(ParseMemoryShare("100%")->PartsOf(64, 10), 64);
  EXPECT_EQ(ParseMemoryShare("12.5%")->PartsOf(60, 10), 8) << "rounded up";
  EXPECT_EQ(ParseMemoryShare("7%")->PartsOf(100, 10), 7) << "no part more by binary fractions";
  EXPECT_EQ(ParseMemoryShare("0.7%")->PartsOf(1000, 10), 7);
  EXPECT_EQ(ParseMemoryShare("1000")->PartsOf(64, 300), 3);
  EXPECT_EQ(ParseMemoryShare("1000")->PartsOf(2, 300), 2);
  EXPECT_EQ(ParseMemoryShare("1")->PartsOf(64, 300), 0);
  EXPECT_EQ(ParseMemoryShare("3KiB")->bytes, 3 << 10);
  EXPECT_EQ(ParseMemoryShare("6GiB")->bytes, int64_t{6} << 30);
}

TEST(MemoryShareTest, RefusesEverythingElse) {
  for (const char* text :
       {"", "%", "0%", "101%", "-5%", "nan%", "inf%", "0", "-1", "1e9", "8GB", "GiB", "9999999999GiB", "25 percent"}) {
    EXPECT_FALSE(ParseMemoryShare(text).ok()) << text;
  }
}

}  // namespace
}  // namespace switchyard
