// Runs this program again as several processes that work together, and collects their output: for ranks that must not
// share a process.
//
// A child reads its role from its arguments, in main, before GoogleTest starts.  It is killed, by its pid, when its
// time is over; if the parent dies first, a child ends by an alarm of its own (LiveAtMost).
#pragma once

#include <string>
#include <vector>

#include "absl/time/time.h"

namespace switchyard::test {

struct ChildSpec {
  std::vector<std::string> arguments;    // after the program's name
  std::vector<std::string> environment;  // "NAME=value", in place of what this process has by that name
};

struct ChildEnd {
  std::string trouble;  // empty: exit status 0; else what happened to it
  std::string log;      // what it wrote to stdout and stderr
};

struct ChildLimits {
  absl::Duration all = absl::Seconds(60);
  // The time that the others get to report a child's failure.
  absl::Duration after_failure = absl::Seconds(10);
};

// Starts them all at once and blocks until the last has ended; element i is the i-th's end.  Aborts if one cannot be
// started.  A child's own children must not outlive it: they would hold its log open.
std::vector<ChildEnd> RunChildren(const std::vector<ChildSpec>& children, const ChildLimits& limits);

// For a child: ends this process by SIGALRM after `limit`.
void LiveAtMost(absl::Duration limit);

}  // namespace switchyard::test
