// Charts as SVG text: bars beside each other, bars on each other, or lines, over categories; panels one under another.
//
// Knows no files and no fonts: widths of texts are guessed.  Pure; the same charts give the same bytes.
#pragma once

#include <string>
#include <vector>

#include "absl/types/span.h"

namespace switchyard::bench {

enum class ChartKind { kBars, kStackedBars, kLines };

struct ChartSeries {
  std::string name;
  std::vector<double> values;  // of each category; >= 0, finite
};

struct SvgChart {
  std::string title, x_label = {}, y_label = {};
  ChartKind kind = ChartKind::kBars;
  std::vector<std::string> categories = {};  // at least one
  std::vector<ChartSeries> series = {};      // at most kMaxSeries
  double line = 0;                           // a dashed line across, where > 0
  std::string line_name = {};
};
inline constexpr int kMaxSeries = 8;  // colours

// REQUIRES: at least one panel, each as said above.
std::string ToSvg(absl::Span<const SvgChart> panels);

// The distance of ticks that cuts [0, most] into at most `ticks` parts: 1, 2 or 5 times a power of ten.
// REQUIRES: most > 0, ticks >= 1.
double TickOf(double most, int ticks);

}  // namespace switchyard::bench
