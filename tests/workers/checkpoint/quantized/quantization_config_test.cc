// What a quantization_config says, and what of it is refused.
#include "workers/checkpoint/quantized/quantization_config.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace switchyard::checkpoint {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<QuantizationConfig> ReadText(const std::string& text) {
  return ReadQuantizationConfig("quantization_config", nlohmann::json::parse(text));
}

// Around the `weights` of a group.
std::string Compressed(const std::string& format, const std::string& weights) {
  return R"({"quant_method": "compressed-tensors", "format": ")" + format +
         R"(", "config_groups": {"group_0": {"targets": ["Linear"], "weights": {)" + weights + "}}}}";
}

TEST(QuantizationConfigTest, ReadsEveryMethod) {
  const std::pair<std::string, std::string> kAll[] = {
      {R"({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128], "activation_scheme": "dynamic"})",
       "fp8: fp8, 8 bits, blocks of 128 x 128"},
      {R"({"quant_method": "fp8", "weight_block_size": null, "ignored_layers": ["lm_head"]})",
       "fp8: fp8, 8 bits, a scale for the tensor or for each row"},
      {R"({"quant_method": "awq", "bits": 4, "group_size": 128, "version": "GEMM", "zero_point": true})",
       "awq: awq, 4 bits, groups of 128, with zero points"},
      {R"({"quant_method": "gptq", "bits": 8, "group_size": -1, "desc_act": false, "sym": true})",
       "gptq: gptq, 8 bits, a scale for each row, less one"},
      {R"({"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": true, "sym": false, "checkpoint_format": "gptq_v2", "dynamic": {"-:.*gate.*": {}}})",
       "gptq: gptq, 4 bits, groups of 32, with zero points, ordered"},
      {R"({"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]})",
       "mxfp4: mxfp4, 4 bits, groups of 32"},
      {Compressed("pack-quantized",
                  R"("num_bits": 4, "type": "int", "group_size": 128, "strategy": "group", "actorder": "weight")"),
       "compressed-tensors: pack-quantized, 4 bits, groups of 128"},
      {Compressed("pack-quantized", R"("num_bits": 8, "group_size": -1, "symmetric": false)"),
       "compressed-tensors: pack-quantized, 8 bits, a scale for each row, with zero points"},
      {Compressed("int-quantized", R"("num_bits": 8, "strategy": "channel")"),
       "compressed-tensors: int8, 8 bits, a scale for each row"},
      {Compressed("float-quantized",
                  R"("num_bits": 8, "type": "float", "strategy": "block", "block_structure": "128x64")"),
       "compressed-tensors: fp8, 8 bits, blocks of 128 x 64"},
      {Compressed("naive-quantized", R"("num_bits": 8, "type": "float")"),
       "compressed-tensors: fp8, 8 bits, a scale for the tensor"},
  };
  for (const auto& [text, reading] : kAll) {
    const auto config = ReadText(text);
    ASSERT_TRUE(config.ok()) << text << config.status();
    EXPECT_EQ(config->ToString(), reading);
  }
  EXPECT_THAT(ReadText(kAll[1].first)->unconverted, testing::ElementsAre("lm_head"));
}

struct BadConfig {
  std::string text, says;
};

TEST(QuantizationConfigTest, NamesFieldValueAndWhatIsUnderstood) {
  const std::string kAt = "quantization_config.config_groups.group_0.weights.";
  const BadConfig kAll[] = {
      {"7", "quantization_config: found 7; understood: an object"},
      {"{}", "quantization_config.quant_method: missing; understood: fp8, compressed-tensors, awq, gptq, mxfp4"},
      {R"({"quant_method": "bitsandbytes"})", "quant_method: found \"bitsandbytes\"; understood: fp8, compressed"},
      {R"({"quant_method": "fp8", "fmt": "e5m2"})", "quantization_config.fmt: found \"e5m2\"; understood: e4m3"},
      {R"({"quant_method": "fp8", "weight_block_size": [128]})",
       "weight_block_size: found [128]; understood: two sizes from 1"},
      {R"({"quant_method": "fp8", "weight_block_size": [128, 0]})", "weight_block_size: found [128,0]"},
      {R"({"quant_method": "fp8", "expert_dtype": "fp4"})", "expert_dtype: found \"fp4\"; understood: fp8"},
      {R"({"quant_method": "fp8", "modules_to_not_convert": "lm_head"})",
       "modules_to_not_convert: found \"lm_head\"; understood: a list of strings"},
      {R"({"quant_method": "awq", "bits": 3})", "quantization_config.bits: found 3; understood: 4"},
      {R"({"quant_method": "awq", "version": "gemv"})", "version: found \"gemv\"; understood: gemm"},
      {R"({"quant_method": "awq", "group_size": 0})",
       "group_size: found 0; understood: -1 (a row is one group), and sizes"},
      {R"({"quant_method": "gptq", "group_size": 128})", "quantization_config.bits: missing; understood: 4, 8"},
      {R"({"quant_method": "gptq", "bits": 2})", "bits: found 2; understood: 4, 8"},
      {R"({"quant_method": "gptq", "bits": 5})", "bits: found 5; understood: 4, 8"},
      {R"({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"})",
       "checkpoint_format: found \"marlin\"; understood: gptq, gptq_v2"},
      {R"({"quant_method": "gptq", "bits": 4, "desc_act": 1})", "desc_act: found 1; understood: true, false"},
      {R"({"quant_method": "gptq", "bits": 4, "dynamic": {"+:.*": {"bits": 8}}})", "dynamic: found \"+:.*\""},
      {R"({"quant_method": "compressed-tensors", "format": "pack-quantized"})",
       "config_groups: understood: an object of at most 64 groups"},
      {R"({"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {}})",
       "config_groups: no group has weights"},
      {R"({"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"W4A16": ["Linear"]}})",
       "config_groups.W4A16: found [\"Linear\"]; understood: an object"},
      {R"({"quant_method": "compressed-tensors", "format": "int-quantized", "config_groups": {"a": {"weights": {}}}, "sparsity_config": {"format": "sparse-24-bitmask"}})",
       "sparsity_config.format: found \"sparse-24-bitmask\"; understood: dense"},
      {R"({"quant_method": "compressed-tensors", "format": "int-quantized", "config_groups": {"a": {"weights": {}}}, "transform_config": {"config_groups": {"v": {}}}})",
       "transform_config: transforms of weights are not understood"},
      {Compressed("nvfp4-pack-quantized", R"("num_bits": 4)"),
       "format: found \"nvfp4-pack-quantized\"; understood: pack-quantized"},
      {Compressed("pack-quantized", R"("num_bits": 3)"),
       kAt + "num_bits: found 3; understood with format pack-quantized: 4, 8"},
      {Compressed("int-quantized", R"("num_bits": 4)"),
       kAt + "num_bits: found 4; understood with format int-quantized: 8"},
      {Compressed("pack-quantized", R"("num_bits": 4, "type": "float")"),
       kAt + "type: found float; understood with format pack-quantized: int"},
      {Compressed("pack-quantized", R"("strategy": "group")"),
       kAt + "group_size: found 0; understood with strategy group: sizes from 1"},
      {Compressed("float-quantized", R"("type": "float", "strategy": "block")"),
       kAt + "block_structure: missing; understood with strategy block"},
      {Compressed("float-quantized", R"("type": "float", "symmetric": false)"), kAt + "symmetric: found false"},
      {Compressed("int-quantized", R"("strategy": "token")"),
       kAt + "strategy: found \"token\"; understood: tensor, channel, group, block"},
      {Compressed("int-quantized", R"("actorder": "group")"),
       kAt + "actorder: understood with format pack-quantized and strategy group only"},
  };
  for (const BadConfig& bad : kAll) {
    const auto config = ReadText(bad.text);
    EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument) << bad.text;
    EXPECT_THAT(std::string(config.status().message()), HasSubstr(bad.says));
  }
}

TEST(QuantizationConfigTest, NamesAllProblemsAtOnce) {
  const auto config = ReadText(R"({"quant_method": "awq", "bits": 8, "group_size": 0, "version": "gemv"})");
  EXPECT_EQ(
      std::string(config.status().message()),
      "quantization_config.bits: found 8; understood: 4\n"
      "quantization_config.group_size: found 0; understood: -1 (a row is one group), and sizes from 1 to 1048576\n"
      "quantization_config.version: found \"gemv\"; understood: gemm");
}

}  // namespace
}  // namespace switchyard::checkpoint
