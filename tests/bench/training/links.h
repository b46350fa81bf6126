// How long bytes take on the links of an emulated cluster: bytes / bandwidth of the link that has most, and nothing
// else.
//
// Ranks are on nodes of node_size, in order.  A rank has a link, each way, and all ranks of a node share the node's
// link to the others.  Pure.
#pragma once

#include <cstdint>
#include <vector>

namespace switchyard::bench {

struct Links {
  double rank_bytes_per_s = 1;
  double node_bytes_per_s = 1;  // unused where all ranks are on one node
  int node_size = 1;
};

// Seconds in which every one of `members` sends each other one so many bytes, while the other ranks of their nodes do
// the same with their own groups.  REQUIRES: groups are alike, as when ranks are cut into blocks or dealt out in turn.
double WireSeconds(const Links& links, const std::vector<int>& members, double bytes_per_peer);

// The seconds of a sum of so many bytes: parts travel to their ranks, sums back to all.
double SumSeconds(const Links& links, const std::vector<int>& members, double bytes);

// With packing p rows travel among blocks of world / p ranks, and those with the same place in each block have the same
// experts.  rank: whose group.
std::vector<int> RowGroup(int world, int packing, int rank);
std::vector<int> ReplicaGroup(int world, int packing, int rank);

}  // namespace switchyard::bench
