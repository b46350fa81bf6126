#include "server/text/unicode/unicode.h"

#include <gtest/gtest.h>

namespace switchyard::text {
namespace {

TEST(UnicodeTest, ClassesAndCases) {
  EXPECT_TRUE(IsLetter(U'é') && IsLowercase(U'é') && IsUppercase(U'É') && IsTitlecase(U'ǅ'));
  EXPECT_TRUE(IsDecimal(U'٣') && IsNumeric(U'½') && !IsDecimal(U'½'));
  EXPECT_TRUE(IsSeparator(U'\u2028') && IsWhitespace(U'\u2028') && !IsSeparator(U'\t') && IsWhitespace(U'\t'));
  EXPECT_TRUE(IsControlOrUnassigned(U'\u0378') && !IsControlOrUnassigned(U'a'));
  EXPECT_TRUE(ToUppercase(U'ß') == U'ß' || ToUppercase(U'ß') == U'ẞ');
  EXPECT_TRUE(ToLowercase(U'É') == U'é' && ToTitlecase(U'ǆ') == U'ǅ');
  std::string lower;
  AppendLowercase(U'\u0130', &lower);
  EXPECT_EQ(lower, "i\u0307");
}

TEST(UnicodeTest, NormalFormsReorderAndCompose) {
  EXPECT_EQ(Normalize(NormalForm::kNfc, "e\u0301"), "é");
  EXPECT_EQ(Normalize(NormalForm::kNfd, "é"), "e\u0301");
  EXPECT_EQ(Normalize(NormalForm::kNfc, "e\u0302\u0323"), "ệ");
  EXPECT_EQ(Normalize(NormalForm::kNfc, "\u1100\u1161\u11a8"), "각");
  EXPECT_EQ(Normalize(NormalForm::kNfkc, "ﬁ①Å"), "fi1Å");
  EXPECT_EQ(Normalize(NormalForm::kNfc, "\u0958"), "\u0915\u093c");  // excluded from composition
  EXPECT_EQ(Normalize(NormalForm::kNfkd, "½"), "1\u20442");
  EXPECT_EQ(Normalize(NormalForm::kNfc, "plain"), "plain");
}

// Insertion sort would need 10^10 steps here.
TEST(UnicodeTest, ManyMarksOnOneLetterAreSortedInReasonableTime) {
  constexpr int kMarks = 200'000;
  std::string text = "a";
  std::string below;
  std::string above;
  for (int i = 0; i < kMarks; ++i) {
    text += "\u0301\u0323";
    below += "\u0323";
    above += "\u0301";
  }
  EXPECT_TRUE(Normalize(NormalForm::kNfd, text) == "a" + below + above);
}

}  // namespace
}  // namespace switchyard::text
