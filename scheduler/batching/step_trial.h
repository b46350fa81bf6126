// Which of a few ways of running a step is the fastest, by what was measured of steps of that size.
//
// What is faster depends on the machine, the model, the links and the number of rows, so it is tried: steps are sorted
// by their rows, four classes for each doubling, by whether they compute prompts, and by whether one rank has far more
// rows than the others.  In a class all ways take turns at first; then the one with the lowest median time a row runs,
// and another one now and then: so rarely that it costs a five hundredth of the time, or once in kMostApart steps.
// Another way than way 0 must be a hundredth faster.
// Where a neighbouring class was tried, a new one goes that one's fastest way at once, and takes its ratios between
// ways for its own until it has tried them, at least every 256 steps.  Where both neighbours were tried and differ, it
// is tried, too.  Ways that a caller expects to be slower are left out.  Thread-compatible; no clock.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace switchyard::batching {

struct TrialStep {
  int64_t rows = 0;      // of all ranks, >= 0
  bool prompts = false;  // whether some are of prompts
  bool uneven = false;   // whether a rank has more than half as many again as the mean
};

class StepTrial {
 public:
  // Steps of each way that a class begins with, and that a median is of.
  static constexpr int kSamples = 5;
  // Between two tries of a slower way, at the least and at the most.
  static constexpr int64_t kLeastApart = 32, kMostApart = 4096;

  // REQUIRES: 2 <= ways <= 32.
  explicit StepTrial(int ways);

  // Whether the class of that step has been tried in all ways, or borrows (would, if it is new).
  bool Knows(const TrialStep& step) const;
  // The way that was the fastest so far; way 0 until all have been tried.
  int Best(const TrialStep& step) const;
  // The way of this step, in [0, ways).  tried: a bit for each way that its class may go from now on; way 0 always, and
  // what it went before.
  int Next(const TrialStep& step, uint32_t tried = ~0u);
  // A step of that way has ended.  Impossible times (negative, endless) are ignored.
  void Done(const TrialStep& step, int way, double seconds);

  // What is known of steps of `least` to `most` rows.
  struct Seen {
    int64_t least = 0, most = 0;
    bool prompts = false, uneven = false;
    int best = 0;  // TrialStep's, once all have been tried
    struct OfWay {
      bool tried = false;      // else it is left out
      int64_t steps = 0;       // that went it
      double row_seconds = 0;  // of their median; 0: none yet
    };
    std::vector<OfWay> ways;
  };
  std::vector<Seen> classes() const;

  // What other ways than way 0 have gained so far, by the classes' medians: what their steps would have taken
  // longer.  May be negative, from tries.  Without the first steps of a class that borrows.
  double gained_seconds() const { return gained_seconds_; }
  int64_t steps() const { return steps_; }
  // Of these, those that went another way than way 0.
  int64_t other_steps() const { return other_steps_; }

 private:
  struct Way {
    std::vector<double> samples;  // seconds a row, at most kSamples, the oldest is replaced
    size_t next = 0;
    int64_t begun = 0, measured = 0;  // steps of this class that began, that ended
    bool tried = true;
    double median() const;
    bool known() const { return samples.size() == kSamples; }
  };
  struct Class {
    std::vector<Way> ways;
    int64_t since_try = 0;
    size_t last_try = 0;    // the last way that was tried again
    bool borrowed = false;  // it has a neighbour's samples yet

    std::vector<double> own;  // of a borrowed class: its first samples of the best way, until there are kSamples
    bool known() const;
    size_t best() const;
    // The next way to be tried again, not the best (which it is if there is no other), and how many steps from the last
    // try.
    size_t NextTry() const;
    int64_t Apart(size_t way) const;
    bool counts_own() const { return borrowed && own.size() < kSamples; }
    // REQUIRES: counts_own().  The best way took so much a row: with kSamples of these all samples become as long as
    // steps of this class are.
    void CountOwn(double of_row);
  };

  struct Key {
    bool prompts = false, uneven = false;
    int size = 0;
    auto operator<=>(const Key& other) const = default;
  };
  static Key KeyOf(const TrialStep& step);
  Class& ClassOf(const TrialStep& step);
  // The class from which a new one of that key borrows, or nullptr.
  const Class* Lender(const Key& key) const;

  size_t num_ways_;
  std::map<Key, Class> classes_;
  int64_t steps_ = 0, other_steps_ = 0;
  double gained_seconds_ = 0;
};

}  // namespace switchyard::batching
