// What the ops of a MoE layer's program (scheduler/pipeline/moe_schedule.h) cost on a cluster, and the program as the
// simulator takes it.
//
// Rank r has shard r % shards of its experts; shard groups and copies are neighbouring ranks.  Routing is even, and all
// ranks have as many rows.  Gates and shared experts take no time.  Bytes are those of scheduler/PAPERS.md, "Parm".
// Pure.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "scheduler/pipeline/moe_schedule.h"
#include "scheduler/simulator/cluster.h"
#include "scheduler/simulator/event_simulator.h"

namespace switchyard::simulator {

struct MoeLayerShape {
  double tokens = 1;          // of a rank; copies have the same ones
  double hidden = 1;          // M
  double expert_hidden = 1;   // H of an expert, which is two matrices of M x H, in all its shards
  double rows_per_token = 1;  // top-k times the capacity factor
  double element_bytes = 2;
  // Of an element where it is longer, 0: element_bytes.  The workers' layers of 16 bits send in fp32 what tokens' ranks
  // have not rounded: tokens that copies gather (S1) or add (PPMoE), forward and backward; and layers of fp16, which
  // communicators do not add, the rows that shards add (DeepSpeed-MoE).
  double token_bytes = 0, shard_sum_bytes = 0;
};

struct MoeMesh {
  int shards = 1;  // N_ESP; there are ranks / shards expert ranks
  int copies = 1;  // N_MP
};

// Of an op, as a multiple of the experts' forward: gradients of their inputs and of their weights take as long each;
// computing hidden rows again is one of its two products.
double ExpertProducts(const pipeline::MicroOp& op);

// Of one pass of one program.
class ProgramCosts {
 public:
  // InvalidArgument: the cluster's ranks, or the group into chunks, cannot be cut so; a program that is not valid, or
  // that does not add what shards compute.
  static absl::Status Check(const Cluster& cluster, const MoeMesh& mesh, const pipeline::MoeSchedule& schedule);
  // Borrows the schedule.  REQUIRES: Check.
  ProgramCosts(const Cluster& cluster, const MoeMesh& mesh, const MoeLayerShape& shape,
               const pipeline::MoeSchedule& schedule, pipeline::Pass pass);

  const std::vector<pipeline::MicroOp>& ops() const { return ops_; }
  double ComputeSeconds(const pipeline::MicroOp& op) const;
  double CopySeconds(const pipeline::MicroOp& op) const;
  // Of a dispatch or combine: what goes to each peer that it reaches.  Of a gather or sum: each rank's part of the
  // result.
  double MessageBytes(const pipeline::MicroOp& op) const;
  // Whether a dispatch, combine or gather sends from a member at one place of its group to one at another.
  bool Reaches(const pipeline::MicroOp& op, int from, int to) const;
  // The groups of this kind, each with its members in order.
  std::vector<std::vector<int>> Groups(pipeline::Group group) const;

 private:
  int SizeOf(pipeline::Group group) const;
  double RowBytes() const { return shape_.hidden * shape_.element_bytes; }
  double GatheredRowBytes(const pipeline::MicroOp& op) const;  // of a gather or sum
  // The op's chunk, of all dispatched rows.
  double ShareOf(const pipeline::MicroOp& op) const;

  const Cluster cluster_;
  const MoeMesh mesh_;
  const MoeLayerShape shape_;
  const pipeline::MoeSchedule& schedule_;
  const std::vector<pipeline::MicroOp>& ops_;
  pipeline::Group among_ = pipeline::Group::kSelf;  // dispatched rows
  double rows_out_ = 0, rows_in_ = 0;               // of a rank, all chunks
};

// All ranks' ops.  Dispatches and combines share a queue; gathers and sums among shards and among copies have one each.
// Errors: ProgramCosts::Check's.
absl::StatusOr<SimInput> InputOfLayer(const Cluster& cluster, const MoeMesh& mesh, const MoeLayerShape& shape,
                                      const pipeline::MoeSchedule& schedule, pipeline::Pass pass);

}  // namespace switchyard::simulator
