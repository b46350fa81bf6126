#include "scheduler/simulator/link_shares.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"

namespace switchyard::simulator {
namespace {

constexpr double kUnbound = std::numeric_limits<double>::infinity();
// What is left of a collective's bytes by rounding alone.
constexpr double kNothing = 1e-12;
// What rounding may leave of a full link.
constexpr double kFull = 1e-9;

double MostBytes(const Collective& collective) {
  double most = 0;
  for (const LinkUse& use : collective.uses) most = std::max(most, use.bytes);
  return most;
}

}  // namespace

absl::Status CheckTraffic(const SimInput& input) {
  const TrafficRules& rules = input.rules;
  const auto wrong = [](const auto&... what) {
    return absl::InvalidArgumentError(absl::StrCat("simulator: ", what...));
  };
  for (size_t i = 0; i < input.links.size(); ++i) {
    if (!(input.links[i] > 0)) return wrong("link ", i, " has ", input.links[i], " bytes a second");
  }
  for (size_t i = 0; i < rules.weights.size(); ++i) {
    if (!(rules.weights[i] > 0)) return wrong("class ", i, " has weight ", rules.weights[i]);
  }
  if (!(rules.efficiency > 0 && rules.efficiency <= 1))
    return wrong("efficiency ", rules.efficiency, " is outside (0, 1]");
  for (size_t i = 0; i < input.collectives.size(); ++i) {
    const Collective& collective = input.collectives[i];
    if (collective.traffic_class < 0 || collective.traffic_class >= static_cast<int>(rules.weights.size()))
      return wrong("collective ", i, " is of class ", collective.traffic_class, " of ", rules.weights.size());
    if (!(collective.latency >= 0 && std::isfinite(collective.latency)))
      return wrong("collective ", i, " has a latency of ", collective.latency, " seconds");
    std::vector<int> seen;
    for (const LinkUse& use : collective.uses) {
      if (use.link < 0 || use.link >= static_cast<int>(input.links.size()))
        return wrong("collective ", i, " uses link ", use.link, " of ", input.links.size());
      if (!(use.bytes > 0 && std::isfinite(use.bytes)))
        return wrong("collective ", i, " moves ", use.bytes, " bytes on link ", use.link);
      seen.push_back(use.link);
    }
    std::sort(seen.begin(), seen.end());
    if (std::adjacent_find(seen.begin(), seen.end()) != seen.end())
      return wrong("collective ", i, " uses a link twice");
  }
  return absl::OkStatus();
}

void LinkShares::Add(int collective) {
  moving_.push_back({.collective = collective});
  shared_ = false;
}

void LinkShares::Fill(int traffic_class, std::vector<double>* left) {
  std::vector<Moving*> open;
  for (Moving& moving : moving_) {
    if (Of(moving).uses.empty()) {
      moving.pace = kUnbound;
    } else if (traffic_class < 0 || Of(moving).traffic_class == traffic_class) {
      open.push_back(&moving);
      moving.pace = 0;
    }
  }
  // All are raised alike, in bytes a second on the link where each has most, until a link is full; those on it have
  // then what they get, and the others are raised further.
  const auto raised = [&](const Moving& moving) { return WeightOf(moving) / MostBytes(Of(moving)); };
  std::vector<double> wanted(left->size());
  while (!open.empty()) {
    std::fill(wanted.begin(), wanted.end(), 0);
    for (const Moving* const moving : open) {
      for (const LinkUse& use : Of(*moving).uses) wanted[static_cast<size_t>(use.link)] += use.bytes * raised(*moving);
    }
    double level = kUnbound;
    for (size_t link = 0; link < wanted.size(); ++link) {
      if (wanted[link] > 0) level = std::min(level, std::max(0.0, (*left)[link]) / wanted[link]);
    }
    const auto is_full = [&](const LinkUse& use) {
      const auto link = static_cast<size_t>(use.link);
      return std::max(0.0, (*left)[link]) <= level * wanted[link] * (1 + kFull);
    };
    std::vector<Moving*> rest;
    for (Moving* const moving : open) {
      const std::vector<LinkUse>& uses = Of(*moving).uses;
      moving->pace = level * raised(*moving);
      if (std::none_of(uses.begin(), uses.end(), is_full)) rest.push_back(moving);
    }
    for (const Moving* const moving : open) {
      if (std::find(rest.begin(), rest.end(), moving) != rest.end()) continue;
      for (const LinkUse& use : Of(*moving).uses) (*left)[static_cast<size_t>(use.link)] -= use.bytes * moving->pace;
    }
    open = std::move(rest);
  }
}

void LinkShares::Share() {
  shared_ = true;
  std::vector<double> left = input_.links;
  std::vector<int> first(left.size(), -1);
  std::vector<char> meet(left.size(), 0);
  for (const Moving& moving : moving_) {
    for (const LinkUse& use : Of(moving).uses) {
      int& of = first[static_cast<size_t>(use.link)];
      if (of >= 0 && of != Of(moving).traffic_class) meet[static_cast<size_t>(use.link)] = 1;
      of = Of(moving).traffic_class;
    }
  }
  for (size_t link = 0; link < left.size(); ++link) {
    if (meet[link] != 0) left[link] *= input_.rules.efficiency;
  }
  if (!input_.rules.strict) return Fill(-1, &left);
  for (size_t i = 0; i < input_.rules.weights.size(); ++i) Fill(static_cast<int>(i), &left);
}

double LinkShares::NextEnd() {
  if (!shared_) Share();
  double next = kUnbound;
  for (const Moving& moving : moving_) {
    if (moving.pace > 0) next = std::min(next, now_ + (moving.pace == kUnbound ? 0 : moving.left / moving.pace));
  }
  return next;
}

std::vector<int> LinkShares::AdvanceTo(double time) {
  if (!shared_) Share();
  std::vector<int> over;
  const double passed = time - now_;
  // What ends a rounding later than another ends with it.
  const auto is_over = [&](const Moving& moving) {
    return moving.pace == kUnbound || moving.left <= kNothing + moving.pace * time * 1e-14;
  };
  for (Moving& moving : moving_) {
    if (moving.pace != kUnbound) moving.left -= moving.pace * passed;
    if (is_over(moving)) over.push_back(moving.collective);
  }
  now_ = time;
  if (over.empty()) return over;
  std::erase_if(moving_, is_over);
  shared_ = false;
  return over;
}

}  // namespace switchyard::simulator
