#include "tests/bench/schedules/svg_chart.h"

#include <cctype>
#include <cmath>
#include <cstdlib>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace switchyard::bench {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// What is wrong with the text as XML, of the few things that ToSvg writes: tags that close in order, attributes that
// are quoted and given once, entities of the five; empty: nothing.
std::string FaultOf(absl::string_view xml) {
  std::vector<std::string> open;
  const auto fault = [&](absl::string_view what) { return absl::StrCat(what, " before '", xml.substr(0, 30), "'"); };
  const auto bad_text = [](absl::string_view text) {
    for (size_t i = text.find('&'); i != text.npos; i = text.find('&', i + 1)) {
      bool known = false;
      for (const char* entity : {"&amp;", "&lt;", "&gt;", "&quot;", "&apos;"})
        known = known || absl::StartsWith(text.substr(i), entity);
      if (!known) return true;
    }
    return text.find('<') != text.npos;
  };
  bool rooted = false;
  while (!xml.empty()) {
    const absl::string_view text = xml.substr(0, xml.find('<'));
    if (bad_text(text)) return fault("an entity");
    if (open.empty() && text.find_first_not_of(" \n") != text.npos) return fault("text outside");
    xml.remove_prefix(text.size());
    if (xml.empty()) break;
    const size_t end = xml.find('>');
    if (end == xml.npos) return fault("a tag without an end");
    absl::string_view tag = xml.substr(1, end - 1);
    xml.remove_prefix(end + 1);
    if (absl::StartsWith(tag, "/")) {
      if (open.empty() || open.back() != tag.substr(1)) return fault(absl::StrCat("</", tag.substr(1)));
      open.pop_back();
      continue;
    }
    const bool empty = absl::EndsWith(tag, "/");
    if (empty) tag.remove_suffix(1);
    const std::string name(tag.substr(0, tag.find(' ')));
    if (name.empty() || (open.empty() && rooted)) return fault("a second root");
    rooted = true;
    tag.remove_prefix(name.size());
    std::set<std::string> given;
    while (!tag.empty()) {
      const size_t quote = tag.find("=\""), close = quote == tag.npos ? quote : tag.find('"', quote + 2);
      if (tag[0] != ' ' || close == tag.npos) return fault("an attribute");
      if (!given.emplace(tag.substr(1, quote - 1)).second) return fault("an attribute twice");
      if (bad_text(tag.substr(quote + 2, close - quote - 2))) return fault("an attribute's entity");
      tag.remove_prefix(close + 1);
    }
    if (!empty) open.push_back(name);
  }
  return open.empty() && rooted ? "" : "tags are open at the end";
}

// The values of an attribute, of bars of a colour (the legend's comes first).
std::vector<double> OfBars(absl::string_view svg, absl::string_view colour, absl::string_view attribute) {
  std::vector<double> values;
  for (size_t at = svg.find("<rect"); at != svg.npos; at = svg.find("<rect", at + 1)) {
    const absl::string_view tag = svg.substr(at, svg.find('>', at) - at);
    if (!absl::StrContains(tag, colour)) continue;
    const size_t found = tag.find(absl::StrCat(" ", attribute, "=\""));
    values.push_back(std::atof(std::string(tag.substr(found + attribute.size() + 3)).c_str()));
  }
  return values;
}

SvgChart Chart(ChartKind kind) {
  return {.title = "a < b & \"c\"",
          .x_label = "x > 1",
          .y_label = "ms",
          .kind = kind,
          .categories = {"one & two", "three"},
          .series = {{"<first>", {1, 4}}, {"second", {2, 0}}},
          .line = 3,
          .line_name = "as \"published\""};
}

TEST(SvgChartTest, TheCheckOfXmlSeesFaults) {
  EXPECT_EQ(FaultOf("<a b=\"1\"><c/>x &amp; y</a>\n"), "");
  for (const char* bad : {"", "<a>", "<a></b>", "<a b=1/>", "<a b=\"1\" b=\"2\"/>", "<a>&</a>", "<a b=\"<\"/>",
                          "<a/><a/>", "x<a/>", "<a"})
    EXPECT_NE(FaultOf(bad), "") << bad;
}

TEST(SvgChartTest, IsWellFormedWhateverTheNames) {
  for (const ChartKind kind : {ChartKind::kBars, ChartKind::kStackedBars, ChartKind::kLines}) {
    const std::string svg = ToSvg({Chart(kind), Chart(ChartKind::kBars)});
    EXPECT_EQ(FaultOf(svg), "");
    EXPECT_THAT(svg, HasSubstr(">a &lt; b &amp; &quot;c&quot;<"));
  }
}

TEST(SvgChartTest, BarsAreAsHighAsTheirValues) {
  const std::string svg = ToSvg({Chart(ChartKind::kBars)});
  const std::vector<double> heights = OfBars(svg, "#0072b2", "height");
  ASSERT_EQ(heights.size(), 3U);
  EXPECT_NEAR(heights[2], 4 * heights[1], 0.05);
  EXPECT_EQ(OfBars(svg, "#e69f00", "height").back(), 0);
  // Bars of a category stand beside each other.
  EXPECT_GT(OfBars(svg, "#e69f00", "x")[1], OfBars(svg, "#0072b2", "x")[1]);
}

TEST(SvgChartTest, StackedBarsStandOnEachOther) {
  const std::string svg = ToSvg({Chart(ChartKind::kStackedBars)});
  EXPECT_EQ(OfBars(svg, "#e69f00", "x")[1], OfBars(svg, "#0072b2", "x")[1]);
  EXPECT_NEAR(OfBars(svg, "#e69f00", "y")[1] + OfBars(svg, "#e69f00", "height")[1], OfBars(svg, "#0072b2", "y")[1],
              0.1);
}

TEST(SvgChartTest, NoTextBeginsOrEndsOutside) {
  SvgChart chart = Chart(ChartKind::kBars);
  chart.series.clear();
  for (int i = 0; i < kMaxSeries; ++i)
    chart.series.push_back({absl::StrCat("a rather long name of series ", i), {1, 2}});
  const std::string svg = ToSvg({chart});
  std::set<double> rows;
  for (size_t at = svg.find(">a rather"); at != svg.npos; at = svg.find(">a rather", at + 1)) {
    const size_t tag = svg.rfind("<text", at);
    const double x = std::atof(svg.c_str() + tag + 9);
    EXPECT_LT(x + 150, 760);
    rows.insert(std::atof(svg.c_str() + svg.find("y=\"", tag) + 3));
  }
  EXPECT_GT(rows.size(), 1U);
}

TEST(SvgChartTest, TicksAreRound) {
  EXPECT_THAT((std::vector<double>{TickOf(5, 5), TickOf(5.1, 5), TickOf(0.9, 5), TickOf(23, 5), TickOf(3000, 5)}),
              ElementsAre(testing::DoubleEq(1), testing::DoubleEq(2), testing::DoubleEq(0.2), testing::DoubleEq(5),
                          testing::DoubleEq(1000)));
}

}  // namespace
}  // namespace switchyard::bench
