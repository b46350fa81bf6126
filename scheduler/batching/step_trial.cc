#include "scheduler/batching/step_trial.h"

#include <algorithm>
#include <cmath>

#include "scheduler/base/check.h"

namespace switchyard::batching {
namespace {

// Up to so many rows, each number is its own class: such steps take as long whatever the rows.
constexpr int64_t kExact = 32;

// The fewest rows of a class of that size.
int64_t LeastRows(int size) {
  if (size < kExact) return size;
  const auto exact = static_cast<double>(kExact);
  return std::llround(std::ceil(exact * std::exp2((size - exact) / 4)));
}

}  // namespace

StepTrial::StepTrial(int ways) : num_ways_(static_cast<size_t>(ways)) { SY_CHECK(ways >= 2 && ways <= 32); }

double StepTrial::Way::median() const {
  std::vector<double> sorted = samples;
  std::sort(sorted.begin(), sorted.end());
  return sorted.empty() ? 0 : sorted[sorted.size() / 2];
}

bool StepTrial::Class::known() const {
  // Two samples suffice of a way that is a quarter slower than way 0 in both.
  const auto is_far_slower = [this](const Way& way) {
    return ways[0].samples.size() >= 2 && way.samples.size() >= 2 &&
           *std::min_element(way.samples.begin(), way.samples.end()) > 1.25 * ways[0].median();
  };
  return std::all_of(ways.begin(), ways.end(),
                     [&](const Way& way) { return !way.tried || way.known() || is_far_slower(way); });
}

size_t StepTrial::Class::best() const {
  size_t best = 0;
  double least = 0.99 * ways[0].median();
  for (size_t way = 1; way < ways.size(); ++way) {
    if (!ways[way].tried || ways[way].median() >= least) continue;
    best = way;
    least = ways[way].median();
  }
  return best;
}

size_t StepTrial::Class::NextTry() const {
  const size_t best = this->best();
  for (size_t i = 1; i <= ways.size(); ++i) {
    const size_t next = (last_try + i) % ways.size();
    if (next != best && ways[next].tried) return next;
  }
  return best;
}

int64_t StepTrial::Class::Apart(size_t way) const {
  constexpr double kCost = 0.002;  // of a class's time, that tries may take
  const auto [fast, slow] = std::minmax({ways[best()].median(), ways[way].median()});
  if (!(fast > 0)) return kMostApart;
  // What was borrowed may be wrong.
  const int64_t most = borrowed ? 8 * kLeastApart : kMostApart;
  const double apart = (slow / fast - 1) / kCost;
  return apart < static_cast<double>(most) ? std::max<int64_t>(std::llround(apart), kLeastApart) : most;
}

StepTrial::Key StepTrial::KeyOf(const TrialStep& step) {
  const auto rows = static_cast<double>(std::max(step.rows, kExact));
  return {step.prompts, step.uneven,
          step.rows < kExact ? static_cast<int>(step.rows) : static_cast<int>(4 * std::log2(rows / kExact) + kExact)};
}

void StepTrial::Class::CountOwn(double of_row) {
  own.push_back(of_row);
  if (counts_own()) return;
  const Way first = {.samples = own};
  const size_t way = best();
  const double longer = ways[way].median() > 0 ? first.median() / ways[way].median() : 1;
  for (Way& other : ways) {
    for (double& sample : other.samples) sample *= longer;
  }
  ways[way].samples = own;
  ways[way].measured = kSamples;
}

const StepTrial::Class* StepTrial::Lender(const Key& key) const {
  const Class* lender = nullptr;
  for (const int apart : {-1, 1}) {
    const auto found = classes_.find({key.prompts, key.uneven, key.size + apart});
    // Not from one that borrowed: ratios would spread to sizes that are far away.
    if (found == classes_.end() || found->second.borrowed || !found->second.known()) continue;
    if (lender != nullptr && lender->best() != found->second.best()) return nullptr;
    lender = &found->second;
  }
  return lender;
}

StepTrial::Class& StepTrial::ClassOf(const TrialStep& step) {
  const Key key = KeyOf(step);
  if (const auto found = classes_.find(key); found != classes_.end()) return found->second;
  const Class* lender = Lender(key);
  Class& of = classes_[key];
  of.ways.resize(num_ways_);
  if (lender != nullptr) {
    of.borrowed = true;
    for (size_t way = 0; way < num_ways_; ++way) {
      of.ways[way].samples = lender->ways[way].samples;
      of.ways[way].tried = lender->ways[way].tried;
    }
  }
  return of;
}

bool StepTrial::Knows(const TrialStep& step) const {
  const Key key = KeyOf(step);
  const auto of = classes_.find(key);
  return of != classes_.end() ? of->second.known() : Lender(key) != nullptr;
}

int StepTrial::Best(const TrialStep& step) const {
  const Key key = KeyOf(step);
  const auto found = classes_.find(key);
  const Class* of = found != classes_.end() ? &found->second : Lender(key);
  return of != nullptr && of->known() ? static_cast<int>(of->best()) : 0;
}

int StepTrial::Next(const TrialStep& step, uint32_t tried) {
  const bool is_new = classes_.find(KeyOf(step)) == classes_.end();
  Class& of = ClassOf(step);
  for (size_t other = 1; !of.borrowed && other < of.ways.size(); ++other)
    of.ways[other].tried = (!is_new && of.ways[other].tried) || (tried >> other & 1) != 0;
  size_t way = 0;
  if (of.known()) {
    way = of.best();
    const size_t next = of.NextTry();
    if (next != way && ++of.since_try >= of.Apart(next)) {
      of.since_try = 0;
      of.last_try = way = next;
    }
  } else {
    for (size_t other = 1; other < of.ways.size(); ++other) {
      if (of.ways[other].tried && of.ways[other].begun < of.ways[way].begun) way = other;
    }
  }
  ++of.ways[way].begun;
  ++steps_;
  other_steps_ += way == 0 ? 0 : 1;
  return static_cast<int>(way);
}

std::vector<StepTrial::Seen> StepTrial::classes() const {
  std::vector<Seen> all;
  for (const auto& [key, of] : classes_) {
    Seen& seen = all.emplace_back(Seen{.least = LeastRows(key.size),
                                       .most = LeastRows(key.size + 1) - 1,
                                       .prompts = key.prompts,
                                       .uneven = key.uneven,
                                       .best = of.known() ? static_cast<int>(of.best()) : 0,
                                       .ways = {}});
    for (const Way& way : of.ways)
      seen.ways.push_back({.tried = way.tried, .steps = way.begun, .row_seconds = way.median()});
  }
  return all;
}

void StepTrial::Done(const TrialStep& step, int way, double seconds) {
  if (!(seconds >= 0) || std::isinf(seconds)) return;
  const int64_t rows = std::max<int64_t>(step.rows, 1);
  Class& of = ClassOf(step);
  Way& went = of.ways[static_cast<size_t>(way)];
  const double of_row = seconds / static_cast<double>(rows);
  if (of.counts_own()) {
    if (&went == &of.ways[of.best()]) of.CountOwn(of_row);
    return;
  }
  ++went.measured;
  if (std::all_of(of.ways.begin(), of.ways.end(),
                  [](const Way& each) { return !each.tried || each.measured >= kSamples; }))
    of.borrowed = false;
  if (!went.known()) {
    went.samples.push_back(of_row);
  } else {
    went.samples[went.next] = of_row;
    went.next = (went.next + 1) % kSamples;
  }
  if (way != 0 && of.ways[0].known())
    gained_seconds_ += static_cast<double>(rows) * (of.ways[0].median() - went.median());
}

}  // namespace switchyard::batching
