// traceparent and tracestate, by the cases of W3C's Trace Context and of its test suite.
#include "server/observe/trace_context.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"

namespace switchyard::server {
namespace {

constexpr char kTrace[] = "12345678901234567890123456789012", kSpan[] = "1234567890123456";
constexpr char kGood[] = "00-12345678901234567890123456789012-1234567890123456-01";

std::optional<TraceContext> Parse(std::vector<absl::string_view> parents, std::vector<absl::string_view> states = {}) {
  return ParseTraceContext(parents, states);
}
std::string StateOf(std::vector<absl::string_view> states) {
  const std::optional<TraceContext> context = Parse({kGood}, std::move(states));
  return context.has_value() ? context->state : "no context";
}

TEST(TraceContextTest, AGoodOneHasItsParts) {
  EXPECT_EQ(Parse({kGood}, {"foo=1"}),
            (TraceContext{.trace_id = kTrace, .parent_span_id = kSpan, .sampled = true, .state = "foo=1"}));
}

TEST(TraceContextTest, OnlyTheLastFlagSaysSampled) {
  const auto sampled = [](const char* flags) {
    return Parse({absl::StrCat("00-", kTrace, "-", kSpan, "-", flags)}).value().sampled;
  };
  for (const char* flags : {"01", "03", "ff", "0f"}) EXPECT_TRUE(sampled(flags)) << flags;
  for (const char* flags : {"00", "02", "fe", "10"}) EXPECT_FALSE(sampled(flags)) << flags;
}

struct BadCase {
  const char* name;
  std::string text;
};
class BadTraceparentTest : public testing::TestWithParam<BadCase> {};

TEST_P(BadTraceparentTest, IsIgnored) { EXPECT_EQ(Parse({GetParam().text}), std::nullopt) << GetParam().text; }

INSTANTIATE_TEST_SUITE_P(
    Rows, BadTraceparentTest,
    testing::Values(BadCase{"Empty", ""}, BadCase{"Short", std::string(kGood).substr(0, 54)},
                    BadCase{"VersionFf", absl::StrCat("ff-", kTrace, "-", kSpan, "-01")},
                    BadCase{"VersionFfLonger", absl::StrCat("ff-", kTrace, "-", kSpan, "-01-x")},
                    BadCase{"Version0Longer", absl::StrCat(kGood, "-what")},
                    BadCase{"Version0Dash", absl::StrCat(kGood, "-")},
                    BadCase{"FutureWithoutDash", absl::StrCat("cc-", kTrace, "-", kSpan, "-01.what")},
                    BadCase{"UppercaseTrace", absl::StrCat("00-ABCDEF78901234567890123456789012-", kSpan, "-01")},
                    BadCase{"UppercaseSpan", absl::StrCat("00-", kTrace, "-ABCDEF7890123456-01")},
                    BadCase{"UppercaseVersion", absl::StrCat("CC-", kTrace, "-", kSpan, "-01")},
                    BadCase{"UppercaseFlags", absl::StrCat("00-", kTrace, "-", kSpan, "-0F")},
                    BadCase{"ZeroTrace", absl::StrCat("00-", std::string(32, '0'), "-", kSpan, "-01")},
                    BadCase{"ZeroSpan", absl::StrCat("00-", kTrace, "-", std::string(16, '0'), "-01")},
                    BadCase{"NoHexTrace", absl::StrCat("00-.2345678901234567890123456789012-", kSpan, "-01")},
                    BadCase{"NoHexVersion", absl::StrCat(".0-", kTrace, "-", kSpan, "-01")},
                    BadCase{"NoHexFlags", absl::StrCat("00-", kTrace, "-", kSpan, "-.0")},
                    BadCase{"NoDashes", absl::StrCat("00_", kTrace, "_", kSpan, "_01")},
                    BadCase{"Underscores", absl::StrCat("00-", kTrace, "_", kSpan, "-01")}),
    [](const auto& info) { return info.param.name; });

TEST(TraceContextTest, ALaterVersionMayBeLonger) {
  const TraceContext parts = {.trace_id = kTrace, .parent_span_id = kSpan, .sampled = true};
  EXPECT_EQ(Parse({absl::StrCat("cc-", kTrace, "-", kSpan, "-01")}), parts);
  EXPECT_EQ(Parse({absl::StrCat("cc-", kTrace, "-", kSpan, "-01-what-the-future-brings")}), parts);
  EXPECT_EQ(Parse({absl::StrCat("01-", kTrace, "-", kSpan, "-01-")}), parts);
}

TEST(TraceContextTest, TwoTraceparentsAreNone) {
  EXPECT_EQ(Parse({kGood, kGood}), std::nullopt);
  EXPECT_EQ(Parse({}, {"foo=1"}), std::nullopt);
}

TEST(TraceContextTest, SpacesAroundAreAllowed) { EXPECT_TRUE(Parse({absl::StrCat(" ", kGood, "\t")}).has_value()); }

TEST(TraceContextTest, StatesAreJoinedAndBadOnesDroppedAlone) {
  EXPECT_EQ(StateOf({"foo=1,bar=2", "rojo=1"}), "foo=1,bar=2,rojo=1");
  EXPECT_EQ(StateOf({" foo=1 \t,, bar=2,"}), "foo=1,bar=2");
  EXPECT_EQ(StateOf({"t61rcwpm@rojo=00f067aa0ba902b7"}), "t61rcwpm@rojo=00f067aa0ba902b7");
  EXPECT_EQ(StateOf({"1a-2f@foo=bar1, a*/_-=%20~"}), "1a-2f@foo=bar1,a*/_-=%20~");
  for (const absl::string_view bad : {"foo", "=1", "foo=", "FOO=1", "foo=1=2", "fo o=1", "foo=\x7f", "@foo=1"})
    EXPECT_EQ(StateOf({bad}), "") << bad;
  EXPECT_EQ(StateOf({"foo=1", "bad"}), "");
}

TEST(TraceContextTest, AStateHasAtMost32MembersAnd512Bytes) {
  const auto members = [](int count, const std::string& value) {
    std::vector<std::string> all;
    for (int i = 0; i < count; ++i) all.push_back(absl::StrCat("k", i, "=", value));
    return absl::StrJoin(all, ",");
  };
  EXPECT_EQ(StateOf({members(32, "1")}), members(32, "1"));
  EXPECT_EQ(StateOf({members(33, "1")}), "");
  EXPECT_EQ(StateOf({members(2, std::string(252, 'x'))}).size(), 511u);
  EXPECT_EQ(StateOf({members(2, std::string(253, 'x'))}), "");
}

// Draws the numbers in turn.
RandomBits Drawing(std::vector<uint64_t> numbers) {
  return [numbers, next = size_t{0}]() mutable { return numbers[next++ % numbers.size()]; };
}

TEST(BeginSpanTest, AParentKeepsItsTraceAndItsChoice) {
  for (const char* flags : {"00", "01"}) {
    const auto parent = Parse({absl::StrCat("00-", kTrace, "-", kSpan, "-", flags)});
    for (const double ratio : {0.0, 1.0}) {
      const TraceContext span = BeginSpan(parent, ratio, Drawing({0, 0xabc}));
      EXPECT_EQ(span.trace_id, kTrace);
      EXPECT_EQ(span.parent_span_id, kSpan);
      EXPECT_EQ(span.span_id, "0000000000000abc") << "zero is no id";
      EXPECT_EQ(span.sampled, flags[1] == '1') << ratio;
    }
  }
}

TEST(BeginSpanTest, ATraceThatBeginsHereIsSampledByItsId) {
  const TraceContext span = BeginSpan(std::nullopt, 1, Drawing({1, 2, 3}));
  EXPECT_EQ(span.trace_id, "00000000000000010000000000000002");
  EXPECT_EQ(span.span_id, "0000000000000003");
  EXPECT_EQ(span.parent_span_id, "");
  EXPECT_TRUE(span.sampled);
  EXPECT_FALSE(BeginSpan(std::nullopt, 0, Drawing({1, 2, 3})).sampled);
  // A quarter of the last 56 bits.
  EXPECT_TRUE(BeginSpan(std::nullopt, 0.25, Drawing({1, 0xff3fffffffffffff, 3})).sampled);
  EXPECT_FALSE(BeginSpan(std::nullopt, 0.25, Drawing({1, 0xff40000000000000, 3})).sampled);
  EXPECT_TRUE(BeginSpan(std::nullopt, 1, Drawing({1, ~uint64_t{0}, 3})).sampled);
}

}  // namespace
}  // namespace switchyard::server
