// The loads of one layer's devices in several cases at once (phases, draws of noise), each under its best split, while
// a search adds hosts and removes them.
//
// Every expert's rows fill its least loaded hosts to one level, expert after expert, again and again, which descends to
// the fairest split.  Finalize stops early, so that loads are slightly too uneven, never too even.  Cheap to copy: a
// change is tried on a copy.  Deterministic; floating point, hence for one process that decides for all.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "scheduler/placement/placement.h"

namespace switchyard::placement {

// The rows of all cases, which do not change while hosts do.
struct CaseRows {
  int num_cases = 0;            // C
  std::vector<double> rows;     // [E, C] of the mean device's rows: a balanced device has 1
  std::vector<double> weights;  // [C] sum 1
};

class SplitCases {
 public:
  // Shared: between copies.
  SplitCases(const Placement& placement, std::shared_ptr<const CaseRows> rows);

  // REQUIRES of Add: not a host.  Of Remove: a host, and not the only one.  Finalize splits rows anew.
  void AddHost(int expert, int device);
  void RemoveHost(int expert, int device);
  // Up to `rounds` rounds over all replicated experts; fewer once loads stand still.
  void Finalize(int rounds);

  // Weighted mean over cases of the busiest device's load.
  double Busiest() const;
  // The same, smoothed: falls also when only one of several equally busy devices is relieved.
  double Potential() const;
  // [R] weighted mean over cases.
  std::vector<double> MeanLoads() const;
  // [R] each device's part in Potential: which ones to relieve.
  std::vector<double> Pressures() const;
  // Mean over cases of the rows that this host has of the expert.
  double Rows(int expert, int device) const;

  int num_devices() const { return num_devices_; }
  int num_hosts(int expert) const { return begin_[expert + 1] - begin_[expert]; }
  bool Hosts(int device, int expert) const { return Find(expert, device) >= 0; }

 private:
  int Find(int expert, int device) const;
  // Splits one expert's rows of one case; returns the largest change of a load.
  double Fill(int expert, int c);

  std::shared_ptr<const CaseRows> rows_;
  int num_devices_;
  std::vector<int32_t> begin_;   // [E + 1] into hosts
  std::vector<int32_t> device_;  // by host
  std::vector<double> flow_;     // [hosts, C]
  std::vector<double> loads_;    // [C, R]
};

}  // namespace switchyard::placement
