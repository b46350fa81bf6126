#include "scheduler/base/text/utf8.h"

#include <gtest/gtest.h>

namespace switchyard {
namespace {

TEST(Utf8Test, EveryCodePointComesBack) {
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text;
    AppendUtf8(c, &text);
    ASSERT_EQ(FindInvalidUtf8(text), absl::string_view::npos) << static_cast<uint32_t>(c);
    ASSERT_EQ(Utf8Length(text[0]), text.size());
    size_t pos = 0;
    ASSERT_TRUE(DecodeUtf8(text, &pos) == c);
    ASSERT_EQ(pos, text.size());
    size_t begin = 99;
    ASSERT_TRUE(DecodeUtf8Before(text, text.size(), &begin) == c);
    ASSERT_EQ(begin, 0u);
  }
}

TEST(Utf8Test, InvalidBytesAreFoundWhereTheyAre) {
  const std::pair<const char*, size_t> kCases[] = {
      {"ab\x80", 2},           {"\xC0\xAF", 0},      {"\xE0\x80\x80", 0}, {"x\xED\xA0\x80", 1}, {"\xF4\x90\x80\x80", 0},
      {"\xF5\x80\x80\x80", 0}, {"é\xC3", 2},         {"\xE2\x82", 0},     {"\xF0\x9F\x98", 0},  {"\xFE", 0},
      {"\xC3\x28", 0},         {"中\xE4\xB8\x28", 3}};
  for (const auto& [text, offset] : kCases) EXPECT_EQ(FindInvalidUtf8(text), offset) << testing::PrintToString(text);
  EXPECT_EQ(FindInvalidUtf8(absl::string_view("a\0é👩", 8)), absl::string_view::npos);
}

std::string Lossy(absl::string_view bytes, size_t chunk) {
  LossyUtf8 lossy;
  std::string out;
  for (size_t at = 0; at < bytes.size(); at += chunk) lossy.Append(bytes.substr(at, chunk), &out);
  lossy.Flush(&out);
  return out;
}

// What Python's bytes.decode("utf-8", "replace") gives.
TEST(Utf8Test, IllFormedPartsBecomeReplacementCharacters) {
  const std::pair<const char*, const char*> kCases[] = {{"abc", "abc"},
                                                        {"\xE2\x82\xAC", "€"},
                                                        {"\xE2\x82", "\uFFFD"},
                                                        {"\xE2\x82x", "\uFFFDx"},
                                                        {"\xF0\x9F\x98\xF0\x9F\x98\x80", "\uFFFD😀"},
                                                        {"\xED\xA0\x80", "\uFFFD\uFFFD\uFFFD"},
                                                        {"\xC0\xAF", "\uFFFD\uFFFD"},
                                                        {"\xF4\x90\x80\x80z", "\uFFFD\uFFFD\uFFFD\uFFFDz"},
                                                        {"\xC3\xC3\xA9\xFF", "\uFFFDé\uFFFD"}};
  for (const auto& [bytes, text] : kCases) {
    for (size_t chunk = 1; chunk <= 8; ++chunk) EXPECT_EQ(Lossy(bytes, chunk), text) << chunk;
  }
}

TEST(Utf8Test, AValidCharacterHasALength) {
  EXPECT_EQ(ValidLength("ab"), 1u);
  EXPECT_EQ(ValidLength("éa"), 2u);
  EXPECT_EQ(ValidLength("😀"), 4u);
  for (const char* bad : {"\x80", "\xC0\xAF", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xE2\x82"}) {
    EXPECT_EQ(ValidLength(bad), 0u) << testing::PrintToString(bad);
  }
}

}  // namespace
}  // namespace switchyard
