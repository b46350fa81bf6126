// A cluster as the simulator knows it: ranks on nodes, in order, what their links carry, and how fast they compute.
//
// A rank has a link each way, over which all that it sends or receives passes; all ranks of a node share the node's
// links to the others.  A cluster file has a line `name = value` for each field, `#` begins a comment; what it does not
// name stays as below.  Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "scheduler/simulator/event_simulator.h"

namespace switchyard::simulator {

struct Cluster {
  int ranks = 1;
  int ranks_per_node = 1;          // of the last node perhaps fewer
  double rank_bytes_per_s = 1e9;   // each way
  double node_bytes_per_s = 1e9;   // each way; unused where all ranks are on one node
  double rank_latency_s = 0;       // of a message within a node
  double node_latency_s = 0;       // between nodes
  double flops = 1e12;             // of a rank, a second
  double copy_bytes_per_s = 10e9;  // of a rank's copy engine
  // Messages to different peers do not wait for each other, as on sockets: chunks that are cut by peers share the
  // links. Else collectives of a communicator follow each other, as NCCL's.
  bool peers_apart = false;

  int num_nodes() const { return (ranks - 1) / ranks_per_node + 1; }
  int NodeOf(int rank) const { return rank / ranks_per_node; }
};

// InvalidArgument: a line (its number) that is none, a field that is unknown, given twice, or out of range.
absl::StatusOr<Cluster> ParseCluster(absl::string_view text);
absl::Status CheckCluster(const Cluster& cluster);

// The links, by number: each rank's to send, each rank's to receive, then the nodes' likewise.
std::vector<double> LinksOf(const Cluster& cluster);

// The traffic of collectives among `members`, in the order of their communicator.  Every member sends each other one
// that it reaches bytes_per_peer, or so many bytes (0: no message); `from` and `to` are places in that order. REQUIRES:
// members are different ranks of the cluster.
Collective AllToAll(
    const Cluster& cluster, const std::vector<int>& members, double bytes_per_peer,
    absl::FunctionRef<bool(int from, int to)> reaches = [](int, int) { return true; });
Collective AllToAll(const Cluster& cluster, const std::vector<int>& members,
                    absl::FunctionRef<double(int from, int to)> bytes);
// `rounds` times over the ring every member passes on one chunk at each of its size - 1 turns: an all-gather or a
// reduce-scatter is once, an all-reduce twice.
Collective Ring(const Cluster& cluster, const std::vector<int>& members, double chunk_bytes, int rounds);

// Seconds of a collective that meets no other.
double SecondsAlone(const Cluster& cluster, const Collective& collective);

}  // namespace switchyard::simulator
