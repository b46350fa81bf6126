// How long a stretch of a pass takes beside what it is believed to compute, measured over the first gates and not
// again: of passes with few rows the median, of passes with many (prompts) the median of it by the row.
//
// A cache policy weighs copies against the time until the next gate.  Rates say what experts' work takes of it;
// attention, exchanges and the host's own work depend on model and machine.  Constants, so that plans depend on what
// rows need and not on how busy the machine was lately.  Time is an argument.  Thread-compatible.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace switchyard::moe {

class GateCost {
 public:
  static constexpr int64_t kManyRows = 256;  // (token, choice) pairs: from here on time goes by rows
  static constexpr int kFewPerMany = 128;    // so many times fewer gates with many rows are measured

  // gates: with few rows, that are measured; 0 = none ever.
  explicit GateCost(int gates) : few_(gates), many_((gates + kFewPerMany - 1) / kFewPerMany) {}

  // A stretch with so many rows took `took` nanoseconds where `expected` were computed for.
  void Add(int64_t took, int64_t expected, int64_t rows) {
    const int64_t beside = std::max<int64_t>(0, took - expected);
    rows < kManyRows ? few_.Add(static_cast<double>(beside))
                     : many_.Add(static_cast<double>(beside) / static_cast<double>(rows));
  }
  // Nanoseconds, at least 0; `before` until all gates of as few or many rows are measured.
  int64_t beside(int64_t before, int64_t rows) const {
    const Median& median = rows < kManyRows ? few_ : many_;
    if (!median.measured) return before;
    return static_cast<int64_t>(rows < kManyRows ? median.value : median.value * static_cast<double>(rows));
  }

 private:
  struct Median {
    explicit Median(int wanted) : left(wanted) {}
    void Add(double sample) {
      if (left == 0) return;
      samples.push_back(sample);
      if (--left > 0) return;
      const auto middle = samples.begin() + static_cast<int64_t>(samples.size() / 2);
      std::nth_element(samples.begin(), middle, samples.end());
      value = *middle;
      measured = true;
      samples = {};
    }
    int left;
    bool measured = false;
    double value = 0;
    std::vector<double> samples = {};
  };

  Median few_, many_;
};

}  // namespace switchyard::moe
