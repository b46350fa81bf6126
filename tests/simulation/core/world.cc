#include "tests/simulation/core/world.h"

#include <algorithm>
#include <cstdio>

#include "scheduler/base/clock.h"

namespace switchyard::simulation {
namespace {

const World* the_world = nullptr;

absl::Time WorldNow() { return the_world->now(); }

}  // namespace

World::World(uint64_t seed, bool trace)
    : trace_(trace), start_(absl::FromUnixSeconds(1'700'000'000)), now_(start_), random_(seed) {
  the_world = this;
  simulated_now = &WorldNow;
}

World::~World() {
  simulated_now = nullptr;
  the_world = nullptr;
}

void World::At(absl::Time time, Action action) {
  events_.push_back({std::max(time, now_), ++posted_, std::move(action)});
  std::push_heap(events_.begin(), events_.end(), Later);
}

bool World::RunOne(absl::Time end) {
  if (events_.empty() || events_.front().time > end) {
    now_ = std::max(now_, end);
    return false;
  }
  std::pop_heap(events_.begin(), events_.end(), Later);
  Event event = std::move(events_.back());
  events_.pop_back();
  now_ = event.time;
  event.action();
  return true;
}

void World::Print(const std::string& text) const {
  std::printf("%11.6f %s\n", absl::ToDoubleSeconds(now_ - start_), text.c_str());
}

}  // namespace switchyard::simulation
