#include "server/text/tokenizer/regex.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/text/tokenizer/regex_syntax.h"

namespace switchyard::tokenizer {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> Matches(absl::string_view pattern, absl::string_view text) {
  auto regex = Regex::Compile(pattern);
  EXPECT_TRUE(regex.ok()) << pattern << ": " << regex.status();
  std::vector<std::string> found;
  if (!regex.ok()) return found;
  const absl::Status status = regex->ForEachMatch(text, [&](Match match) {
    found.emplace_back(text.substr(match.begin, match.end - match.begin));
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
  return found;
}

// Every row was checked with Oniguruma; the goldens compare more patterns.
TEST(RegexSyntaxTest, OnigurumaBecomesPcre2) {
  const std::pair<const char*, const char*> kCases[] = {
      {R"(\p{N}{1,3})", R"(\p{N}{1,3})"},
      {R"([\p{Han}\p{Lu}]\P{Greek}\p{Mn})", R"([\p{sc:Han}\p{Lu}]\P{sc:Greek}\p{Mn})"},
      {R"(\p{N}{1,3}+)", R"((?:\p{N}{1,3})+)"},
      {R"([ab]{2}+c)", R"((?:[ab]{2})+c)"},
      {R"((ab){1,2}+)", R"((?:(ab){1,2})+)"},
      {R"((x(a){2}+))", R"((x(?:(a){2})+))"},
      {R"(a{2}?)", R"((?:a{2})?)"},
      {R"(a{1,2}?)", R"(a{1,2}?)"},
      {R"(é{,2})", R"(é{0,2})"},
      {R"(é{2}+)", R"((?:é{2})+)"},
      {R"(a{b}{,})", R"(a{b}{,})"},
      {R"(\h)", "[0-9A-Fa-f]"},
      {R"([\h_])", "[0-9A-Fa-f_]"},
      {R"(\s[^\s\S])", R"(\p{White_Space}[^\p{White_Space}\P{White_Space}])"},
      {R"(\u00e9)", R"(\x{00e9})"},
      {R"((?m:.)(?mi)(?i-m:a))", R"((?s:.)(?si)(?i-s:a))"},
      {R"((?<=a)(?!b)(?>c)(?:d))", R"((?<=a)(?!b)(?>c)(?:d))"},
      {R"([]a])", R"([\]a])"},
      {R"([[:alpha:][:blank:]])", R"([\p{Alphabetic}[:blank:]])"},
      {R"(\\{2}\])", R"(\\{2}\])"},
      {R"(a++b*+c?+d*?)", R"(a++b*+c?+d*?)"}};
  for (const auto& [oniguruma, pcre2] : kCases) {
    const auto rewritten = OnigurumaToPcre2(oniguruma);
    ASSERT_TRUE(rewritten.ok()) << oniguruma << ": " << rewritten.status();
    EXPECT_EQ(*rewritten, pcre2) << oniguruma;
  }
}

TEST(RegexSyntaxTest, WhatHasNoCounterpartIsRefused) {
  for (const char* pattern : {"[a[bc]]", "[a&&b]", R"([\W])", R"([\H])", R"(\u12)", "[[:^alpha:]]", "[[:alpha"}) {
    const auto rewritten = OnigurumaToPcre2(pattern);
    EXPECT_EQ(rewritten.status().code(), absl::StatusCode::kInvalidArgument) << pattern;
    EXPECT_THAT(std::string(rewritten.status().message()), HasSubstr("not supported")) << pattern;
  }
}

TEST(RegexTest, FindsMatchesLeftToRight) {
  EXPECT_THAT(Matches(R"(\p{N}{1,3})", "12345"), ElementsAre("123", "45"));
  EXPECT_THAT(Matches(R"(\p{N}{1,3}+)", "12345"), ElementsAre("12345"));
  EXPECT_THAT(Matches(R"(\s+$)", "a \nb  "), ElementsAre(" ", "  "));
  EXPECT_THAT(Matches(R"(b*)", "abé"), ElementsAre("", "b", ""));
  EXPECT_THAT(Matches(R"((?i:'s))", "'S'ſ's"), ElementsAre("'S", "'ſ", "'s"));
  EXPECT_THAT(Matches(R"(\s)", "a\u180E\u3000b"), ElementsAre("\u3000"));
  EXPECT_THAT(Matches("x", ""), ElementsAre());
}

TEST(RegexTest, BadPatternsSayWhatIsWrong) {
  for (const char* pattern : {"(", "a)", "[a", "*a", R"(\p{Nonsense})", "(?<=a+)b", R"(\C)"}) {
    const auto regex = Regex::Compile(pattern);
    EXPECT_EQ(regex.status().code(), absl::StatusCode::kInvalidArgument) << pattern;
    EXPECT_THAT(std::string(regex.status().message()), HasSubstr("offset")) << pattern;
  }
  EXPECT_FALSE(Regex::Compile(std::string(100'000, 'a')).ok());
  EXPECT_FALSE(Regex::Compile(std::string(1'000, '(') + std::string(1'000, ')')).ok());
}

// Exponential in a backtracking engine without a limit.
TEST(RegexTest, HostilePatternsEndInAnError) {
  const std::string text(60, 'a');
  for (const char* pattern : {"(a+)+$b", "(a|aa)+$b", "(a*)*b", "(?:a?){60}a{60}b", R"(^(\w+\s?)*$c)"}) {
    auto regex = Regex::Compile(pattern);
    ASSERT_TRUE(regex.ok()) << pattern << ": " << regex.status();
    const absl::Status status = regex->ForEachMatch(text + "!", [](Match) { return absl::OkStatus(); });
    // PCRE2 may find at once that some of these cannot match.
    EXPECT_TRUE(status.ok() || status.code() == absl::StatusCode::kResourceExhausted) << pattern << ": " << status;
  }
  auto regex = Regex::Compile("(x+x+)+y");
  ASSERT_TRUE(regex.ok());
  EXPECT_EQ(regex->ForEachMatch(std::string(60, 'x') + "zy", [](Match) { return absl::OkStatus(); }).code(),
            absl::StatusCode::kResourceExhausted);
}

TEST(RegexTest, TheVisitorsErrorEndsTheSearch) {
  auto regex = Regex::Compile("a");
  ASSERT_TRUE(regex.ok());
  int count = 0;
  const absl::Status status = regex->ForEachMatch(
      "aaaa", [&](Match) -> absl::Status { return ++count == 2 ? absl::CancelledError("enough") : absl::OkStatus(); });
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(count, 2);
}

}  // namespace
}  // namespace switchyard::tokenizer
