#include "tests/bench/training/links.h"

#include <algorithm>

namespace switchyard::bench {

double WireSeconds(const Links& links, const std::vector<int>& members, double bytes_per_peer) {
  const int node = members.front() / links.node_size;
  int outside = 0;
  for (const int member : members) outside += member / links.node_size != node;
  const double own = bytes_per_peer * static_cast<double>(members.size() - 1) / links.rank_bytes_per_s;
  return std::max(own, bytes_per_peer * outside * links.node_size / links.node_bytes_per_s);
}

double SumSeconds(const Links& links, const std::vector<int>& members, double bytes) {
  return 2 * WireSeconds(links, members, bytes / static_cast<double>(members.size()));
}

std::vector<int> RowGroup(int world, int packing, int rank) {
  const int holders = world / packing, first = rank / holders * holders;
  std::vector<int> group;
  for (int i = 0; i < holders; ++i) group.push_back(first + i);
  return group;
}

std::vector<int> ReplicaGroup(int world, int packing, int rank) {
  const int holders = world / packing;
  std::vector<int> group;
  for (int i = 0; i < packing; ++i) group.push_back(rank % holders + i * holders);
  return group;
}

}  // namespace switchyard::bench
