// Virtual time of one simulation: a queue of events, one source of chance, and the history of what happened.
//
// Events run in order of their time, at one time in the order in which they were posted.  Everything that a run does
// follows from its seed; hash() of two runs of one seed is equal.  One world at a time in a process, on one thread: the
// server's clock (scheduler/base/clock.h) shows the world's time.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "tests/simulation/core/random.h"

namespace switchyard::simulation {

class World {
 public:
  using Action = absl::AnyInvocable<void()>;

  // trace: prints the history.
  World(uint64_t seed, bool trace);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  absl::Time now() const { return now_; }
  Random& random() { return random_; }
  void At(absl::Time time, Action action);
  void After(absl::Duration delay, Action action) { At(now_ + delay, std::move(action)); }
  // Runs the next event if it is due by `end`; else moves the time to `end` and returns false.
  bool RunOne(absl::Time end);

  // Adds a line to the history.  Only what follows from the seed may be in it: no address, no drawn secret.
  template <class... Args>
  void Note(const Args&... args) {
    Add(absl::ToInt64Nanoseconds(now_ - start_));
    (Add(args), ...);
    ++lines_;
    if (trace_) Print(absl::StrCat(args...));
  }
  // An invariant does not hold: the first one ends the run.
  template <class... Args>
  void Violate(const Args&... args) {
    if (violation_.empty()) violation_ = absl::StrCat(args...);
    if (trace_) Print(absl::StrCat("VIOLATION: ", args...));
  }
  template <class... Args>
  void Require(bool holds, const Args&... args) {
    if (!holds) Violate(args...);
  }

  void Print(const std::string& text) const;
  bool traces() const { return trace_; }
  uint64_t hash() const { return hash_; }
  int64_t lines() const { return lines_; }
  const std::string& violation() const { return violation_; }  // empty: none
  absl::Duration elapsed() const { return now_ - start_; }

 private:
  struct Event {
    absl::Time time;
    uint64_t order;
    Action action;
  };
  static bool Later(const Event& a, const Event& b) { return std::pair(a.time, a.order) > std::pair(b.time, b.order); }

  template <class Number>
  requires(std::is_arithmetic_v<Number>) void Add(Number number) { hash_ = Mix(hash_, static_cast<uint64_t>(number)); }
  void Add(absl::string_view text) {
    for (const char c : text) hash_ = (hash_ ^ static_cast<uint8_t>(c)) * 0x100000001b3ull;
  }

  const bool trace_;
  const absl::Time start_;
  absl::Time now_;
  Random random_;
  std::vector<Event> events_;  // a heap
  uint64_t posted_ = 0;
  uint64_t hash_ = 0xcbf29ce484222325ull;
  int64_t lines_ = 0;
  std::string violation_;
};

}  // namespace switchyard::simulation
