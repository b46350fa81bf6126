// The profiles that a worker's load predictor begins with and writes, of a model small enough to be drawn here.
#include "workers/serving/rank_load_predictor.h"

#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/workers/model/temp_dir.h"
#include "workers/model/weights/dummy_weights.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard::worker {
namespace {

constexpr char kModel[] = "tests/golden/models/qwen3-qknorm";
constexpr int64_t kRows = 64;

class RankLoadPredictorTest : public testing::Test {
 protected:
  void SetUp() override {
    absl::StatusOr<model::ModelConfig> config = model::ReadModelConfig(kModel);
    ASSERT_TRUE(config.ok()) << config.status();
    config_ = *config;
    model::LoadOptions load;
    load.dtype = DType::kF32;
    for (int32_t e = 0; e < config_.num_experts; ++e) load.residents.push_back(e);
    absl::StatusOr<model::ModelWeights> weights = model::MakeDummyWeights(config_, std::move(load));
    ASSERT_TRUE(weights.ok()) << weights.status();
    absl::StatusOr<std::unique_ptr<model::Model>> model =
        model::Model::Create(stream_, config_, DType::kF32, *std::move(weights), 64);
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
  }

  absl::StatusOr<std::unique_ptr<moe::RowLoadPredictor>> Make(
      const ForecastOptions& options, placement::PlacementMode placement = placement::PlacementMode::kAgreed) {
    return MakeRankLoadPredictor(
        stream_,
        {.model = model_.get(), .weights_hash = "weights", .placement = placement, .available_bytes = free_bytes_},
        options);
  }
  // A pass of prompts' rows that take experts in turn, others in each layer.
  void Serve(moe::RowLoadPredictor* load_predictor) {
    const auto experts = static_cast<int32_t>(config_.num_experts), k = static_cast<int32_t>(config_.top_k);
    ASSERT_TRUE(load_predictor->Begin({.num_rows = kRows, .num_decode_rows = 0, .token_ids = {}}).ok());
    for (int layer = 0; layer < static_cast<int>(config_.num_moe_layers()); ++layer) {
      Tensor x(DType::kF32, {kRows, config_.hidden}), chosen(DType::kI32, {kRows, k}),
          logits(DType::kF32, {kRows, experts});
      for (int64_t i = 0; i < x.view().NumElements(); ++i)
        x.view().data<float>()[i] = static_cast<float>((i * 7 + layer) % 11);
      for (int64_t i = 0; i < logits.view().NumElements(); ++i)
        logits.view().data<float>()[i] = static_cast<float>(i % 5);
      for (int32_t i = 0; i < kRows * k; ++i) chosen.view().data<int32_t>()[i] = (i + layer) % experts;
      const auto reported = load_predictor->OnGate({.stream = &stream_},
                                                   {.index = layer, .x = x, .logits = logits, .topk_on_host = chosen});
      ASSERT_TRUE(reported.ok()) << reported.status();
    }
  }
  std::string At(const std::string& name) const { return absl::StrCat(dir_.path(), "/", name); }

  const model::TempDir dir_;
  ThreadPool pool_{1};
  const Stream stream_ = Stream::OnCpu(&pool_);
  model::ModelConfig config_;
  std::unique_ptr<model::Model> model_;
  int64_t free_bytes_ = int64_t{1} << 40;
};

// Two workers load what was learned and serve more: their files count what they loaded once.
TEST_F(RankLoadPredictorTest, OfAGroupsFilesOneHasWhatAllLoaded) {
  auto before = Make({.profile_out = At("before")});
  ASSERT_TRUE(before.ok()) << before.status();
  for (int pass = 0; pass < 3; ++pass) Serve(before->get());
  ASSERT_TRUE(SaveProfile(stream_, **before, /*rank=*/0, At("before")).ok());
  popularity::ProfileBundle merged;
  for (const int rank : {0, 1}) {
    const std::string path = At(absl::StrCat("after.", rank));
    const auto load_predictor = Make({.profile = At("before"), .profile_out = path});
    ASSERT_TRUE(load_predictor.ok()) << load_predictor.status();
    Serve(load_predictor->get());
    ASSERT_TRUE(SaveProfile(stream_, **load_predictor, rank, path).ok());
    absl::StatusOr<popularity::ProfileBundle> written = ReadProfile({.profile = path}, "weights");
    ASSERT_TRUE(written.ok()) << written.status();
    EXPECT_EQ(written->profiles[0].num_tokens(0), (rank == 0 ? 3 + 1 : 1) * kRows);
    if (rank == 0) {
      merged = *std::move(written);
    } else {
      ASSERT_TRUE(merged.Merge(*written).ok());
    }
  }
  EXPECT_EQ(merged.profiles[0].num_tokens(0), (3 + 2) * kRows);
  ASSERT_FALSE(merged.maps.empty());
  EXPECT_EQ(merged.maps[0].num_rows, (3 + 2) * kRows);
}

TEST_F(RankLoadPredictorTest, ThePapersModesAreReportedThePapersEstimate) {
  for (const placement::PlacementMode mode :
       {placement::PlacementMode::kLina, placement::PlacementMode::kNoEstimate, placement::PlacementMode::kNoFinetune,
        placement::PlacementMode::kAgreed, placement::PlacementMode::kStaticSpare}) {
    const auto load_predictor = Make({}, mode);
    ASSERT_TRUE(load_predictor.ok()) << load_predictor.status();
    for (const popularity::Phase phase : {popularity::Phase::kPrefill, popularity::Phase::kDecode}) {
      const popularity::LivePredictor first = (*load_predictor)->phase(phase).Best(1, 1);
      EXPECT_EQ(first,
                placement::IsPaper(mode) ? popularity::LivePredictor::kPath : popularity::LivePredictor::kMarginal)
          << NameOf(mode);
    }
  }
}

TEST_F(RankLoadPredictorTest, PathsAreOfTheLengthThatTheOptionsSay) {
  for (const int length : {1, 6}) {
    const ForecastOptions options = {.profile_out = At("learned"), .path_length = length};
    ASSERT_TRUE(CheckForecastOptions(options).ok());
    const auto load_predictor = Make(options);
    ASSERT_TRUE(load_predictor.ok()) << load_predictor.status();
    EXPECT_EQ((*load_predictor)->phase(popularity::Phase::kDecode).profiles()[0].identity().path_length, length);
    ASSERT_TRUE(SaveProfile(stream_, **load_predictor, 0, At("learned")).ok());
    EXPECT_TRUE(Make({.profile = At("learned"), .path_length = length}).ok());
    const std::string other(Make({.profile = At("learned"), .path_length = 4}).status().message());
    EXPECT_EQ(other,
              absl::StrCat("--profile=", At("learned"), ": its paths are of ", length, " layers, --path_length=4"));
  }
  for (const int length : {0, 7}) {
    EXPECT_EQ(CheckForecastOptions({.path_length = length}).message(),
              absl::StrCat("--path_length=", length, ": must be within [1, 6]"));
  }
}

TEST_F(RankLoadPredictorTest, SumsThatDoNotFitIntoMemoryAreRefusedWithBothFigures) {
  // Per layer [w, w + 2 E] doubles, w = H + 1; to solve, twice a layer's more.
  const int64_t width = config_.hidden + 1, layer = 8 * width * (width + 2 * config_.num_experts);
  const int64_t needed = (config_.num_moe_layers() + 2) * layer;
  free_bytes_ = needed;
  EXPECT_TRUE(Make({.profile_out = At("learned")}).ok());
  free_bytes_ = needed - 1;
  const absl::Status status = Make({.profile_out = At("learned")}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(), absl::StrCat("--profile_out=", At("learned"), ": fitting probes takes ", needed,
                                           " bytes of memory, ", needed - 1, " are free"));
  EXPECT_TRUE(Make({}).ok()) << "while serving it is bounded";
}

}  // namespace
}  // namespace switchyard::worker
