// Which steps decide where their rows go, and which do without: what was measured to be faster for steps of that size.
//
// A decision costs a gather and a copy now and then, and saves what the busiest device is later than the others.  Which
// is more depends on the machine, the model, the links and the number of rows, so it is tried: steps are sorted by
// their rows, four classes for each doubling, and by whether they compute prompts.  In a class both ways take turns at
// first; then the one with the lower median time a row runs, and the other one again now and then: so rarely that it
// costs a five hundredth of the time, or once in kMostApart steps.  Deciding must be a hundredth faster.  A
// step's plan says which way it goes.  Thread-compatible; no clock.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace switchyard::placement {

struct TrialStep {
  int64_t rows = 0;      // of all ranks, >= 0
  bool prompts = false;  // whether some are of prompts
};

class StepTrial {
 public:
  // Steps of each way that a class begins with, and that a median is of.
  static constexpr int kSamples = 5;
  // Between two tries of the slower way, at the least and at the most.
  static constexpr int64_t kLeastApart = 32, kMostApart = 4096;

  // Whether this step is to decide.
  bool Next(const TrialStep& step);
  // A step has ended that did, or did not.  Impossible times (negative, endless) are ignored.
  void Done(const TrialStep& step, bool decided, double seconds);

  // What deciding has gained so far, by the classes' medians: what the steps that decided would have taken longer.
  // May be negative, from tries.
  double gained_seconds() const { return gained_seconds_; }
  int64_t steps(bool decided) const { return steps_[decided ? 1 : 0]; }

 private:
  struct Way {
    std::vector<double> samples;  // seconds a row, at most kSamples, the oldest is replaced
    size_t next = 0;
    int64_t begun = 0;
    double median() const;
    bool known() const { return samples.size() == kSamples; }
  };
  struct Class {
    Way ways[2];  // not decided, decided
    int64_t since_try = 0;
    bool decides() const { return ways[1].median() < 0.99 * ways[0].median(); }
    int64_t apart() const;
  };

  using Key = std::pair<bool, int>;
  static Key KeyOf(const TrialStep& step);

  std::map<Key, Class> classes_;
  int64_t steps_[2] = {0, 0};
  double gained_seconds_ = 0;
};

}  // namespace switchyard::placement
