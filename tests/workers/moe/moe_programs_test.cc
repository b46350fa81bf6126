// Every program of a MoE layer that a builder makes, forward and backward, on ranks that are threads: beside the naive
// reference of one process, and, where a program only moves rows, to the bits of one rank.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "scheduler/pipeline/build_expert_parallel.h"
#include "scheduler/pipeline/build_parm.h"
#include "scheduler/pipeline/build_sliced.h"
#include "tests/workers/moe/program_run.h"
#include "workers/moe/layer/moe_layer.h"
#include "workers/moe/layer/row_scratch.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard::moe {
namespace {

using test::kProgramExperts;
using test::kProgramFfn;
using test::ProgramCase;
using test::ProgramMesh;
using test::ProgramOutcome;
using test::ProgramRunner;
using test::ProgramSetting;
using test::ProgramsOf;

void ExpectNear(absl::Span<const double> actual, absl::Span<const double> expected, double times, double tolerance,
                absl::string_view what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  double largest = 0;
  for (const double value : expected) largest = std::max(largest, std::abs(times * value));
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_NEAR(actual[i], times * expected[i], tolerance * largest + 1e-300) << what << " element " << i;
  }
}

// Of all ranks together, beside those of one process.
void ExpectGradients(const ProgramMesh& mesh, const ProgramCase& program, const ProgramRunner& runner,
                     const ProgramOutcome& outcome, const reference::MoeMatrices& expected, double tolerance) {
  std::vector<double> router(expected.router.size());
  for (int s = 0; s < mesh.shards; ++s) {
    const reference::MoeMatrices& sums = outcome.gradients[static_cast<size_t>(s)];
    const reference::MoeMatrices wanted = test::ShardOf(expected, runner.model().shape(), mesh.shards, s);
    for (size_t i = 0; i < router.size(); ++i) router[i] += sums.router[i];
    for (size_t e = 0; e < sums.gate_up.size(); ++e) {
      ASSERT_NO_FATAL_FAILURE(
          ExpectNear(sums.gate_up[e], wanted.gate_up[e], program.expert_times, tolerance, "gate_up"));
      ASSERT_NO_FATAL_FAILURE(ExpectNear(sums.down[e], wanted.down[e], program.expert_times, tolerance, "down"));
    }
  }
  ExpectNear(router, expected.router, program.router_times, tolerance, "router");
}

// Beside the reference, whose rows know no capacity.
void ExpectReference(const ProgramMesh& mesh, const ProgramCase& program, const ProgramRunner& runner,
                     const ProgramOutcome& outcome, double tolerance) {
  const Tensor x = runner.x(), residual = runner.residual(), d_residual = runner.d_residual();
  const test::MoeTrainingRun training = {
      .run = {}, .prob_gradient = runner.prob_gradient(), .z_scale = ProgramRunner::kZScale};
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
  ExpectGradients(mesh, program, runner, outcome, expected.gradients, tolerance);
}

// All copies have the same, and where no sum is cut one rank's bits.
void ExpectBits(const ProgramMesh& mesh, const ProgramCase& program, const ProgramRunner& runner,
                const ProgramOutcome& outcome, const ProgramOutcome& alone) {
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

double ToleranceOf(DType dtype) {
  return dtype == DType::kF64 ? 1e-12 : dtype == DType::kF32 ? 1e-5 : dtype == DType::kBf16 ? 4e-2 : 5e-3;
}

// Beside one rank, also where choices are dropped.
void ExpectNearAlone(const ProgramMesh& mesh, const ProgramCase& program, const ProgramRunner& runner,
                     const ProgramOutcome& outcome, const ProgramOutcome& alone, double tolerance) {
  const auto hidden = static_cast<int64_t>(runner.model().shape().hidden);
  for (int r = 0; r < mesh.ranks; ++r) {
    const auto [begin, count] = runner.RowsOf(r / mesh.copies);
    const auto part = [&, begin = begin * hidden, count = count * hidden](const std::vector<double>& all) {
      return absl::MakeConstSpan(all).subspan(static_cast<size_t>(begin), static_cast<size_t>(count));
    };
    const auto rank = static_cast<size_t>(r);
    ASSERT_NO_FATAL_FAILURE(ExpectNear(outcome.values[rank], part(alone.values[0]), 1, tolerance, "residual"));
    ASSERT_NO_FATAL_FAILURE(ExpectNear(outcome.d_x_values[rank], part(alone.d_x_values[0]), 1, tolerance, "d_x"));
  }
  ExpectGradients(mesh, program, runner, outcome, alone.gradients[0], tolerance);
}

class MoeProgramsTest : public testing::TestWithParam<ProgramMesh> {};

std::vector<ProgramMesh> Meshes() {
  std::vector<ProgramMesh> meshes;
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
  const ProgramMesh& mesh = GetParam();
  const int groups = mesh.ranks / mesh.copies;
  int seed = 0;
  for (const ProgramCase& program : ProgramsOf(mesh)) {
    for (const DType dtype : {DType::kF64, DType::kF32, DType::kBf16, DType::kF16}) {
      for (const bool drops : {false, true}) {
        ++seed;
        ProgramSetting setting = {.shape = {.ffn = kProgramFfn,
                                            .num_experts = kProgramExperts,
                                            .top_k = 1 << seed % 4,
                                            .renormalize = seed % 2 == 0,
                                            .dtype = dtype},
                                  .rows = UnevenRows(groups, seed),
                                  .capacity = drops ? 2 : 0,
                                  .jitter = seed % 5 == 0};
        SCOPED_TRACE(
            absl::StrCat(program.name, " ", DTypeName(dtype), drops ? " drops" : "", " top ", setting.shape.top_k));
        ProgramRunner runner(mesh, setting);
        const auto outcome = runner.Run(program);
        ASSERT_TRUE(outcome.ok()) << outcome.status();
        if (!drops && DTypeBytes(dtype) >= 4) {
          ASSERT_NO_FATAL_FAILURE(
              ExpectReference(mesh, program, runner, *outcome, dtype == DType::kF64 ? 1e-12 : 1e-5));
        }
        setting.rows = {std::accumulate(setting.rows.begin(), setting.rows.end(), int64_t{0})};
        setting.jitter = false;
        const auto alone = ProgramRunner({}, setting).Run({"alone", pipeline::BuildExpertParallel({.trains = true})});
        ASSERT_TRUE(alone.ok()) << alone.status();
        ExpectBits(mesh, program, runner, *outcome, *alone);
        ExpectNearAlone(mesh, program, runner, *outcome, *alone, ToleranceOf(dtype));
      }
    }
  }
}

// A layer refuses what it cannot run, each with its reason, before anything is sent.
TEST(MoeProgramsErrorsTest, SaysWhatDoesNotFit) {
  using pipeline::BuildExpertParallel;
  using pipeline::BuildParm;
  using pipeline::BuildSliced;
  const test::MoeTestModel model(test::MoeShape{});
  ThreadPool pool(1, false);
  const Stream stream = Stream::OnCpu(&pool);
  const ExpertLayout layout = ExpertLayout::Contiguous(8, 1);
  const auto ranks = test::MakeGroup(test::Backend::kLocal, 1);
  const Tensor x = model.RandomRows(3, 1), residual = model.RandomResidual(3, 2);
  MoeStats stats;
  MoeExecutor executor;
  MoeLayer layer = model.LayerOf(stream, layout, 0);
  const auto message = [&](const pipeline::MoeSchedule& schedule, const LayerGroups& groups, bool adds = false) {
    const MoeContext context = {.stream = &stream,
                                .comm = ranks[0].get(),
                                .groups = groups,
                                .layout = &layout,
                                .schedule = &schedule,
                                .deadline = test::Soon(),
                                .stats = &stats,
                                .add_outputs = adds};
    return std::string(executor.Run(context, {}, layer, x, residual).message());
  };
  const LayerGroups all = {.shards = ranks[0].get(), .copies = ranks[0].get()};
  EXPECT_EQ(message(BuildParm({}), {}),
            "moe_layer: schedule deepspeed_moe: AG0 among shards, of which there is no group");
  EXPECT_EQ(message(BuildParm({.kind = pipeline::ParmKind::kS2}), all), "moe_layer: ranks of 0 copies of 1");
  EXPECT_EQ(message(BuildSliced({}), {.shards = ranks[0].get()}),
            "moe_layer: schedule sliced_gather: S0 wants the experts among copies");
  EXPECT_EQ(message(BuildExpertParallel({.micro_batches = 2, .cut = pipeline::Cut::kPeers}), all),
            "moe_layer: schedule expert_parallel: 1 peers in 2 chunks");
  EXPECT_EQ(message(BuildParm({}), all, true),
            "moe_layer: schedule deepspeed_moe with outputs that are added before they travel");
  EXPECT_EQ(message(BuildExpertParallel({}), {.num_shards = 3}), "moe_layer: a layout of 8 experts' shards, of each 3");
  layer.weights.up_biases = layer.weights.down_biases = std::vector<TensorView>(8);
  EXPECT_EQ(message(BuildParm({}), all), "moe_layer: schedule deepspeed_moe with experts with biases");
}

// A rank's error ends all groups, so that no rank waits for it until the deadline.
TEST(MoeProgramsFaultTest, ARankThatFailsEndsAll) {
  for (const ProgramMesh& mesh : {ProgramMesh{4, 2, 2}, ProgramMesh{2, 2, 1}}) {
    for (const ProgramCase& program : ProgramsOf(mesh)) {
      SCOPED_TRACE(program.name);
      ProgramSetting setting = {.shape = {.ffn = kProgramFfn, .num_experts = kProgramExperts}, .rows = {5, 6}};
      int failed = 0;
      for (setting.fails_at = 6; setting.fails_at < 30; ++setting.fails_at) {
        const absl::Time begin = absl::Now();
        if (!ProgramRunner(mesh, setting).Run(program).ok()) ++failed;
        EXPECT_LT(absl::Now() - begin, (test::Soon() - absl::Now()) / 2);
      }
      EXPECT_GT(failed, 4);
    }
  }
}

}  // namespace
}  // namespace switchyard::moe
