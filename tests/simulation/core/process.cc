#include "tests/simulation/core/process.h"

namespace switchyard::simulation {

void Process::BeginLife() {
  ++life_;
  alive_ = true;
  stopped_ = false;
  born_ = world_.now();
  still_since_ = absl::InfiniteFuture();
}

void Process::Die(const std::string& how) {
  if (!alive_) return;
  OnDeath(how);
  alive_ = stopped_ = false;
  ++life_;
  due_.clear();
  still_since_ = world_.now();
}

void Process::Stop() {
  if (!runs()) return;
  stopped_ = true;
  ++num_stops_;
  still_since_ = world_.now();
}

void Process::Continue() {
  if (!alive_ || !stopped_) return;
  stopped_ = false;
  still_since_ = absl::InfiniteFuture();
  std::vector<World::Action> due = std::move(due_);
  due_.clear();
  for (World::Action& action : due) After(world_.random().Skewed(kLeast, absl::Milliseconds(1)), std::move(action));
}

void Process::After(absl::Duration delay, World::Action action) {
  world_.After(delay, [this, life = life_, action = std::move(action)]() mutable { Run(life, std::move(action)); });
}

void Process::Run(uint64_t life, World::Action action) {
  if (life != life_) return;
  if (stopped_) {
    due_.push_back(std::move(action));
  } else {
    action();
  }
}

}  // namespace switchyard::simulation
