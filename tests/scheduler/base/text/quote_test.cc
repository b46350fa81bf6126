#include "scheduler/base/text/quote.h"

#include <gtest/gtest.h>

namespace switchyard {
namespace {

TEST(QuoteTest, EscapesAndCuts) {
  EXPECT_EQ(Quote("é\"\n"), R"("\xc3\xa9\"\n")");
  EXPECT_EQ(Quote(std::string(65, 'a')), "\"" + std::string(64, 'a') + "\"...");
  EXPECT_EQ(Excerpt("é\"\n"), R"(\xc3\xa9"\x0a)");
  EXPECT_EQ(Excerpt("abc", 2), "ab...");
}

}  // namespace
}  // namespace switchyard
