#include "scheduler/simulator/program_costs.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/pipeline/schedule_timeline.h"

namespace switchyard::simulator {
namespace {

using pipeline::Cut;
using pipeline::Group;
using pipeline::MicroOp;
using pipeline::MicroOpKind;
using pipeline::RowKind;

}  // namespace

double ExpertProducts(const MicroOp& op) {
  if (op.kind == MicroOpKind::kRecompute) return 0.5;
  return op.kind == MicroOpKind::kExpert || op.kind == MicroOpKind::kWeights ? 1 : 0;
}

absl::Status ProgramCosts::Check(const Cluster& cluster, const MoeMesh& mesh, const pipeline::MoeSchedule& schedule) {
  RETURN_IF_ERROR(CheckCluster(cluster));
  RETURN_IF_ERROR(pipeline::Validate(schedule));
  for (const auto& [name, size] : {std::pair{"shards", mesh.shards}, {"copies", mesh.copies}}) {
    if (size >= 1 && cluster.ranks % size == 0) continue;
    return absl::InvalidArgumentError(absl::StrCat("mesh: ", cluster.ranks, " ranks in groups of ", size, " ", name));
  }
  const auto adds_shards = [](const MicroOp& op) {
    return op.group == Group::kAllExperts || (op.kind == MicroOpKind::kAllReduce && op.group == Group::kShards);
  };
  for (const std::vector<MicroOp>* const ops : {&schedule.forward, &schedule.backward}) {
    if (mesh.shards == 1 || ops->empty() || std::any_of(ops->begin(), ops->end(), adds_shards)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("mesh: ", mesh.shards, " shards, which ", schedule.name, " does not add"));
  }
  if (schedule.cut == Cut::kPeers && cluster.ranks / mesh.shards % schedule.num_chunks != 0)
    return absl::InvalidArgumentError(
        absl::StrCat("mesh: ", cluster.ranks / mesh.shards, " peers in ", schedule.num_chunks, " chunks"));
  return absl::OkStatus();
}

ProgramCosts::ProgramCosts(const Cluster& cluster, const MoeMesh& mesh, const MoeLayerShape& shape,
                           const pipeline::MoeSchedule& schedule, pipeline::Pass pass)
    : cluster_(cluster),
      mesh_(mesh),
      shape_(shape),
      schedule_(schedule),
      ops_(pass == pipeline::Pass::kForward ? schedule.forward : schedule.backward) {
  rows_out_ = shape.tokens * shape.rows_per_token;
  for (const MicroOp& op : ops_) {
    if (op.kind == MicroOpKind::kDispatch) among_ = op.group;
    // What was gathered before is dispatched, too.
    if (op.kind == MicroOpKind::kAllGather && op.group == Group::kShards) rows_out_ *= mesh.shards;
  }
  if (schedule.copies != pipeline::CopySplit::kNone) rows_out_ /= mesh.copies;
  rows_in_ = rows_out_;
  if (among_ == Group::kAllExperts) rows_in_ *= mesh.shards;
  if (among_ == Group::kSelf) rows_in_ /= mesh.copies;
}

double ProgramCosts::ShareOf(const MicroOp& op) const { return 1.0 / op.num_chunks; }

double ProgramCosts::ComputeSeconds(const MicroOp& op) const {
  if (op.experts == pipeline::ExpertSet::kShared) return 0;
  const double forward = rows_in_ * 4 * shape_.hidden * shape_.expert_hidden / mesh_.shards / cluster_.flops;
  return ExpertProducts(op) * ShareOf(op) * forward;
}

double ProgramCosts::CopySeconds(const MicroOp& op) const {
  if (!pipeline::IsCopying(op.kind)) return 0;
  const bool hidden = op.SlotOf(pipeline::BufferKind::kHidden) >= 0;
  const double width = hidden ? shape_.expert_hidden / mesh_.shards : shape_.hidden;
  return rows_in_ * ShareOf(op) * width * shape_.element_bytes / cluster_.copy_bytes_per_s;
}

int ProgramCosts::SizeOf(Group group) const {
  switch (group) {
    case Group::kExperts:
      return cluster_.ranks / mesh_.shards;
    case Group::kShards:
      return mesh_.shards;
    case Group::kCopies:
      return mesh_.copies;
    case Group::kAllExperts:
      return cluster_.ranks;
    case Group::kSelf:
      break;
  }
  return 1;
}

std::vector<std::vector<int>> ProgramCosts::Groups(Group group) const {
  const int size = SizeOf(group), count = cluster_.ranks / size;
  std::vector<std::vector<int>> groups(static_cast<size_t>(count));
  for (int rank = 0; rank < cluster_.ranks; ++rank)
    groups[static_cast<size_t>(group == Group::kExperts ? rank % count : rank / size)].push_back(rank);
  return groups;
}

double ProgramCosts::GatheredRowBytes(const MicroOp& op) const {
  double longer = 0;
  if (op.group == Group::kCopies && op.rows == RowKind::kTokens) longer = shape_.token_bytes;
  if (op.group == Group::kShards && op.kind == MicroOpKind::kAllReduce) longer = shape_.shard_sum_bytes;
  return longer > 0 ? shape_.hidden * longer : RowBytes();
}

double ProgramCosts::MessageBytes(const MicroOp& op) const {
  const double size = SizeOf(op.group);
  if (op.kind == MicroOpKind::kDispatch || op.kind == MicroOpKind::kCombine) {
    const double rows = rows_out_ * (op.group == Group::kAllExperts ? mesh_.shards : 1);
    return rows * RowBytes() / size / (schedule_.cut == Cut::kRows ? op.num_chunks : 1);
  }
  const bool choices = op.rows == RowKind::kChoices;
  double rows = shape_.tokens * (choices ? shape_.rows_per_token : 1);  // of the result
  if (op.group == Group::kShards) rows = choices ? rows_in_ : rows * mesh_.shards;
  // As many rows as the combine of the same part returned.
  const int peers = SizeOf(among_);
  const double part = static_cast<double>(pipeline::PeersOfPart(peers, op.part, op.num_parts).count) / peers;
  return rows * GatheredRowBytes(op) / size * part / op.num_chunks;
}

bool ProgramCosts::Reaches(const MicroOp& op, int from, int to) const {
  const int size = SizeOf(op.group);
  if (schedule_.cut == Cut::kPeers && !pipeline::IsGather(op.kind)) {
    // Rows come back from where they went.
    const bool back = op.kind == MicroOpKind::kCombine;
    return pipeline::ChunkOfPeers(back ? to : from, back ? from : to, size, op.num_chunks) == op.chunk;
  }
  return op.kind != MicroOpKind::kCombine || pipeline::PartOfPeers(from, to, size, op.num_parts) == op.part;
}

absl::StatusOr<SimInput> InputOfLayer(const Cluster& cluster, const MoeMesh& mesh, const MoeLayerShape& shape,
                                      const pipeline::MoeSchedule& schedule, pipeline::Pass pass) {
  RETURN_IF_ERROR(ProgramCosts::Check(cluster, mesh, schedule));
  const ProgramCosts costs(cluster, mesh, shape, schedule, pass);
  SimInput input = {.links = LinksOf(cluster)};
  input.ranks.resize(static_cast<size_t>(cluster.ranks));
  for (const MicroOp& op : costs.ops()) {
    SimOp sim = {.name = pipeline::OpName(op), .deps = op.deps};
    if (!pipeline::IsCommunicating(op.kind)) {
      sim.kind = pipeline::IsCopying(op.kind) ? SimOpKind::kCopy : SimOpKind::kCompute;
      sim.seconds = costs.ComputeSeconds(op) + costs.CopySeconds(op);
      for (std::vector<SimOp>& rank : input.ranks) rank.push_back(sim);
      continue;
    }
    sim.kind = SimOpKind::kCollective;
    const double bytes = costs.MessageBytes(op);
    for (const std::vector<int>& members : costs.Groups(op.group)) {
      Collective collective;
      if (pipeline::IsGather(op.kind)) {
        collective = Ring(cluster, members, bytes, op.kind == MicroOpKind::kAllReduce ? 2 : 1);
      } else {
        collective = AllToAll(cluster, members, bytes, [&](int from, int to) { return costs.Reaches(op, from, to); });
      }
      collective.queue = op.group == Group::kShards ? 1 : op.group == Group::kCopies ? 2 : 0;
      if (cluster.peers_apart && schedule.cut == Cut::kPeers) collective.queue = 3 + op.chunk;
      sim.collective = static_cast<int>(input.collectives.size());
      input.collectives.push_back(std::move(collective));
      for (const int rank : members) input.ranks[static_cast<size_t>(rank)].push_back(sim);
    }
  }
  return input;
}

}  // namespace switchyard::simulator
