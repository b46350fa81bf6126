// The data plane of one group: the ranks of one epoch meet in it, step by step.
//
// A rank that arrives waits until all have; whoever leaves (its process died, it was aborted, another epoch began)
// breaks the fabric for all others, who hear of it within milliseconds.  A rank that is stopped just does not come.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tests/simulation/core/process.h"
#include "tests/simulation/net/connection.h"

namespace switchyard::simulation {

class Fabric {
 public:
  Fabric(World* world, int size) : world_(*world), seats_(static_cast<size_t>(size)) {}

  // all: called on the process once every rank has arrived at `meeting`.  broken: called once if the fabric breaks.
  void Enter(int rank, Process* process, const Host* host, std::function<void(const std::string&)> broken);
  // wish: the largest of all ranks' is what `all` gets.
  void Arrive(int rank, int64_t meeting, int wish, std::function<void(int wish)> all);
  void Leave(int rank);
  // Leaves in order, as all do.
  void Exit(int rank) { seats_[rank].broken = nullptr; }

 private:
  struct Seat {
    Process* process = nullptr;
    uint64_t life = 0;
    const Host* host = nullptr;
    std::function<void(const std::string&)> broken;
  };
  struct Waiting {
    int rank, wish;
    std::function<void(int)> all;
  };
  absl::Duration Latency(const Seat& seat);

  World& world_;
  std::vector<Seat> seats_;
  std::map<int64_t, std::vector<Waiting>> meetings_;
  bool broken_ = false;
};

}  // namespace switchyard::simulation
