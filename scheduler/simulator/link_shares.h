// What each collective under way gets of the links, by the rules of event_simulator.h.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "scheduler/simulator/event_simulator.h"

namespace switchyard::simulator {

// InvalidArgument: a link, a use of one, or a rule that is none.
absl::Status CheckTraffic(const SimInput& input);

class LinkShares {
 public:
  // REQUIRES: CheckTraffic; the input outlives this.
  explicit LinkShares(const SimInput& input) : input_(input) {}

  // Its bytes begin to move now.
  void Add(int collective);
  // When the next of them is over; infinite: none is under way.
  double NextEnd();
  // Moves bytes until then; returns those that are over, in the order in which they were added.  REQUIRES: not after
  // NextEnd().
  std::vector<int> AdvanceTo(double time);

 private:
  struct Moving {
    int collective = 0;
    double left = 1;  // of its bytes
    double pace = 0;  // share of its bytes a second
  };

  // Sets the paces of those that move.
  void Share();
  // Gives the members of a class, or of all (-1), what is left of the links.
  void Fill(int traffic_class, std::vector<double>* left);
  const Collective& Of(const Moving& moving) const {
    return input_.collectives[static_cast<size_t>(moving.collective)];
  }
  double WeightOf(const Moving& moving) const {
    return input_.rules.weights[static_cast<size_t>(Of(moving).traffic_class)];
  }

  const SimInput& input_;
  double now_ = 0;
  bool shared_ = true;  // the paces are right
  std::vector<Moving> moving_;
};

}  // namespace switchyard::simulator
