// --quantization: greedy tokens of each format do not depend on workers, other requests, chunks, preemption or where
// experts are; what is shown of it; errors.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/expert_servers.h"

namespace switchyard {
namespace {

using testing::HasSubstr;

class QuantizationTest : public ExpertServersTest, public testing::WithParamInterface<const char*> {
 protected:
  std::string flag() const { return absl::StrCat("--quantization=", GetParam()); }
};

TEST_P(QuantizationTest, TokensDependOnTheFormatAlone) {
  const auto one = Start(1, {flag()});
  ASSERT_NE(one, nullptr);
  const auto info = one->client().GetModelInfo();
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->quantization(), GetParam());
  EXPECT_EQ(info->dtype(), "bf16");
  const auto expected = Tokens(one.get());
  ExpectTokensOfEach(expected, flag(),
                     {{2, {}},
                      {3, {}},
                      {2, {"--placement=no_estimate", "--spare_slots=1"}},
                      {1, {"--expert_memory=25%"}},
                      {1, {"--prefill_chunk=3", "--prefix_reuse=false", "--micro_batches=2"}},
                      // 12 blocks of 4 tokens: requests preempt each other.
                      {1, {"--block_size=4", absl::StrCat("--kv_cache_bytes=", 12 * 4 * 2048), "--max_model_len=48"}}});
}

INSTANTIATE_TEST_SUITE_P(Formats, QuantizationTest, testing::Values("int8", "int4"),
                         [](const auto& param) { return std::string(param.param); });

using QuantizationErrors = ExpertServersTest;

TEST_F(QuantizationErrors, AreSaid) {
  EXPECT_THAT(
      Refusal({"--quantization=awq"}),
      HasSubstr("--quantization=awq: must be one of auto, none, int8, int4 (a checkpoint that is quantized says so "
                "itself)"));
  EXPECT_THAT(Refusal({"--quantization=int8", "--dtype=fp64"}),
              HasSubstr("--quantization=int8: computes in fp32, bf16 or fp16, not --dtype=fp64"));
}

}  // namespace
}  // namespace switchyard
