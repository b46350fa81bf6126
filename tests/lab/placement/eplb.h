// DeepSeek's expert-parallel load balancer (EPLB), as a baseline beside residency.h (eplb_residency.h).
//
// Source: README of deepseek-ai/EPLB and the published walk-throughs of it; written anew.  Given one layer's loads and
// a number of replicas that the devices share evenly:
//   1. groups of experts are packed to nodes, heaviest first into the lightest node that is not full;
//   2. within a node the expert with the largest load per replica gets one replica more, until all are given;
//   3. a node's replicas, each of load / replicas, are packed to its devices as groups were to nodes.
// With num_groups divisible by num_nodes that is the hierarchical policy; otherwise the global one: one group, one
// node. Ties go to the smaller index.  Pure.  Does not look at where the experts are now (matching.h relabels its
// devices), may put two replicas of an expert on one device, and knows no offload.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "scheduler/placement/placement.h"

namespace switchyard {

struct EplbShape {
  int num_replicas = 0;  // of all experts together, over all devices
  int num_groups = 1;
  int num_nodes = 1;
  int num_devices = 0;
};

// load [E] >= 0.  Each device has num_replicas / num_devices slots, all filled; an expert may stand twice on a device,
// which CheckPlacement refuses and WithoutDuplicates repairs.
// InvalidArgument: replicas that devices cannot share evenly, or fewer than experts; devices or groups that nodes or
// experts cannot.
absl::StatusOr<placement::Placement> EplbPlacement(absl::Span<const int64_t> load, const EplbShape& shape);

// The second replica of an expert on a device leaves its slot empty: it would compute nothing that the first cannot.
placement::Placement WithoutDuplicates(placement::Placement placement);

}  // namespace switchyard
