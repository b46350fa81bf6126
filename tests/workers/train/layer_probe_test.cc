// What ranks measure of a layer is the same on all of them, and such that a number of chunks follows.
#include "workers/train/chunks/layer_probe.h"

#include <vector>

#include "gtest/gtest.h"
#include "tests/workers/train/training_group.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard::train {
namespace {

constexpr char kModel[] = "tests/golden/models/olmoe-clip";  // the experts' activation is SwiGLU

TEST(LayerProbeTest, AnEvenShareOfALayersRows) {
  TrainingGroup group(kModel, {.world = 2});
  const moe::MoeLayerDesc& desc = group.model(0).moe_layer(0)->desc;
  const auto hidden = static_cast<double>(desc.hidden), ffn = static_cast<double>(desc.expert_ffn);
  ASSERT_EQ(desc.router.top_k, 4);
  const pipeline::LayerLoad load = LoadOf(group.model(0), 200, 2);
  EXPECT_DOUBLE_EQ(load.rows, 400);  // 100 of its own, four choices each
  // A row goes to the other rank unless all four choices are this one's: 15 of 16; half of the outputs come from there.
  EXPECT_DOUBLE_EQ(load.dispatch_bytes, 93.75 * hidden * 4);
  EXPECT_DOUBLE_EQ(load.combine_bytes, 200 * hidden * 4);
  EXPECT_DOUBLE_EQ(load.input_bytes, 187.5 * hidden * 4);
  EXPECT_DOUBLE_EQ(load.hidden_bytes, 400 * 3 * ffn * 4);  // hidden rows, and both sums
}

TEST(LayerProbeTest, AllRanksGetTheSame) {
  for (const int world : {2, 4}) {
    TrainingGroup group(kModel, {.world = world});
    std::vector<LayerFigures> figures(static_cast<size_t>(world));
    for (const absl::Status& status : group.OnEach([&](int rank) -> absl::Status {
           ThreadPool pool(1);
           const Stream stream = Stream::OnCpu(&pool);
           absl::StatusOr<LayerFigures> measured = ProbeLayer({.stream = &stream,
                                                               .model = &group.model(rank),
                                                               .comm = group.comm(rank),
                                                               .rows = 96,
                                                               .open_file = {},
                                                               .limit = absl::Seconds(60)});
           if (measured.ok()) figures[static_cast<size_t>(rank)] = *std::move(measured);
           return measured.status();
         })) {
      EXPECT_TRUE(status.ok()) << status;
    }
    for (const LayerFigures& each : figures) {
      EXPECT_EQ(each.text, figures[0].text);
      EXPECT_GT(each.times.experts.At(each.load.rows), 0);
      EXPECT_EQ(each.times.experts.At(each.load.rows), figures[0].times.experts.At(each.load.rows));
      EXPECT_EQ(each.times.all_to_all.At(1000), figures[0].times.all_to_all.At(1000));
      EXPECT_EQ(each.times.copy.At(1000), 0) << "not measured";
      for (const double speed : {each.times.beside.all_to_all, each.times.beside.experts}) {
        EXPECT_GT(speed, 0);
        EXPECT_LE(speed, 1);
      }
      const pipeline::ChunkModel model(each.times, each.load, {});
      EXPECT_EQ(model.Choose(8), pipeline::ChunkModel(figures[0].times, each.load, {}).Choose(8));
    }
  }
}

}  // namespace
}  // namespace switchyard::train
