#include "scheduler/placement/per_step/step_trial.h"

#include <algorithm>
#include <cmath>

namespace switchyard::placement {

double StepTrial::Way::median() const {
  std::vector<double> sorted = samples;
  std::sort(sorted.begin(), sorted.end());
  return sorted.empty() ? 0 : sorted[sorted.size() / 2];
}

int64_t StepTrial::Class::apart() const {
  constexpr double kCost = 0.002;  // of a class's time, that tries may take
  const auto [fast, slow] = std::minmax({ways[0].median(), ways[1].median()});
  if (!(fast > 0)) return kMostApart;
  const double apart = (slow / fast - 1) / kCost;
  return apart < static_cast<double>(kMostApart) ? std::max<int64_t>(std::llround(apart), kLeastApart) : kMostApart;
}

StepTrial::Key StepTrial::KeyOf(const TrialStep& step) {
  constexpr int64_t kExact =
      32;  // up to so many, each number is its own class: such steps take as long whatever the rows
  const auto rows = static_cast<double>(std::max(step.rows, kExact));
  return {step.prompts,
          step.rows < kExact ? static_cast<int>(step.rows) : static_cast<int>(4 * std::log2(rows) + kExact)};
}

bool StepTrial::Next(const TrialStep& step) {
  Class& of = classes_[KeyOf(step)];
  bool decides = of.ways[1].begun < of.ways[0].begun;
  if (of.ways[0].known() && of.ways[1].known()) {
    decides = of.decides();
    if (++of.since_try >= of.apart()) {
      of.since_try = 0;
      decides = !decides;
    }
  }
  ++of.ways[decides ? 1 : 0].begun;
  ++steps_[decides ? 1 : 0];
  return decides;
}

void StepTrial::Done(const TrialStep& step, bool decided, double seconds) {
  if (!(seconds >= 0) || std::isinf(seconds)) return;
  const int64_t rows = std::max<int64_t>(step.rows, 1);
  Class& of = classes_[KeyOf(step)];
  Way& way = of.ways[decided ? 1 : 0];
  const double of_row = seconds / static_cast<double>(rows);
  if (!way.known()) {
    way.samples.push_back(of_row);
  } else {
    way.samples[way.next] = of_row;
    way.next = (way.next + 1) % kSamples;
  }
  if (decided && of.ways[0].known())
    gained_seconds_ += static_cast<double>(rows) * (of.ways[0].median() - of.ways[1].median());
}

}  // namespace switchyard::placement
