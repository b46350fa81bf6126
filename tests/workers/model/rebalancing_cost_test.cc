#include "gtest/gtest.h"
#include "workers/model/runner/token_rebalancer.h"

namespace switchyard::model {
namespace {

ModelConfig Shape(int64_t hidden, int64_t num_heads, int64_t num_kv_heads, int64_t head_dim) {
  ModelConfig config;
  config.hidden = hidden;
  config.num_heads = num_heads;
  config.num_kv_heads = num_kv_heads;
  config.head_dim = head_dim;
  return config;
}

TEST(RebalancingCost, WhatWasMeasured) {
  const ModelConfig olmoe = Shape(2048, 16, 16, 128), demo = Shape(192, 4, 2, 32);
  EXPECT_EQ(MinRebalanceRows(olmoe, DType::kBf16, ops::Isa::kAvx512Bf16, 1),
            32);  // two workers on one prompt of 512: 0.88 of one, 0.72 without
  EXPECT_EQ(MinRebalanceRows(demo, DType::kBf16, ops::Isa::kAvx512Bf16, 1), 0);  // 26 ms, 20 ms without
  EXPECT_GT(MinRebalanceRows(olmoe, DType::kBf16, ops::Isa::kAmx, 1), 32);       // faster: fewer transfers pay
  EXPECT_EQ(MinRebalanceRows(demo, DType::kF32, ops::Isa::kAvx512Bf16, 1), 0);
}

// The faster a rank computes, the less a transfer saves, until the way costs more.
TEST(RebalancingCost, MoreThreadsNeedMoreRows) {
  for (const DType dtype : {DType::kBf16, DType::kF32}) {
    int32_t before = 1;
    int never = 0;
    for (int threads = 1; threads <= 64; ++threads) {
      const int32_t rows = MinRebalanceRows(Shape(4096, 32, 8, 128), dtype, ops::Isa::kAvx512Bf16, threads);
      EXPECT_GE(rows, 0);
      never += rows == 0;
      if (never > 0) {
        EXPECT_EQ(rows, 0) << threads;
      } else {
        EXPECT_GE(rows, before) << threads;
      }
      before = rows;
    }
    EXPECT_GT(never, 0);
    EXPECT_LT(never, 64);
  }
}

}  // namespace
}  // namespace switchyard::model
