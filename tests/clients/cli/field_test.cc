#include "clients/cli/field.h"

#include "clients/cli/json.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace switchyard::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(FieldTest, FlagsBecomeJson) {
  EXPECT_EQ(*FlagToJson(FieldKind::kText, {"5"}), Json("5"));
  EXPECT_EQ(*FlagToJson(FieldKind::kNumber, {"-0.5"}), Json(-0.5));
  EXPECT_EQ(*FlagToJson(FieldKind::kNumber, {"18446744073709551615"}), Json(18446744073709551615u));
  EXPECT_EQ(*FlagToJson(FieldKind::kBool, {"False"}), Json(false));
  EXPECT_EQ(*FlagToJson(FieldKind::kIds, {"5, 9,11"}), Json({5, 9, 11}));
  EXPECT_EQ(*FlagToJson(FieldKind::kIds, {"[5,9]"}), Json({5, 9}));
  EXPECT_EQ(*FlagToJson(FieldKind::kTexts, {"a", "b"}), Json({"a", "b"}));
  EXPECT_EQ(*FlagToJson(FieldKind::kJson, {"{\"17\": -5}"}), (Json{{"17", -5}}));
}

TEST(FieldTest, WrongFlagsSayWhy) {
  EXPECT_THAT(std::string(FlagToJson(FieldKind::kNumber, {"hot"}).status().message()),
              HasSubstr("must be a number, is \"hot\""));
  EXPECT_THAT(std::string(FlagToJson(FieldKind::kBool, {"maybe"}).status().message()), HasSubstr("true or false"));
  EXPECT_THAT(std::string(FlagToJson(FieldKind::kIds, {"5,x"}).status().message()), HasSubstr("has \"x\""));
  EXPECT_THAT(std::string(FlagToJson(FieldKind::kJson, {"{"}).status().message()), HasSubstr("not valid JSON"));
  EXPECT_THAT(std::string(FlagToJson(FieldKind::kNumber, {"1", "2"}).status().message()), HasSubstr("given 2 times"));
}

template <class Value>
std::string ReadError(const Json& json) {
  Value value;
  return std::string(Read(json, &value).message());
}

TEST(FieldTest, ReadsKeepToTheirTypesAndRanges) {
  int32_t small = 0;
  EXPECT_TRUE(Read(Json(-2147483648), &small).ok());
  EXPECT_EQ(small, -2147483648);
  EXPECT_THAT(ReadError<int32_t>(2147483648), HasSubstr("32 bits"));
  EXPECT_THAT(ReadError<int32_t>(-2147483649), HasSubstr("32 bits"));
  EXPECT_THAT(ReadError<int32_t>(18446744073709551615u), HasSubstr("32 bits"));
  EXPECT_TRUE(Read(Json(3.0), &small).ok());
  EXPECT_EQ(small, 3);
  EXPECT_THAT(ReadError<int32_t>(1.5), HasSubstr("an integer, is 1.5"));
  EXPECT_THAT(ReadError<int32_t>(3e9), HasSubstr("32 bits"));
  EXPECT_THAT(ReadError<int32_t>("1"), HasSubstr("an integer, is \"1\""));
  uint64_t big = 0;
  EXPECT_TRUE(Read(Json(18446744073709551615u), &big).ok());
  EXPECT_EQ(big, 18446744073709551615u);
  EXPECT_THAT(ReadError<uint64_t>(-1), HasSubstr("0 to 2^64 - 1"));
  EXPECT_THAT(ReadError<bool>(1), HasSubstr("true or false"));
  EXPECT_THAT(ReadError<double>("x"), HasSubstr("a number"));
  EXPECT_THAT(ReadError<std::string>("ab\xff"), HasSubstr("not valid UTF-8 at byte 2"));
  EXPECT_THAT(ReadError<std::vector<int32_t>>(Json({1, "x"})), HasSubstr("item 1 must be an integer"));
  std::vector<std::string> texts;
  EXPECT_TRUE(Read(Json("one"), &texts).ok());
  EXPECT_THAT(texts, ElementsAre("one"));
}

TEST(FieldTest, LongWrongValuesAreCut) { EXPECT_LT(ReadError<int32_t>(std::string(100000, 'x')).size(), 200u); }

TEST(FieldTest, SuggestsTheNearestName) {
  EXPECT_EQ(SuggestName("temprature", {"top_p", "temperature"}), "did you mean \"temperature\"?");
  EXPECT_THAT(SuggestName("zzzzzzzzzz", {"n", "stop"}), HasSubstr("known are: n, stop"));
  EXPECT_EQ(SuggestName("x", {"n", "stop"}), "known are: n, stop") << "no letter in common";
  EXPECT_EQ(SuggestName("x", {}), "there are none");
}

TEST(FieldTest, OutputIsValidUtf8) { EXPECT_EQ(Dump(Json("a\xff")), "\"a\xef\xbf\xbd\""); }

}  // namespace
}  // namespace switchyard::cli
