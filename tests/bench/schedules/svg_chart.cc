#include "tests/bench/schedules/svg_chart.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "scheduler/base/check.h"

namespace switchyard::bench {
namespace {

constexpr double kWidth = 760, kLeft = 70, kRight = 20, kPlotHeight = 220, kFont = 12;
constexpr double kLetter = 0.62 * kFont;  // of a text's width, about
constexpr int kTicks = 5;
// Colours that colour-blind readers tell apart, too (Okabe and Ito), and a grey.
constexpr const char* kColours[kMaxSeries] = {"#0072b2", "#e69f00", "#009e73", "#cc79a7",
                                              "#56b4e9", "#d55e00", "#f0e442", "#666666"};

std::string Escaped(const std::string& text) {
  return absl::StrReplaceAll(text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
}

double WidthOf(const std::string& text) { return kLetter * static_cast<double>(text.size()); }

struct Point {
  double x = 0, y = 0;
};

void AddText(Point at, const std::string& text, const std::string& attributes, std::string* svg) {
  absl::StrAppendFormat(svg, "<text x=\"%.1f\" y=\"%.1f\"%s>%s</text>\n", at.x, at.y, attributes, Escaped(text));
}

void AddBox(Point corner, Point size, const char* colour, std::string* svg) {
  absl::StrAppendFormat(svg, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.2f\" fill=\"%s\"/>\n", corner.x,
                        corner.y, size.x, size.y, colour);
}

void AddLine(Point from, Point to, const std::string& attributes, std::string* svg) {
  absl::StrAppendFormat(svg, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" %s/>\n", from.x, from.y, to.x, to.y,
                        attributes);
}

class Panel {
 public:
  Panel(const SvgChart& chart, double top) : chart_(chart), top_(top) {
    SY_CHECK(!chart.categories.empty());
    SY_CHECK_LE(chart.series.size(), static_cast<size_t>(kMaxSeries));
    double most = chart.line;
    for (size_t c = 0; c < chart.categories.size(); ++c) {
      double sum = 0;
      for (const ChartSeries& series : chart.series) {
        SY_CHECK_EQ(series.values.size(), chart.categories.size());
        SY_CHECK(std::isfinite(series.values[c]) && series.values[c] >= 0);
        sum = chart.kind == ChartKind::kStackedBars ? sum + series.values[c] : std::max(sum, series.values[c]);
      }
      most = std::max(most, sum);
    }
    tick_ = TickOf(most > 0 ? most : 1, kTicks);
    most_ = tick_ * std::ceil((most > 0 ? most : 1) / tick_ - 1e-9);
    step_ = (kWidth - kLeft - kRight) / static_cast<double>(chart.categories.size());
    for (const std::string& category : chart.categories) longest_ = std::max(longest_, WidthOf(category));
    slanted_ = longest_ > step_ - 4;
    plot_top_ = top + 30 + LegendRows() * 18 + 8;
  }

  double height() const { return Bottom() + 8 + (slanted_ ? 0.54 * longest_ + 12 : 16) + 34 - top_; }

  void Draw(std::string* svg) const {
    AddText({kWidth / 2, top_ + 20}, chart_.title, " text-anchor=\"middle\" font-weight=\"bold\"", svg);
    DrawLegend(svg);
    DrawAxes(svg);
    if (chart_.kind == ChartKind::kLines) {
      DrawLines(svg);
    } else {
      DrawBars(svg);
    }
    if (chart_.line > 0)
      AddLine({kLeft, At(chart_.line)}, {kWidth - kRight, At(chart_.line)}, "stroke=\"#000\" stroke-dasharray=\"5 4\"",
              svg);
  }

 private:
  double Bottom() const { return plot_top_ + kPlotHeight; }
  double At(double value) const { return Bottom() - kPlotHeight * value / most_; }

  // Calls visit(series, or their number for the line; its name; place) for each entry; returns the rows.
  template <class Visit>
  int ForEachEntry(const Visit& visit) const {
    int row = 0;
    double x = kLeft;
    const size_t entries = chart_.series.size() + (chart_.line > 0 ? 1 : 0);
    for (size_t i = 0; i < entries; ++i) {
      const std::string& name = i < chart_.series.size() ? chart_.series[i].name : chart_.line_name;
      const double width = 22 + WidthOf(name) + 14;
      if (x + width > kWidth && x > kLeft) {
        x = kLeft;
        ++row;
      }
      visit(i, name, Point{x, top_ + 42 + 18.0 * row});
      x += width;
    }
    return row + 1;
  }
  int LegendRows() const {
    return ForEachEntry([](size_t, const std::string&, Point) {});
  }

  void DrawLegend(std::string* svg) const {
    ForEachEntry([&](size_t i, const std::string& name, Point at) {
      if (i < chart_.series.size()) {
        AddBox({at.x, at.y - 10}, {14, 11}, kColours[i], svg);
      } else {
        AddLine({at.x, at.y - 4}, {at.x + 16, at.y - 4}, "stroke=\"#000\" stroke-dasharray=\"5 4\"", svg);
      }
      AddText({at.x + 20, at.y}, name, "", svg);
    });
  }

  void DrawAxes(std::string* svg) const {
    for (double tick = 0; tick < most_ + tick_ / 2; tick += tick_) {
      AddLine({kLeft, At(tick)}, {kWidth - kRight, At(tick)}, "stroke=\"#ddd\"", svg);
      AddText({kLeft - 6, At(tick) + 4}, absl::StrFormat("%.6g", tick), " text-anchor=\"end\"", svg);
    }
    AddLine({kLeft, Bottom()}, {kWidth - kRight, Bottom()}, "stroke=\"#000\"", svg);
    for (size_t c = 0; c < chart_.categories.size(); ++c) {
      const Point at = {Middle(c), Bottom() + 16};
      if (slanted_) {
        AddText(at, chart_.categories[c],
                absl::StrFormat(" text-anchor=\"end\" transform=\"rotate(-35 %.1f %.1f)\"", at.x, at.y), svg);
      } else {
        AddText(at, chart_.categories[c], " text-anchor=\"middle\"", svg);
      }
    }
    AddText({(kLeft + kWidth - kRight) / 2, top_ + height() - 16}, chart_.x_label, " text-anchor=\"middle\"", svg);
    const double middle = plot_top_ + kPlotHeight / 2;
    AddText({16, middle}, chart_.y_label,
            absl::StrFormat(" text-anchor=\"middle\" transform=\"rotate(-90 16 %.1f)\"", middle), svg);
  }

  double Middle(size_t category) const { return kLeft + (static_cast<double>(category) + 0.5) * step_; }

  void DrawBars(std::string* svg) const {
    const bool stacked = chart_.kind == ChartKind::kStackedBars;
    const double beside = stacked ? 1 : static_cast<double>(chart_.series.size());
    const double width = 0.8 * step_ / beside;
    for (size_t c = 0; c < chart_.categories.size(); ++c) {
      double below = 0;
      for (size_t s = 0; s < chart_.series.size(); ++s) {
        const double value = chart_.series[s].values[c];
        const double left = Middle(c) - 0.4 * step_ + (stacked ? 0 : width * static_cast<double>(s));
        AddBox({left, At(below + value)}, {width * (stacked ? 1 : 0.94), kPlotHeight * value / most_}, kColours[s],
               svg);
        if (stacked) below += value;
      }
    }
  }

  void DrawLines(std::string* svg) const {
    for (size_t s = 0; s < chart_.series.size(); ++s) {
      std::string points;
      for (size_t c = 0; c < chart_.categories.size(); ++c)
        absl::StrAppendFormat(&points, "%s%.1f,%.2f", c == 0 ? "" : " ", Middle(c), At(chart_.series[s].values[c]));
      absl::StrAppendFormat(svg, "<polyline points=\"%s\" fill=\"none\" stroke=\"%s\" stroke-width=\"2\"/>\n", points,
                            kColours[s]);
    }
  }

  const SvgChart& chart_;
  const double top_;
  double most_ = 1, tick_ = 1, step_ = 1, longest_ = 0, plot_top_ = 0;
  bool slanted_ = false;  // categories' names
};

}  // namespace

double TickOf(double most, int ticks) {
  const double power = std::pow(10, std::floor(std::log10(most / ticks)));
  for (const double times : {1.0, 2.0, 5.0}) {
    if (times * power * ticks >= most * (1 - 1e-9)) return times * power;
  }
  return 10 * power;
}

std::string ToSvg(absl::Span<const SvgChart> panels) {
  SY_CHECK(!panels.empty());
  std::string body;
  double top = 0;
  for (const SvgChart& chart : panels) {
    const Panel panel(chart, top);
    panel.Draw(&body);
    top += panel.height();
  }
  return absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" width=\"%.0f\" height=\"%.0f\" "
      "font-family=\"sans-serif\" font-size=\"%.0f\">\n"
      "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n%s</svg>\n",
      kWidth, top, kWidth, top, kFont, body);
}

}  // namespace switchyard::bench
