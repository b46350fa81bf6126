// A rank's parameters become those of other experts.
#include <map>

#include "gtest/gtest.h"
#include "scheduler/base/check.h"
#include "tests/workers/model/fixture.h"
#include "tests/workers/train/training_group.h"
#include "workers/comm/local_communicator.h"
#include "workers/train/parameters.h"

namespace switchyard {
namespace {

class ParametersExpertsTest : public ::testing::TestWithParam<std::string> {
 protected:
  const TrainingGolden golden_ = LoadTrainingGolden(GetParam());
  TrainingGroup group_{golden_.dir, {.dtype = DType::kF64}};
  Parameters& parameters_ = group_.parameters(0);
  Model& model_ = group_.model(0);

  NewExperts Allocated(std::vector<int32_t> ids) {
    absl::StatusOr<NewExperts> experts = parameters_.AllocateExperts(std::move(ids));
    SY_CHECK_OK(experts.status());
    return *std::move(experts);
  }

  using Values = std::map<std::string, std::vector<double>>;
  // Of everything but routed experts, or of one of those.
  static Values Of(const Values& all, const Parameters& parameters, int32_t expert) {
    Values some;
    for (const ParameterBlock& block : parameters.blocks()) {
      for (const Param& part : block.parts) {
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
      const std::optional<MoeWeights>& moe = model_.weights().layers[i].moe;
      if (!moe.has_value()) continue;
      const MoeGradients& gradients = *parameters_.gradients().layers[i].moe;
      ASSERT_EQ(moe->experts.size(), residents.size());
      ASSERT_EQ(gradients.experts.size(), residents.size());
      for (size_t slot = 0; slot < residents.size(); ++slot) {
        for (const ParameterBlock& block : parameters_.blocks()) {
          if (block.layer != static_cast<int32_t>(i) || block.expert != residents[slot]) continue;
          ++blocks;
          if (block.weight == nullptr) {
            const bool down = block.tensor == &moe->experts[slot].down_bias;
            EXPECT_TRUE(down || block.tensor == &moe->experts[slot].up_bias);
            const FfnGradients& trained = gradients.experts[slot];
            EXPECT_EQ((down ? trained.down_bias : trained.up_bias).raw(), block.gradient.view().raw());
            continue;
          }
          const bool down = block.weight == &moe->experts[slot].down;
          EXPECT_TRUE(down || block.weight == &moe->experts[slot].gate_up);
          const TrainedMatrix& trained = down ? gradients.experts[slot].down : gradients.experts[slot].gate_up;
          EXPECT_EQ(trained.gradient.raw(), block.gradient.view().raw());
          EXPECT_EQ(trained.transposed, &block.transposed);
          EXPECT_EQ(block.weight->n(), block.transposed.k());
        }
        const WeightTable& table = model_.moe_layer(static_cast<int64_t>(i))->weights.gate_up;
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
  const int64_t bytes = parameters_.bytes(), weight_bytes = model_.weights().bytes();
  const ModelConfig& config = model_.config();
  const int64_t one = parameters_.BytesOfExperts(1);
  // Weight, transpose, master, gradient, two moments.
  const int64_t hidden = config.hidden, ffn = config.expert_intermediate;
  const int64_t elements = (SumsWidth(config.activation, ffn) + ffn) * hidden + (config.ffn_bias ? ffn + hidden : 0);
  EXPECT_EQ(one, config.num_moe_layers() * elements * 6 * 8);

  parameters_.AdoptExperts({3, 1}, Allocated({}));
  ExpectWhole({3, 1});
  EXPECT_EQ(group_.Masters().size(), before.size() - Of(before, parameters_, 3).size() * (all.size() - 2));
  for (const int32_t expert : {-1, 1, 3}) {
    EXPECT_EQ(Of(group_.Masters(), parameters_, expert), Of(before, parameters_, expert)) << expert;
  }
  const int64_t lost = bytes + weight_bytes - parameters_.bytes() - model_.weights().bytes();
  const int64_t expected = one * static_cast<int64_t>(all.size() - 2);
  EXPECT_GE(lost, expected);  // packing rounds up
  EXPECT_LE(lost, expected + expected / 2);

  NewExperts brought = Allocated({0, 2});
  EXPECT_GE(brought.bytes(), 2 * one);
  for (ParameterBlock& block : brought.blocks) {
    for (int64_t i = 0; i < block.size(); ++i) block.master.data<double>()[i] = 100.0 * block.expert + block.layer;
  }
  ASSERT_TRUE(parameters_.PublishExperts(&brought).ok());
  parameters_.AdoptExperts({0, 1, 2}, std::move(brought));
  ExpectWhole({0, 1, 2});
  for (const int32_t expert : {-1, 1}) {
    EXPECT_EQ(Of(group_.Masters(), parameters_, expert), Of(before, parameters_, expert)) << expert;
  }
  for (const ParameterBlock& block : parameters_.blocks()) {
    if (block.expert != 0 && block.expert != 2) continue;
    const Tensor rows(DType::kF64, {block.master.dim(0), block.master.dim(1)});
    if (block.weight != nullptr) {
      ASSERT_TRUE(block.weight->UnpackRows(0, rows).ok());
    }
    const double* const published = block.weight != nullptr ? rows.data<double>() : block.tensor->data<double>();
    for (int64_t i = 0; i < block.size(); ++i) {
      ASSERT_EQ(published[i], 100.0 * block.expert + block.layer);
      ASSERT_EQ(block.mean.data<double>()[i], 0);
    }
  }
}

// The same experts in other slots are the same model: the layout says where they are.
TEST_P(ParametersExpertsTest, AnOrderOfSlotsChangesNoLoss) {
  const std::vector<TrainRows> rows = {RowsOfStep(golden_, 0)};
  const double before = group_.Evaluate(rows).loss;
  std::vector<int32_t> turned(model_.weights().residents.rbegin(), model_.weights().residents.rend());
  parameters_.AdoptExperts(turned, Allocated({}));
  ExpectWhole(turned);
  const std::unique_ptr<Communicator> alone = MakeSoloCommunicator();
  const std::vector<std::vector<int32_t>> residents = {turned};
  const ExpertLayout layout = ExpertLayout::FromResidents(static_cast<int>(turned.size()), residents, /*epoch=*/1);
  ASSERT_TRUE(group_.trainer(0).SetGroup(alone.get(), &layout).ok());
  EXPECT_EQ(group_.Evaluate(rows).loss, before);
}

INSTANTIATE_TEST_SUITE_P(Goldens, ParametersExpertsTest, ::testing::ValuesIn(TrainingGoldenNames()),
                         [](const auto& info) { return TestName(info.param); });

}  // namespace
}  // namespace switchyard
