#include "scheduler/base/text/strict_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "scheduler/base/text/json_value.h"

namespace switchyard {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;
using Kind = JsonFault::Kind;

struct Bad {
  std::string text;
  Kind kind;
  std::string reason;
};

TEST(StrictJsonTest, SaysWhatIsWrong) {
  const JsonLimits limits = {.max_depth = 2, .max_values = 6, .max_keys = 3, .max_key_bytes = 4};
  for (const Bad& bad : {
           Bad{"", Kind::kText, "syntax error at byte 1 near \"\""},
           Bad{"{} x", Kind::kText, "syntax error at byte 4 near \"{} x\""},
           Bad{"[NaN]", Kind::kText, "syntax error at byte 2 near \"[N\""},
           Bad{"[1e400]", Kind::kText, "number out of range at byte 6 near \"1e400\""},
           Bad{"[\"\xff\"]", Kind::kText, "invalid UTF-8 at byte 3 near \"\"\\xff\""},
           Bad{"\xef\xbb\xbf{}", Kind::kText, "byte order mark at byte 0"},
           Bad{std::string("{}\0", 3), Kind::kText, "syntax error at byte 3 near \"\\x00\""},
           Bad{"[[[[]]]]", Kind::kDepth, "nested 4 deep, limit 2"},
           Bad{"[[[", Kind::kDepth, "nested 3 deep, limit 2"},
           Bad{R"({"a":{"b":":","c":1},"d":1,"e":1})", Kind::kKeys, "5 keys, limit 3"},
           Bad{"[1,2,3,4,5,6]", Kind::kValues, "more than 6 values"},
           Bad{R"({"abcde":1})", Kind::kKeyBytes, "key of 5 bytes, limit 4: \"abcde\""},
           Bad{R"({"x":1,"\u0078":2})", Kind::kDuplicateKey, "duplicate key \"x\""},
       }) {
    json value;
    ordered_json ordered;
    const std::optional<JsonFault> fault = ReadJson(bad.text, limits, &value);
    ASSERT_TRUE(fault.has_value()) << bad.text;
    EXPECT_EQ(fault->kind, bad.kind) << bad.text;
    EXPECT_EQ(fault->reason, bad.reason);
    EXPECT_EQ(ReadJson(bad.text, limits, &ordered)->reason, bad.reason);
  }
}

TEST(StrictJsonTest, DetailSaysLineAndColumn) {
  json value;
  EXPECT_THAT(ReadJson("{\n\"a\": }", {}, &value)->detail,
              testing::StartsWith("parse error at line 2, column 6: syntax error while parsing value"));
}

TEST(StrictJsonTest, LenientlyTheLastMemberCountsInTheFirstOnesPlace) {
  ordered_json value;
  ASSERT_FALSE(ReadJson("\xef\xbb\xbf{\"a\":{\"x\":1},\"b\":2,\"a\":[3]}", LenientJson(8), &value));
  EXPECT_EQ(value.dump(), R"({"a":[3],"b":2})");
}

// One by one, each of so many names would be compared with all before it: minutes.
TEST(StrictJsonTest, ALargeObjectTakesNoLongerThanManySmallOnes) {
  constexpr int kMembers = 300'000;
  std::string text = "{";
  for (int i = 0; i < kMembers; ++i) absl::StrAppend(&text, "\"member ", i, "\":", i, ",");
  ordered_json value;
  ASSERT_FALSE(ReadJson(text + "\"member 70\":-1,\"last\":[{}]}", LenientJson(8), &value));
  ASSERT_EQ(value.size(), kMembers + 1u);
  int i = 0;
  for (const auto& [name, number] : value.get_ref<const ordered_json::object_t&>()) {
    if (i == kMembers) break;
    ASSERT_EQ(name, absl::StrCat("member ", i));
    ASSERT_EQ(number, i == 70 ? -1 : i) << "the last member of a name counts";
    ++i;
  }
  EXPECT_EQ(value["last"].dump(), "[{}]");
  EXPECT_EQ(ReadJson(text + "\"member 200000\":1}", {}, &value)->reason, "duplicate key \"member 200000\"");
}

TEST(StrictJsonTest, ReadsWhatTheLibraryReads) {
  for (const std::string text : {R"({"b":[1,-2,3.5,true,false,null,"é\n"],"a":{"c":[],"d":{}}})", "7", "\"x\"", "[]"}) {
    json value;
    ordered_json ordered;
    ASSERT_FALSE(ReadJson(text, {}, &value)) << text;
    ASSERT_FALSE(ReadJson(text, {}, &ordered)) << text;
    EXPECT_EQ(value, json::parse(text));
    EXPECT_EQ(ordered, ordered_json::parse(text));
  }
}

TEST(StrictJsonTest, ParsesNameTheText) {
  EXPECT_EQ(ParseStrictJson("f", "[[]]", {.max_depth = 1}).status().message(), "f: nested deeper than 1");
  EXPECT_EQ(ParseJsonObject("f", "[[]]", {.max_depth = 1}).status().message(), "f: nested 2 deep, limit 1");
  EXPECT_EQ(ParseJsonObject("f", "[]", {}).status().message(), "f: not a JSON object");
  EXPECT_EQ(ParseJsonObject("f", "{", {}).status().message(), "f: not a JSON object");
  EXPECT_EQ(*ParseJsonObject("f", R"({"a":1})", {}), json({{"a", 1}}));
}

TEST(JsonValueTest, IntegersWithinARange) {
  EXPECT_EQ(IntegerIn(json::parse("3"), 0, 5), 3);
  EXPECT_EQ(IntegerIn(json::parse("-3"), -3, 5), -3);
  for (const char* bad : {"6", "-1", "3.0", "\"3\"", "null", "18446744073709551615"}) {
    EXPECT_FALSE(IntegerIn(json::parse(bad), 0, 5)) << bad;
  }
  EXPECT_EQ(CountAt(json::parse(R"({"a":7})"), "a"), 7);
  EXPECT_FALSE(CountAt(json::parse(R"({"a":-7})"), "a"));
  EXPECT_FALSE(CountAt(json::parse(R"({"a":7})"), "b"));
}

}  // namespace
}  // namespace switchyard
