// Every program of a MoE layer that a builder makes, forward and backward, on groups of threads and processes' sockets:
// beside the naive reference of one process, and, where a program only moves rows, to the bits of one rank.
#include <algorithm>
#include <deque>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/pipeline/build_expert_parallel.h"
#include "scheduler/pipeline/build_parm.h"
#include "scheduler/pipeline/build_sliced.h"
#include "tests/workers/comm/faulty_communicator.h"
#include "tests/workers/moe/moe_training.h"
#include "workers/moe/layer/moe_backward.h"
#include "workers/tensor/copy.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard::moe {
namespace {

using pipeline::BuildExpertParallel;
using pipeline::BuildParm;
using pipeline::BuildSliced;
using pipeline::Group;
using pipeline::MoeSchedule;
using pipeline::ParmKind;
using testing::HasSubstr;

constexpr int kExperts = 8;
constexpr int64_t kFfn = 48;

// P ranks in groups: neighbours hold shards of the same experts, neighbours have the same rows.
struct Mesh {
  int ranks = 1, shards = 1, copies = 1;
};

struct Program {
  std::string name;
  MoeSchedule schedule;
  Group dispatch = Group::kExperts;
  // How often gradients of experts' and of the router's weights occur, summed over all ranks.
  int expert_times = 1, router_times = 1;
  bool one_ranks_bits = true;
};

std::vector<Program> ProgramsOf(const Mesh& mesh) {
  std::vector<Program> programs;
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
    programs.push_back(
        {"peers_alternating",
         BuildExpertParallel({.micro_batches = mesh.ranks, .cut = pipeline::Cut::kPeers, .trains = true})});
  }
  if (mesh.shards == 1 && mesh.copies == mesh.ranks) {
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

// What varies besides.
struct Setting {
  test::MoeShape shape;
  std::vector<int64_t> rows;  // of each group of copies
  int64_t capacity = 0;       // of an expert
  test::Backend backend = test::Backend::kLocal;
  bool jitter = false;
};

// Shard `s` of a model's experts.
reference::MoeMatrices ShardOf(const reference::MoeMatrices& whole, const test::MoeShape& shape, int shards, int s) {
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

struct Outcome {
  std::vector<std::string> residuals, d_xs;             // [P] bytes
  std::vector<std::vector<double>> values, d_x_values;  // [P]
  std::vector<reference::MoeMatrices> gradients;        // [shards]
};

// One rank's communicators of the mesh.
struct Groups {
  std::unique_ptr<comm::Communicator> experts, shards, copies, distinct;
  std::vector<int32_t> copy_ranks;

  absl::Status Make(const Mesh& mesh, comm::Communicator* world) {
    const int r = world->rank();
    const absl::Time soon = test::Soon();
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

class Runner {
 public:
  Runner(const Mesh& mesh, const Setting& setting)
      : mesh_(mesh),
        setting_(setting),
        model_(setting.shape),
        num_rows_(std::accumulate(setting.rows.begin(), setting.rows.end(), int64_t{0})) {
    for (int s = 0; s < mesh.shards; ++s) {
      test::MoeShape shape = setting.shape;
      shape.ffn /= mesh.shards;
      shards_.emplace_back(shape, ShardOf(model_.Matrices(), setting.shape, mesh.shards, s), stream_);
    }
    prob_gradient_.assign(kExperts, 0.01);
    prob_gradient_[1] = -0.02;
  }

  absl::StatusOr<Outcome> Run(const Program& program) {
    Outcome outcome;
    const auto ranks = static_cast<size_t>(mesh_.ranks);
    outcome.residuals.resize(ranks);
    outcome.d_xs.resize(ranks);
    outcome.values.resize(ranks);
    outcome.d_x_values.resize(ranks);
    std::deque<test::MoeTrained> trained;
    for (int r = 0; r < mesh_.ranks; ++r)
      trained.emplace_back(ShardModel(r), stream_, LocalLayout(program), LocalRank(program, r));
    auto group = test::MakeGroup(setting_.backend, mesh_.ranks);
    for (size_t r = 0; setting_.jitter && r < ranks; ++r) {
      group[r] = comm::MakeFaultyCommunicator(
          std::move(group[r]), {comm::CommFault::Kind::kJitter, static_cast<int64_t>(r), absl::Milliseconds(1)});
    }
    const auto statuses = test::RunRanks(&group, [&](comm::Communicator* world) {
      return RunRank(program, world, &trained[static_cast<size_t>(world->rank())], &outcome);
    });
    for (const absl::Status& status : statuses) RETURN_IF_ERROR(status);
    for (const test::MoeTestModel& shard : shards_) outcome.gradients.push_back(reference::ZerosLike(shard.Matrices()));
    for (int r = 0; r < mesh_.ranks; ++r)
      trained[static_cast<size_t>(r)].AddTo(&outcome.gradients[static_cast<size_t>(r % mesh_.shards)]);
    return outcome;
  }

  Tensor x() const { return model_.RandomRows(num_rows_, 6); }
  Tensor residual() const { return model_.RandomResidual(num_rows_, 7); }
  Tensor d_residual() const { return model_.RandomResidual(num_rows_, 8); }
  // Rows [begin, begin + count) of the group of copies.
  std::pair<int64_t, int64_t> RowsOf(int group) const {
    return {std::accumulate(setting_.rows.begin(), setting_.rows.begin() + group, int64_t{0}),
            setting_.rows[static_cast<size_t>(group)]};
  }
  const test::MoeTestModel& model() const { return model_; }
  const std::vector<double>& prob_gradient() const { return prob_gradient_; }
  static constexpr double kZScale = 1e-2;

 private:
  const test::MoeTestModel& ShardModel(int rank) const { return shards_[static_cast<size_t>(rank % mesh_.shards)]; }
  // Where the experts of a rank are in the order of whole ones.
  ExpertLayout LocalLayout(const Program& program) const {
    return ExpertLayout::Contiguous(kExperts,
                                    program.dispatch == Group::kSelf ? mesh_.copies : mesh_.ranks / mesh_.shards);
  }
  int LocalRank(const Program& program, int rank) const {
    return program.dispatch == Group::kSelf ? rank % mesh_.copies : rank / mesh_.shards;
  }
  // Of the group that rows are dispatched among.
  ExpertLayout LayoutOf(const Program& program) const {
    const ExpertLayout local = LocalLayout(program);
    if (program.dispatch != Group::kAllExperts) return local;
    std::vector<std::vector<int32_t>> residents(static_cast<size_t>(mesh_.ranks));
    for (int r = 0; r < mesh_.ranks; ++r) {
      for (const int32_t expert : local.Residents(r / mesh_.shards))
        residents[static_cast<size_t>(r)].push_back(expert * mesh_.shards + r % mesh_.shards);
    }
    return ExpertLayout::FromResidents(kExperts * mesh_.shards, residents);
  }

  absl::Status RunRank(const Program& program, comm::Communicator* world, test::MoeTrained* trained, Outcome* outcome) {
    const int rank = world->rank();
    ThreadPool pool(1 + rank % 2, false);
    const Stream stream = Stream::OnCpu(&pool);
    Groups groups;
    RETURN_IF_ERROR(groups.Make(mesh_, world));
    const bool self = program.dispatch == Group::kSelf, all = program.dispatch == Group::kAllExperts;
    const ExpertLayout layout = LayoutOf(program);
    const bool before_gate = program.schedule.copies == pipeline::CopySplit::kBeforeGate;
    MoeStats stats;
    const MoeContext context = {
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
        .deadline = test::Soon(),
        .stats = &stats,
        .capacity = {.rows = setting_.capacity, .ranks = before_gate ? world : groups.distinct.get()}};
    const MoeLayer layer = ShardModel(rank).LayerOf(stream, LocalLayout(program), LocalRank(program, rank));
    const auto [begin, count] = RowsOf(rank / mesh_.copies);
    const Tensor rows = *CopyToHost(stream, x().view().Rows(begin, count));
    const Tensor after = *CopyToHost(stream, residual().view().Rows(begin, count));
    const Tensor d_after = *CopyToHost(stream, d_residual().view().Rows(begin, count));
    const Tensor d_x(rows.dtype(), rows.shape());
    MoeExecutor executor;
    MoeBackward backward;
    MoeSaved saved;
    const LayerContext at = {.saved = &saved};
    RETURN_IF_ERROR(executor.Run(context, at, layer, rows, after));
    RETURN_IF_ERROR(backward.Run(context, at, layer, trained->weights(),
                                 {.x = rows,
                                  .d_residual = d_after,
                                  .router_loss = {.prob_gradient = prob_gradient_, .z_scale = kZScale},
                                  .d_x = d_x}));
    const auto r = static_cast<size_t>(rank);
    outcome->residuals[r] = BytesOf(after);
    outcome->d_xs[r] = BytesOf(d_x);
    outcome->values[r] = test::ValuesOf(after);
    outcome->d_x_values[r] = test::ValuesOf(d_x);
    // Without a backward pass the same.
    const Tensor again = *CopyToHost(stream, residual().view().Rows(begin, count));
    RETURN_IF_ERROR(executor.Run(context, {}, layer, rows, again));
    if (BytesOf(again) != outcome->residuals[r]) return absl::InternalError("other bits when nothing is saved");
    return world->status();
  }

  const Mesh mesh_;
  const Setting setting_;
  ThreadPool pool_{1, false};
  const Stream stream_ = Stream::OnCpu(&pool_);
  const test::MoeTestModel model_;
  std::deque<test::MoeTestModel> shards_;  // of it
  const int64_t num_rows_;
  std::vector<double> prob_gradient_;
};

void ExpectNear(absl::Span<const double> actual, absl::Span<const double> expected, double times, double tolerance,
                absl::string_view what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  double largest = 0;
  for (const double value : expected) largest = std::max(largest, std::abs(times * value));
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_NEAR(actual[i], times * expected[i], tolerance * largest + 1e-300) << what << " element " << i;
  }
}

// Beside the reference, whose rows know no capacity.
void ExpectReference(const Mesh& mesh, const Program& program, const Runner& runner, const Outcome& outcome,
                     double tolerance) {
  const Tensor x = runner.x(), residual = runner.residual(), d_residual = runner.d_residual();
  const test::MoeTrainingRun training = {
      .run = {}, .prob_gradient = runner.prob_gradient(), .z_scale = Runner::kZScale};
  const reference::MoeAnswer expected =
      reference::MoeBackward(test::ProblemOf(runner.model(), training, x, d_residual));
  std::vector<double> y = test::ValuesOf(residual);
  for (size_t i = 0; i < y.size(); ++i) y[i] += expected.y[i];
  const int64_t hidden = x.dim(1);
  for (int r = 0; r < mesh.ranks; ++r) {
    const auto [begin, count] = runner.RowsOf(r / mesh.copies);
    const auto part = [&, begin = begin * hidden, count = count * hidden](const std::vector<double>& all) {
      return absl::MakeConstSpan(all).subspan(static_cast<size_t>(begin), static_cast<size_t>(count));
    };
    ASSERT_NO_FATAL_FAILURE(ExpectNear(outcome.values[static_cast<size_t>(r)], part(y), 1, tolerance, "residual"));
    ASSERT_NO_FATAL_FAILURE(
        ExpectNear(outcome.d_x_values[static_cast<size_t>(r)], part(expected.dx), 1, tolerance, "d_x"));
  }
  std::vector<double> router(expected.gradients.router.size());
  for (int s = 0; s < mesh.shards; ++s) {
    const reference::MoeMatrices& sums = outcome.gradients[static_cast<size_t>(s)];
    const reference::MoeMatrices wanted = ShardOf(expected.gradients, runner.model().shape(), mesh.shards, s);
    for (size_t i = 0; i < router.size(); ++i) router[i] += sums.router[i];
    for (size_t e = 0; e < sums.gate_up.size(); ++e) {
      ASSERT_NO_FATAL_FAILURE(
          ExpectNear(sums.gate_up[e], wanted.gate_up[e], program.expert_times, tolerance, "gate_up"));
      ASSERT_NO_FATAL_FAILURE(ExpectNear(sums.down[e], wanted.down[e], program.expert_times, tolerance, "down"));
    }
  }
  ExpectNear(router, expected.gradients.router, program.router_times, tolerance, "router");
}

// All copies have the same, and where no sum is cut one rank's bits.
void ExpectBits(const Mesh& mesh, const Program& program, const Runner& runner, const Outcome& outcome,
                const Outcome& alone) {
  for (int r = 0; r < mesh.ranks; ++r) {
    const auto first = static_cast<size_t>(r / mesh.copies * mesh.copies);
    EXPECT_TRUE(outcome.residuals[static_cast<size_t>(r)] == outcome.residuals[first]) << "rank " << r;
    EXPECT_TRUE(outcome.d_xs[static_cast<size_t>(r)] == outcome.d_xs[first]) << "rank " << r;
    if (!program.one_ranks_bits) continue;
    const auto [begin, count] = runner.RowsOf(r / mesh.copies);
    const auto part = [&, begin = begin, count = count](const std::string& all, const std::string& of_rank) {
      const size_t row = count == 0 ? 0 : of_rank.size() / static_cast<size_t>(count);
      return all.substr(static_cast<size_t>(begin) * row, of_rank.size());
    };
    EXPECT_TRUE(outcome.residuals[static_cast<size_t>(r)] ==
                part(alone.residuals[0], outcome.residuals[static_cast<size_t>(r)]))
        << "rank " << r;
    EXPECT_TRUE(outcome.d_xs[static_cast<size_t>(r)] == part(alone.d_xs[0], outcome.d_xs[static_cast<size_t>(r)]))
        << "rank " << r;
  }
}

class MoeProgramsTest : public testing::TestWithParam<Mesh> {};

std::vector<Mesh> Meshes() {
  std::vector<Mesh> meshes;
  for (const int ranks : {1, 2, 4, 8}) {
    for (int shards = 1; shards <= std::min(ranks, 4); shards *= 2) {
      for (int copies = 1; copies <= ranks; copies *= 2) meshes.push_back({ranks, shards, copies});
    }
  }
  return meshes;
}

INSTANTIATE_TEST_SUITE_P(Meshes, MoeProgramsTest, testing::ValuesIn(Meshes()), [](const auto& i) {
  return absl::StrCat(i.param.ranks, "ranks_", i.param.shards, "shards_", i.param.copies, "copies");
});

// Uneven, a group without rows, fewer rows than ranks.
std::vector<int64_t> UnevenRows(int groups, int seed) {
  static constexpr int64_t kRows[] = {7, 0, 1, 12, 3, 5, 2, 9};
  std::vector<int64_t> rows;
  for (int g = 0; g < groups; ++g) rows.push_back(kRows[(g + seed) % 8]);
  return rows;
}

TEST_P(MoeProgramsTest, BesideOneProcess) {
  RowScratch::Spoil();
  const Mesh& mesh = GetParam();
  const int groups = mesh.ranks / mesh.copies;
  int seed = 0;
  for (const Program& program : ProgramsOf(mesh)) {
    for (const DType dtype : {DType::kF64, DType::kF32, DType::kBf16}) {
      for (const bool drops : {false, true}) {
        ++seed;
        Setting setting = {.shape = {.ffn = kFfn,
                                     .num_experts = kExperts,
                                     .top_k = 1 << seed % 4,
                                     .renormalize = seed % 2 == 0,
                                     .dtype = dtype},
                           .rows = UnevenRows(groups, seed),
                           .capacity = drops ? 2 : 0,
                           .jitter = seed % 5 == 0};
        SCOPED_TRACE(
            absl::StrCat(program.name, " ", DTypeName(dtype), drops ? " drops" : "", " top ", setting.shape.top_k));
        Runner runner(mesh, setting);
        const auto outcome = runner.Run(program);
        ASSERT_TRUE(outcome.ok()) << outcome.status();
        if (!drops && dtype != DType::kBf16) {
          ASSERT_NO_FATAL_FAILURE(
              ExpectReference(mesh, program, runner, *outcome, dtype == DType::kF64 ? 1e-12 : 1e-5));
        }
        setting.rows = {std::accumulate(setting.rows.begin(), setting.rows.end(), int64_t{0})};
        setting.jitter = false;
        const auto alone = Runner({}, setting).Run({"alone", BuildExpertParallel({.trains = true})});
        ASSERT_TRUE(alone.ok()) << alone.status();
        ExpectBits(mesh, program, runner, *outcome, *alone);
      }
    }
  }
}

// Over sockets: one of each kind.
TEST(MoeProgramsSocketTest, TheBitsOfThreads) {
  for (const Mesh& mesh : {Mesh{4, 1, 1}, Mesh{4, 1, 4}, Mesh{4, 2, 2}}) {
    const int groups = mesh.ranks / mesh.copies;
    for (const Program& program : ProgramsOf(mesh)) {
      SCOPED_TRACE(program.name);
      Setting setting = {.shape = {.ffn = kFfn, .num_experts = kExperts, .dtype = DType::kBf16},
                         .rows = UnevenRows(groups, 3)};
      const auto threads = Runner(mesh, setting).Run(program);
      setting.backend = test::Backend::kSocket;
      const auto sockets = Runner(mesh, setting).Run(program);
      ASSERT_TRUE(threads.ok() && sockets.ok()) << threads.status() << sockets.status();
      EXPECT_TRUE(threads->residuals == sockets->residuals);
      EXPECT_TRUE(threads->d_xs == sockets->d_xs);
    }
  }
}

}  // namespace
}  // namespace switchyard::moe
