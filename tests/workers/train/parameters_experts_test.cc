// A rank's parameters become those of other experts.
#include <algorithm>
#include <atomic>
#include <map>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "scheduler/base/check.h"
#include "tests/workers/model/fixture.h"
#include "tests/workers/train/fake_state_file.h"
#include "tests/workers/train/training_group.h"
#include "workers/comm/local/local_communicator.h"
#include "workers/tensor/thread_pool.h"
#include "workers/train/parameters/parameters.h"

namespace switchyard::train {
namespace {

OpenStateFileFn InFile(bool offload) { return offload ? OpenStateFileFn(FakeStateFile::Open) : nullptr; }

// Masters and moments are in a file at first, and later.
class ParametersExpertsTest : public ::testing::TestWithParam<std::tuple<std::string, bool, bool>> {
 protected:
  const TrainingGolden golden_ = LoadTrainingGolden(std::get<0>(GetParam()));
  const bool offload_ = std::get<1>(GetParam()), then_offload_ = std::get<2>(GetParam());
  TrainingGroup group_{golden_.dir, {.dtype = DType::kF64, .offload = [this](int) { return InFile(offload_); }}};
  Parameters& parameters_ = group_.parameters(0);
  model::Model& model_ = group_.model(0);

  NewExperts Allocated(std::vector<int32_t> residents) {
    absl::StatusOr<NewExperts> experts = parameters_.AllocateExperts(std::move(residents), InFile(then_offload_));
    SY_CHECK_OK(experts.status());
    return *std::move(experts);
  }
  // value: of the masters of those that are new; their moments are 0.
  void Become(std::vector<int32_t> residents, double (*value)(const ParameterBlock&)) {
    NewExperts experts = Allocated(std::move(residents));
    const absl::Status offloaded = parameters_.BringExperts(
        &experts, [&](int32_t layer, absl::Span<ParameterBlock* const> from, absl::Span<ParameterBlock* const> to) {
          for (const ParameterBlock* block : from) EXPECT_EQ(block->layer, layer);
          for (const ParameterBlock* block : to) {
            EXPECT_EQ(block->layer, layer);
            for (int64_t i = 0; i < block->size(); ++i) {
              block->master.data<double>()[i] = value(*block);
              block->mean.data<double>()[i] = block->mean_squares.data<double>()[i] = 0;
            }
          }
          return absl::OkStatus();
        });
    ASSERT_TRUE(offloaded.ok()) << offloaded;
    parameters_.AdoptExperts(std::move(experts));
    EXPECT_EQ(parameters_.offload() != nullptr, then_offload_);
  }
  static double NoValue(const ParameterBlock&) { return 0; }

  using Values = std::map<std::string, std::vector<double>>;
  // Of everything but routed experts, or of one of those.
  static Values Of(const Values& all, const Parameters& parameters, int32_t expert) {
    Values some;
    for (const ParameterBlock& block : parameters.blocks()) {
      for (const model::Param& part : block.parts) {
        if (block.expert == expert) some[part.name] = all.at(part.name);
      }
    }
    return some;
  }

  // What training reads fits together: blocks, weights, transposes, views of gradients.
  void ExpectWhole(const std::vector<int32_t>& residents) {
    EXPECT_EQ(model_.weights().residents, residents);
    int64_t blocks = 0;
    for (size_t i = 0; i < model_.weights().layers.size(); ++i) {
      const std::optional<model::MoeWeights>& moe = model_.weights().layers[i].moe;
      if (!moe.has_value()) continue;
      const model::MoeGradients& gradients = *parameters_.gradients().layers[i].moe;
      ASSERT_EQ(moe->experts.size(), residents.size());
      ASSERT_EQ(gradients.experts.size(), residents.size());
      for (size_t slot = 0; slot < residents.size(); ++slot) {
        for (const ParameterBlock& block : parameters_.blocks()) {
          if (block.layer != static_cast<int32_t>(i) || block.expert != residents[slot]) continue;
          ++blocks;
          if (block.weight == nullptr) {
            const bool down = block.tensor == &moe->experts[slot].down_bias;
            EXPECT_TRUE(down || block.tensor == &moe->experts[slot].up_bias);
            const ops::FfnGradients& trained = gradients.experts[slot];
            EXPECT_EQ((down ? trained.down_bias : trained.up_bias).raw(), block.gradient.view().raw());
            continue;
          }
          const bool down = block.weight == &moe->experts[slot].down;
          EXPECT_TRUE(down || block.weight == &moe->experts[slot].gate_up);
          const ops::TrainedMatrix& trained = down ? gradients.experts[slot].down : gradients.experts[slot].gate_up;
          EXPECT_EQ(trained.gradient.raw(), block.gradient.view().raw());
          EXPECT_EQ(trained.transposed, &block.transposed);
          EXPECT_EQ(block.weight->n(), block.transposed.k());
        }
        const ops::WeightTable& table = model_.moe_layer(static_cast<int64_t>(i))->weights.gate_up;
        EXPECT_EQ(table.group()[static_cast<int64_t>(slot)], &moe->experts[slot].gate_up);
      }
    }
    const int64_t of_expert = model_.config().ffn_bias ? 4 : 2;
    EXPECT_EQ(blocks, of_expert * model_.config().num_moe_layers() * static_cast<int64_t>(residents.size()));
  }
};

TEST_P(ParametersExpertsTest, KeepsLosesAndGains) {
  std::vector<int32_t> all = model_.weights().residents;
  const Values before = group_.Masters();
  const auto in_memory = [&] {
    int64_t bytes = model_.weights().bytes();
    for (const ParameterBlock& block : parameters_.blocks()) bytes += block.bytes();
    return bytes;
  };
  const int64_t bytes = in_memory();
  const model::ModelConfig& config = model_.config();
  const int64_t one = parameters_.BytesOfExperts({.added = 1});
  // Weight, transpose, master, gradient, two moments.
  const int64_t hidden = config.hidden, ffn = config.expert_intermediate;
  const int64_t elements =
      (ops::SumsWidth(config.activation, ffn) + ffn) * hidden + (config.ffn_bias ? ffn + hidden : 0);
  EXPECT_EQ(one, config.num_moe_layers() * elements * 6 * 8);

  Become({3, 1}, NoValue);
  ExpectWhole({3, 1});
  EXPECT_EQ(group_.Masters().size(), before.size() - Of(before, parameters_, 3).size() * (all.size() - 2));
  for (const int32_t expert : {-1, 1, 3}) {
    EXPECT_EQ(Of(group_.Masters(), parameters_, expert), Of(before, parameters_, expert)) << expert;
  }
  if (offload_ == then_offload_) {
    const int64_t lost = bytes - in_memory();
    // Of six parts three are in the file, if there is one.
    const int64_t expected = (offload_ ? one / 2 : one) * static_cast<int64_t>(all.size() - 2);
    EXPECT_GE(lost, expected);  // packing rounds up
    EXPECT_LE(lost, expected + expected / 2);
  }

  Become({0, 1, 2}, [](const ParameterBlock& block) { return 100.0 * block.expert + block.layer; });
  ExpectWhole({0, 1, 2});
  for (const int32_t expert : {-1, 1}) {
    EXPECT_EQ(Of(group_.Masters(), parameters_, expert), Of(before, parameters_, expert)) << expert;
  }
  for (const auto& [name, values] : Of(group_.Masters(), parameters_, 2)) {
    EXPECT_GE(*std::min_element(values.begin(), values.end()), 200) << name;
  }
  for (const auto& [name, values] : Of(group_.Moments(), parameters_, 2)) {
    EXPECT_EQ(values, std::vector<double>(values.size(), 0)) << name;
  }
  for (const ParameterBlock& block : parameters_.blocks()) {
    if (block.expert != 0 && block.expert != 2) continue;
    const Tensor rows(DType::kF64, {block.gradient.dim(0), block.gradient.dim(1)});
    if (block.weight != nullptr) {
      ASSERT_TRUE(block.weight->UnpackRows(0, rows).ok());
    }
    const double* const published = block.weight != nullptr ? rows.data<double>() : block.tensor->data<double>();
    for (int64_t i = 0; i < block.size(); ++i) {
      ASSERT_EQ(published[i], 100.0 * block.expert + block.layer);
    }
  }
}

// The same experts in other slots are the same model: the layout says where they are.
TEST_P(ParametersExpertsTest, AnOrderOfSlotsChangesNoLoss) {
  const std::vector<TrainRows> rows = {RowsOfStep(golden_, 0)};
  const double before = group_.Evaluate(rows).loss;
  std::vector<int32_t> turned(model_.weights().residents.rbegin(), model_.weights().residents.rend());
  Become(turned, NoValue);
  ExpectWhole(turned);
  const std::unique_ptr<comm::Communicator> alone = comm::MakeSoloCommunicator();
  const std::vector<std::vector<int32_t>> residents = {turned};
  const moe::ExpertLayout layout = moe::ExpertLayout::FromResidents(static_cast<int>(turned.size()), residents);
  ASSERT_TRUE(group_.trainer(0).SetGroup({.world = alone.get(), .experts = alone.get(), .layout = &layout}).ok());
  EXPECT_EQ(group_.Evaluate(rows).loss, before);
}

INSTANTIATE_TEST_SUITE_P(Goldens, ParametersExpertsTest,
                         ::testing::Combine(::testing::ValuesIn(TrainingGoldenNames()), ::testing::Bool(),
                                            ::testing::Bool()),
                         [](const auto& info) {
                           return absl::StrCat(model::TestName(std::get<0>(info.param)),
                                               std::get<1>(info.param) ? "FromFile" : "FromMemory",
                                               std::get<2>(info.param) ? "ToFile" : "ToMemory");
                         });

// Of what goes from one file into another two layers each are in memory, and no more at any time.
TEST(ParametersExpertsMemoryTest, OfAFileTwoLayersAreInMemory) {
  absl::StatusOr<model::ModelConfig> config = model::ReadModelConfig(LoadTrainingGolden("olmoe-clip").dir);
  SY_CHECK_OK(config.status());
  config->layers.resize(8, config->layers[0]);
  ThreadPool pool(1, false);
  const Stream stream = Stream::OnCpu(&pool);
  absl::StatusOr<model::ModelWeights> weights = model::AllocateWeights(*config, DType::kF32, {0, 1});
  SY_CHECK_OK(weights.status());
  const auto model = model::Model::Create(stream, *config, DType::kF32, *std::move(weights), config->context);
  SY_CHECK_OK(model.status());
  std::atomic<int64_t> most = 0;
  const OpenStateFileFn open = [&](int64_t bytes) -> absl::StatusOr<std::unique_ptr<StateFile>> {
    return std::make_unique<FakeStateFile>(bytes, [&](bool, int64_t) {
      most = std::max(most.load(), MemoryInUse(DeviceKind::kCpu));
      return absl::OkStatus();
    });
  };
  const auto parameters = Parameters::Create(stream, model->get(), open);
  SY_CHECK_OK(parameters.status());
  const int64_t before = MemoryInUse(DeviceKind::kCpu);
  absl::StatusOr<NewExperts> experts = (*parameters)->AllocateExperts({0, 1, 2, 3}, open);
  ASSERT_TRUE(experts.ok()) << experts.status();
  const int64_t taken = MemoryInUse(DeviceKind::kCpu) - before;
  const int64_t asked = (*parameters)->BytesOfExperts({.added = 2, .staying = 2, .offload = true});
  EXPECT_GE(taken, asked);  // packing rounds up
  EXPECT_LE(taken, asked + asked / 4);
  EXPECT_LT(asked, (*parameters)->BytesOfExperts({.added = 2}));
  most = 0;
  const absl::Status offloaded = (*parameters)->BringExperts(&*experts, [](auto...) { return absl::OkStatus(); });
  EXPECT_TRUE(offloaded.ok()) << offloaded;
  EXPECT_EQ(most, before + taken);
}

}  // namespace
}  // namespace switchyard::train
