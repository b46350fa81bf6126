// How products are cut into tasks: a table of shapes, and that every output belongs to exactly one task.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/workers/ops/gemm_testing.h"
#include "workers/ops/gemm/gemm.h"
#include "workers/ops/gemm/gemm_tasks.h"

namespace switchyard::ops {
namespace {

TEST(GemmConfigTest, TableOfShapes) {
  struct Row {
    GemmShape shape;
    int64_t rows_per_task, min_panels;
  };
  const Row table[] = {
      // The scalar kernel takes blocks of 4 rows; a panel of 2048 k is 128 KB.
      {{.m = 1, .n = 2048, .k = 2048, .dtype = DType::kBf16}, 4, 1},
      // Small panels are taken several at a time, never more than there are; gate and up stay together.
      {{.m = 1, .n = 2048, .k = 64, .dtype = DType::kBf16}, 4, 32},
      {{.m = 1, .n = 64, .k = 64, .dtype = DType::kBf16}, 4, 2},
      {{.m = 1, .n = 2048, .k = 256, .dtype = DType::kBf16, .gated = true}, 4, 8},
      // 768 KB are 96 rows of 8 KB: three equal parts of 200.
      {{.m = 200, .n = 2048, .k = 2048, .dtype = DType::kF32}, 68, 1},
      // A router on 8 threads: two panels, so the rows make the tasks; one row cannot be cut.
      {{.m = 512, .n = 64, .k = 2048, .dtype = DType::kBf16, .num_threads = 8}, 64, 1},
      {{.m = 1, .n = 64, .k = 2048, .dtype = DType::kBf16, .num_threads = 8}, 4, 1},
      {{.m = 0, .n = 1, .k = 1, .dtype = DType::kF64}, 4, 1},
  };
  for (const Row& row : table) {
    const GemmConfig config = ChooseGemm(row.shape);
    const std::string shape = absl::StrCat(row.shape.m, "x", row.shape.n, "x", row.shape.k);
    EXPECT_EQ(config.rows_per_task, row.rows_per_task) << shape;
    EXPECT_EQ(config.min_panels, row.min_panels) << shape;
  }
}

TEST(GemmTasksTest, EveryOutputOnceAndTheLastTasksAreSmall) {
  for (bool gated : {false, true}) {
    const WeightDesc desc = {.n = 1100, .k = 256, .layout = gated ? WeightLayout::kGatedPanels : WeightLayout::kPanels};
    const Weight first(desc), second(desc);
    const Weight* const weights[] = {&first, nullptr, &second, &first};
    const std::vector<int32_t> offsets = {0, 3, 3, 5000, 5040};
    const Tensor x(DType::kBf16, {5040, 256}), y(DType::kBf16, {5040, gated ? 550 : 1100});
    const GemmJob job = {.op = "test", .x = x, .weights = weights, .offsets = offsets, .y = y, .gated = gated};
    for (int threads : {1, 2, 5, 64}) {
      std::map<int64_t, std::vector<int>> covered;  // by row
      const std::vector<GemmTask> tasks = CutIntoTasks(job, threads);
      for (const GemmTask& task : tasks) {
        EXPECT_EQ(task.weight, task.row_begin >= 3 && task.row_begin < 5000 ? &second : &first);
        EXPECT_EQ(gated ? task.panel_begin % 2 + task.panel_end % 2 : 0, 0);
        for (int64_t r = task.row_begin; r < task.row_end; ++r) {
          std::vector<int>& panels = covered[r];
          panels.resize(first.num_panels());
          for (int64_t p = task.panel_begin; p < task.panel_end; ++p) ++panels[p];
        }
      }
      EXPECT_EQ(covered.size(), 5040u);
      for (const auto& [row, panels] : covered) {
        ASSERT_EQ(std::count(panels.begin(), panels.end(), 1), first.num_panels()) << "row " << row;
      }
      EXPECT_LE(tasks.back().panel_end - tasks.back().panel_begin, threads > 1 ? 8 : first.num_panels());
    }
  }
}

}  // namespace
}  // namespace switchyard::ops
