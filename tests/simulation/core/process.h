// A simulated process: what it posts ends with it, and waits while it is stopped.
//
// Derived classes are processes of one kind; an object may live several lives, one after the other.  Each posted action
// is one of its threads: after Continue those that were due run within a millisecond, in any order.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tests/simulation/core/world.h"

namespace switchyard::simulation {

class Process {
 public:
  explicit Process(World* world) : world_(*world) {}
  virtual ~Process() = default;
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  // Begins a life.  REQUIRES: it is dead.
  void BeginLife();
  // SIGKILL, a crash or an exit.  how: "signal 9 (Killed)".  Does nothing if it is dead.
  void Die(const std::string& how);
  // SIGSTOP and SIGCONT.
  void Stop();
  void Continue();

  // Runs `action` in this life.
  void After(absl::Duration delay, World::Action action);
  // The same after a moment, as a thread would.
  void Soon(World::Action action) { After(world_.random().Skewed(kLeast, kMost), std::move(action)); }

  bool alive() const { return alive_; }
  bool stopped() const { return stopped_; }
  bool runs() const { return alive_ && !stopped_; }
  int64_t num_stops() const { return num_stops_; }  // of all lives
  uint64_t life() const { return life_; }
  absl::Time born() const { return born_; }  // this life or the last one
  // Time since which it does not run; InfiniteFuture: it does.
  absl::Time still_since() const { return still_since_; }

 protected:
  // How a life ends; it is alive still.
  virtual void OnDeath(const std::string& how) = 0;
  World& world_;

 private:
  static constexpr absl::Duration kLeast = absl::Microseconds(1), kMost = absl::Microseconds(200);
  void Run(uint64_t life, World::Action action);

  bool alive_ = false, stopped_ = false;
  uint64_t life_ = 0;
  int64_t num_stops_ = 0;
  absl::Time born_ = absl::InfinitePast(), still_since_ = absl::InfinitePast();
  std::vector<World::Action> due_;  // while it was stopped
};

}  // namespace switchyard::simulation
