// The provider of experts that are read where they lie.
#include "workers/moe/experts/experts_in_place.h"

#include <vector>

#include "gtest/gtest.h"
#include "workers/moe/layer/moe_context.h"

namespace switchyard::moe {
namespace {

TEST(ExpertsInPlaceTest, GivesThoseThatHaveRowsFromTheirPlaces) {
  const PackedExpert expert(64, 32, DType::kF32, DeviceKind::kCpu);
  const Buffer memory(4 * expert.bytes, Device::Cpu());
  char* const data = static_cast<char*>(memory.data());
  ExpertsInPlace experts(/*num_layers=*/2, /*num_experts=*/3, expert);
  EXPECT_TRUE(absl::IsInvalidArgument(experts.Check(std::vector<int32_t>{1})));
  experts.SetPlace({.layer = 0, .expert = 1}, data);
  EXPECT_TRUE(absl::IsInvalidArgument(experts.Check(std::vector<int32_t>{1}))) << "not in layer 1";
  experts.SetPlace({.layer = 1, .expert = 1}, data + expert.bytes);
  experts.SetPlace({.layer = 1, .expert = 2}, data + 2 * expert.bytes);
  EXPECT_TRUE(experts.Check(std::vector<int32_t>{1}).ok());

  const MoeContext context;
  const LayerContext layer = {.index = 1};
  const std::vector<int32_t> slots = {0, 1, 2}, offsets = {0, 0, 5, 7};
  int calls = 0;
  const auto compute = [&](const ops::WeightGroup& gate_up, const ops::WeightGroup& down) {
    ++calls;
    EXPECT_EQ(gate_up[0], nullptr) << "no rows, and not there";
    EXPECT_EQ(gate_up[1]->data(), data + expert.bytes);
    EXPECT_EQ(down[2]->data(), data + 2 * expert.bytes + expert.down_offset);
    return absl::OkStatus();
  };
  const ExpertRows rows = {.experts = slots, .offsets = offsets};
  EXPECT_TRUE(experts.RunLayer(context, layer, rows, compute).ok());
  EXPECT_EQ(calls, 1);

  experts.SetPlace({.layer = 1, .expert = 2}, nullptr);
  const absl::Status gone = experts.RunLayer(context, layer, rows, compute);
  EXPECT_TRUE(absl::IsInternal(gone));
  EXPECT_EQ(gone.message(), "experts in place: 2 rows for expert 2 of MoE layer 1, which is not there");
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace switchyard::moe
