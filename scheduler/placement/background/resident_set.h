// Chooses the experts that have device memory where not all can: the most valuable of all layers, device by device.
//
// An expert in memory saves the copies that its hits would wait for; a replica saves time on the busiest device.  Who
// gets a slot has to be worth more than the expert that it puts out, by its copy and by the error of both estimates, so
// that noise exchanges nothing.  Borrows the layers that it works on.  Pure, deterministic.
#pragma once

#include <vector>

#include "scheduler/placement/background/residency_plan.h"

namespace switchyard::placement {

// Seconds within the horizon, and their standard error.
struct ResidentValue {
  double seconds = 0;
  double error = 0;
};

// A replica that could go; the expert has other hosts.
struct ReplicaValue {
  int layer = 0, expert = 0, device = 0;
  double seconds = 0;  // lost without it
};

class ResidentSet {
 public:
  // values [L][E] of having an expert in memory rather than copying it when it is hit.  Borrows both.
  // REQUIRES: CheckResidency(*layers, limits) holds.
  ResidentSet(const ResidencyLimits& limits, const std::vector<std::vector<ResidentValue>>& values,
              std::vector<LayerResidency>* layers);

  // Whether memory cannot hold as many as the layers' slots.
  bool scarce() const;
  // Exchanges what is in memory for what is not, most valuable first, as long as that pays.  Another device than its
  // host may load an expert and host it then, where the layer has a slot there.
  void LoadWhatPays(const std::vector<ReplicaValue>& replicas, double seconds_per_copy);
  // [R] what the next slots of each device cost a layer: BalanceProblem::slot_prices.  At most `most` a device.
  std::vector<std::vector<double>> SlotPrices(int layer, int most) const;
  // Replaces the layer's placement; where memory does not suffice, offloads what SlotPrices priced.
  void Replace(int layer, Placement placement);

 private:
  struct Candidate {
    double seconds, error;
    int layer, expert;
    bool replica;
  };
  void Count();
  bool Stale(int device, const Candidate& candidate) const;
  void PutOut(int device, const Candidate& candidate);
  // Loads the expert where that pays, by offloading or dropping the cheapest somewhere.
  void Load(int layer, int expert, double seconds_per_copy);

  const ResidencyLimits limits_;
  const std::vector<std::vector<ResidentValue>>& values_;
  std::vector<LayerResidency>& layers_;
  int devices_;
  std::vector<int> free_;                           // [R] slots of memory
  std::vector<std::vector<Candidate>> candidates_;  // [R] to be put out, cheapest last
};

}  // namespace switchyard::placement
