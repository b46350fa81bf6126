#include "tests/workers/moe/program_run.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/pipeline/build_expert_parallel.h"
#include "scheduler/pipeline/build_parm.h"
#include "scheduler/pipeline/build_sliced.h"
#include "tests/workers/comm/faulty_communicator.h"
#include "tests/workers/moe/late_offload.h"
#include "workers/moe/layer/moe_backward.h"
#include "workers/tensor/copy.h"

namespace switchyard::test {
namespace {

using moe::ExpertLayout;
using pipeline::BuildExpertParallel;
using pipeline::BuildParm;
using pipeline::BuildSliced;
using pipeline::Group;
using pipeline::ParmKind;

// One rank's communicators of the mesh.
struct MeshGroups {
  std::unique_ptr<comm::Communicator> experts, shards, copies, distinct;
  std::vector<int32_t> copy_ranks;

  absl::Status Make(const ProgramMesh& mesh, comm::Communicator* world) {
    const int r = world->rank();
    const absl::Time soon = Soon();
    ASSIGN_OR_RETURN(experts, world->Split(r % mesh.shards, r, soon));
    ASSIGN_OR_RETURN(shards, world->Split(r / mesh.shards, r, soon));
    ASSIGN_OR_RETURN(copies, world->Split(r / mesh.copies, r, soon));
    ASSIGN_OR_RETURN(distinct, world->Split(r % mesh.copies, r, soon));
    for (int c = 0; c < mesh.copies; ++c) copy_ranks.push_back(r / mesh.copies * mesh.copies + c);
    return absl::OkStatus();
  }
};

std::string BytesOf(const Tensor& tensor) {
  return {static_cast<const char*>(tensor.view().raw()), static_cast<size_t>(tensor.bytes())};
}

}  // namespace

std::vector<ProgramCase> ProgramsOf(const ProgramMesh& mesh) {
  std::vector<ProgramCase> programs;
  if (mesh.shards == 1 && mesh.copies == 1) {
    for (const int n : {1, 3, 8}) {
      programs.push_back({absl::StrCat("chunks_", n), BuildExpertParallel({.micro_batches = n, .trains = true})});
    }
    for (int n = 2; n <= mesh.ranks; n *= 2) {
      programs.push_back({absl::StrCat("peers_", n), BuildExpertParallel({.micro_batches = n,
                                                                          .dispatch_first = true,
                                                                          .joint_gradients = true,
                                                                          .cut = pipeline::Cut::kPeers,
                                                                          .trains = true})});
    }
    using pipeline::HiddenRestore;
    using pipeline::InputRestore;
    programs.push_back(
        {"dispatch_first", BuildExpertParallel({.micro_batches = 3, .dispatch_first = true, .trains = true})});
    programs.push_back({"in_turn", BuildExpertParallel({.micro_batches = 3, .in_turn = true, .trains = true})});
    programs.push_back({"own_slots", BuildExpertParallel({.micro_batches = 4, .reuses = false, .trains = true})});
    for (const pipeline::RestoreStrategy& restore :
         {pipeline::RestoreStrategy{InputRestore::kOffload, HiddenRestore::kOffload},
          {InputRestore::kResend, HiddenRestore::kRecompute}}) {
      programs.push_back(
          {absl::StrCat("peers_restored_", restore.offloads() ? "S1" : "S4"),
           BuildExpertParallel(
               {.micro_batches = mesh.ranks, .cut = pipeline::Cut::kPeers, .trains = true, .restore = restore})});
    }
    programs.push_back(
        {"peers_alternating",
         BuildExpertParallel({.micro_batches = mesh.ranks, .cut = pipeline::Cut::kPeers, .trains = true})});
  }
  if (mesh.shards == 1 && (mesh.copies > 1 || mesh.ranks == 1)) {
    programs.push_back({"sliced_gather", BuildSliced({.trains = true}), Group::kSelf, 1, mesh.copies});
    programs.push_back({"sliced_sum", BuildSliced({.sums = true, .trains = true}), Group::kSelf, 1, 1, false});
  }
  const bool whole = mesh.shards == 1;
  programs.push_back({"baseline", BuildParm({.trains = true}), Group::kExperts, mesh.copies, mesh.copies, whole});
  programs.push_back({"s1", BuildParm({.kind = ParmKind::kS1, .trains = true}), Group::kAllExperts, 1, 1, whole});
  for (const int parts : {1, 3, mesh.ranks}) {
    programs.push_back({absl::StrCat("s2_", parts), BuildParm({.kind = ParmKind::kS2, .parts = parts, .trains = true}),
                        Group::kAllExperts, 1, mesh.copies, whole});
  }
  return programs;
}

reference::MoeMatrices ShardOf(const reference::MoeMatrices& whole, const MoeShape& shape, int shards, int s) {
  reference::MoeMatrices part = whole;
  const int64_t width = shape.ffn / shards;
  for (size_t e = 0; e < whole.gate_up.size(); ++e) {
    part.gate_up[e].clear();
    for (const int64_t first : {s * width, shape.ffn + s * width}) {
      const auto begin = whole.gate_up[e].begin() + first * shape.hidden;
      part.gate_up[e].insert(part.gate_up[e].end(), begin, begin + width * shape.hidden);
    }
    part.down[e].clear();
    for (int64_t h = 0; h < shape.hidden; ++h) {
      const auto begin = whole.down[e].begin() + h * shape.ffn + s * width;
      part.down[e].insert(part.down[e].end(), begin, begin + width);
    }
  }
  return part;
}

ProgramRunner::ProgramRunner(const ProgramMesh& mesh, const ProgramSetting& setting)
    : mesh_(mesh),
      setting_(setting),
      model_(setting.shape),
      num_rows_(std::accumulate(setting.rows.begin(), setting.rows.end(), int64_t{0})) {
  for (int s = 0; s < mesh.shards; ++s) {
    MoeShape shape = setting.shape;
    shape.ffn /= mesh.shards;
    shards_.emplace_back(shape, ShardOf(model_.Matrices(), setting.shape, mesh.shards, s), stream_);
  }
  prob_gradient_.assign(kProgramExperts, 0.01);
  prob_gradient_[1] = -0.02;
}

absl::StatusOr<ProgramOutcome> ProgramRunner::Run(const ProgramCase& program) {
  ProgramOutcome outcome;
  const auto ranks = static_cast<size_t>(mesh_.ranks);
  outcome.residuals.resize(ranks);
  outcome.d_xs.resize(ranks);
  outcome.values.resize(ranks);
  outcome.d_x_values.resize(ranks);
  std::deque<MoeTrained> trained;
  for (int r = 0; r < mesh_.ranks; ++r)
    trained.emplace_back(ShardModel(r), stream_, LocalLayout(program), LocalRank(program, r));
  auto group = MakeGroup(setting_.backend, mesh_.ranks);
  for (size_t r = 0; setting_.jitter && r < ranks; ++r) {
    group[r] = comm::MakeFaultyCommunicator(
        std::move(group[r]), {comm::CommFault::Kind::kJitter, static_cast<int64_t>(r), absl::Milliseconds(1)});
  }
  if (setting_.fails_at >= 0) {
    group[1] = comm::MakeFaultyCommunicator(std::move(group[1]), {comm::CommFault::Kind::kFail, setting_.fails_at, {}});
  }
  const auto statuses = RunRanks(&group, [&](comm::Communicator* world) {
    return RunRank(program, world, &trained[static_cast<size_t>(world->rank())], &outcome);
  });
  for (const absl::Status& status : statuses) RETURN_IF_ERROR(status);
  for (const MoeTestModel& shard : shards_) outcome.gradients.push_back(reference::ZerosLike(shard.Matrices()));
  for (int r = 0; r < mesh_.ranks; ++r)
    trained[static_cast<size_t>(r)].AddTo(&outcome.gradients[static_cast<size_t>(r % mesh_.shards)]);
  return outcome;
}

absl::StatusOr<std::string> ProgramRunner::RunAs(const ProgramCase& program, comm::Communicator* world) {
  ProgramOutcome outcome;
  const auto ranks = static_cast<size_t>(mesh_.ranks), rank = static_cast<size_t>(world->rank());
  outcome.residuals.resize(ranks);
  outcome.d_xs.resize(ranks);
  outcome.values.resize(ranks);
  outcome.d_x_values.resize(ranks);
  MoeTrained trained(ShardModel(world->rank()), stream_, LocalLayout(program), LocalRank(program, world->rank()));
  RETURN_IF_ERROR(RunRank(program, world, &trained, &outcome));
  return outcome.residuals[rank] + outcome.d_xs[rank];
}

ExpertLayout ProgramRunner::LayoutOf(const ProgramCase& program) const {
  const ExpertLayout local = LocalLayout(program);
  if (program.dispatch != Group::kAllExperts) return local;
  std::vector<std::vector<int32_t>> residents(static_cast<size_t>(mesh_.ranks));
  for (int r = 0; r < mesh_.ranks; ++r) {
    for (const int32_t expert : local.Residents(r / mesh_.shards))
      residents[static_cast<size_t>(r)].push_back(expert * mesh_.shards + r % mesh_.shards);
  }
  return ExpertLayout::FromResidents(kProgramExperts * mesh_.shards, residents);
}

absl::Status ProgramRunner::RunRank(const ProgramCase& program, comm::Communicator* world, MoeTrained* trained,
                                    ProgramOutcome* outcome) {
  const int rank = world->rank();
  ThreadPool pool(1 + rank % 2, false);
  const Stream stream = Stream::OnCpu(&pool);
  MeshGroups groups;
  RETURN_IF_ERROR(groups.Make(mesh_, world));
  const bool self = program.dispatch == Group::kSelf, all = program.dispatch == Group::kAllExperts;
  const ExpertLayout layout = LayoutOf(program);
  const bool before_gate = program.schedule.copies == pipeline::CopySplit::kBeforeGate;
  moe::MoeStats stats;
  LateOffload offload;
  const moe::MoeContext context = {
      .stream = &stream,
      .comm = self  ? groups.copies.get()
              : all ? world
                    : groups.experts.get(),
      .groups = {.shards = groups.shards.get(),
                 .copies = groups.copies.get(),
                 .copy_ranks = groups.copy_ranks,
                 .num_shards = all ? mesh_.shards : 1},
      .layout = &layout,
      .schedule = &program.schedule,
      .deadline = Soon(),
      .stats = &stats,
      .offload = &offload,
      .capacity = {.rows = setting_.capacity, .ranks = before_gate ? world : groups.distinct.get()}};
  const moe::MoeLayer layer = ShardModel(rank).LayerOf(stream, LocalLayout(program), LocalRank(program, rank));
  const auto [begin, count] = RowsOf(rank / mesh_.copies);
  const Tensor rows = *CopyToHost(stream, x().view().Rows(begin, count));
  const Tensor after = *CopyToHost(stream, residual().view().Rows(begin, count));
  const Tensor d_after = *CopyToHost(stream, d_residual().view().Rows(begin, count));
  const Tensor d_x(rows.dtype(), rows.shape());
  moe::MoeExecutor executor;
  moe::MoeBackward backward;
  moe::MoeSaved saved;
  const moe::LayerContext at = {.saved = &saved};
  RETURN_IF_ERROR(executor.Run(context, at, layer, rows, after));
  RETURN_IF_ERROR(backward.Run(context, at, layer, trained->weights(),
                               {.x = rows,
                                .d_residual = d_after,
                                .router_loss = {.prob_gradient = prob_gradient_, .z_scale = kZScale},
                                .d_x = d_x}));
  const auto r = static_cast<size_t>(rank);
  outcome->residuals[r] = BytesOf(after);
  outcome->d_xs[r] = BytesOf(d_x);
  outcome->values[r] = ValuesOf(after);
  outcome->d_x_values[r] = ValuesOf(d_x);
  // Without a backward pass the same.
  const Tensor again = *CopyToHost(stream, residual().view().Rows(begin, count));
  RETURN_IF_ERROR(executor.Run(context, {}, layer, rows, again));
  if (BytesOf(again) != outcome->residuals[r]) return absl::InternalError("other bits when nothing is saved");
  return world->status();
}

}  // namespace switchyard::test
