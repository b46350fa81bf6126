// Whole models whose matrices stay in the checkpoint's few bits (tests/golden/quantized/models), and those that are
// quantized as they are loaded, on the test's device: logits beside transformers' on the decoded weights, and tokens on
// any ranks.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/devices/test_device.h"
#include "tests/workers/model/fixture.h"
#include "tests/workers/model/quantized_goldens.h"
#include "tests/workers/model/rank_group.h"
#include "workers/model/families/family.h"
#include "workers/model/weights/serving_type.h"

namespace switchyard::model {
namespace {

std::string DirOf(const std::string& name) { return absl::StrCat("tests/golden/quantized/models/", name); }

ops::WeightFormats Stored(const std::string& dir) {
  const auto config = ReadModelConfig(dir);
  const auto checkpoint = checkpoint::Checkpoint::Open(dir);
  SY_CHECK_OK(config.status());
  SY_CHECK_OK(checkpoint.status());
  std::vector<int32_t> residents(static_cast<size_t>(config->num_experts));
  std::iota(residents.begin(), residents.end(), 0);
  auto weights = AllocateWeights(*config, DType::kBf16, residents);
  SY_CHECK_OK(weights.status());
  const auto params = BuildParams(*config, *FindFamily(config->model_type), *checkpoint, &*weights);
  SY_CHECK_OK(params.status());
  return StoredFormats(*params, *weights);
}

// The largest difference of logits, over the largest logit.
double Distance(const std::string& dir, DType dtype, const ops::WeightFormats& formats) {
  const auto golden = ReadGolden<float>(dir, "values");
  RankGroup group(dir, {.dtype = dtype, .formats = formats});
  const std::vector<double> found = group.Logits(ReadGolden<int32_t>(dir, "tokens"));
  EXPECT_EQ(found.size(), golden.size());
  double largest = 0, distance = 0;
  for (size_t i = 0; i < std::min(found.size(), golden.size()); ++i) {
    largest = std::max<double>(largest, std::abs(golden[i]));
    if (!(std::abs(found[i] - golden[i]) <= distance)) distance = std::abs(found[i] - golden[i]);
  }
  return distance / largest;
}

struct Case {
  const char* name;
  double distance, distance_on_cpus;  // of logits; products of CPUs have x of 8 bits
};

class QuantizedDeviceTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (!HasDevices(1)) GTEST_SKIP() << "skipped: no GPU";
  }
};

TEST_P(QuantizedDeviceTest, LogitsAreThoseOfTheDecodedWeights) {
  const std::string dir = DirOf(GetParam().name);
  const ops::WeightFormats stored = Stored(dir);
  ASSERT_FALSE(stored == ops::WeightFormats());
  const double most = TestDevice().is_cpu() ? GetParam().distance_on_cpus : GetParam().distance;
  const double in_fp16 = Distance(dir, DType::kF16, stored), in_bf16 = Distance(dir, DType::kBf16, stored);
  RecordProperty("fp16", std::to_string(in_fp16));
  RecordProperty("bf16", std::to_string(in_bf16));
  EXPECT_LE(in_fp16, most);
  EXPECT_LE(in_bf16, std::max(most, 2e-2));
}

TEST_P(QuantizedDeviceTest, TokensDoNotDependOnRanksSlotsOrOtherRequests) {
  const std::string dir = DirOf(GetParam().name);
  const std::vector<std::vector<int32_t>> prompts = {{5, 9, 12}, {33}, {7, 7, 40, 61, 3}};
  const RankGroupOptions resident = {.dtype = DType::kBf16, .formats = Stored(dir)};
  const int32_t tokens = DeviceIsEmulated() ? 4 : 12;
  const auto expected = RankGroup(dir, resident).Greedy(prompts, tokens);
  std::vector<RankGroupOptions> others(3, resident);
  others[0].batch = 1, others[0].chunk = 2;
  others[1].expert_slots = 2;
  others[2].world = 2, others[2].batch = 2;
  for (const RankGroupOptions& options : others) {
    if (!HasDevices(options.world)) continue;
    EXPECT_EQ(RankGroup(dir, options).Greedy(prompts, tokens), expected) << options.expert_slots << options.world;
  }
}

// int8 keeps the checkpoint's numbers; the others have groups of 16, which q8_0 rounds.
INSTANTIATE_TEST_SUITE_P(Formats, QuantizedDeviceTest,
                         ::testing::Values(Case{"int8", 2e-3, 3e-2}, Case{"gptq", 4e-2, 6e-2}, Case{"awq", 4e-2, 6e-2}),
                         [](const auto& each) { return each.param.name; });

// The experts of gpt-oss as they are published: the same numbers, so that logits differ by roundings alone.
TEST(PublishedFp4Test, LogitsAreThoseOfTheDecodedWeights) {
  if (!HasDevices(1)) GTEST_SKIP() << "skipped: no GPU";
  const Fixture fixture = LoadFixture("gptoss-mxfp4");
  const ops::WeightFormats stored = Stored(fixture.dir);
  ASSERT_EQ(stored.of(0).gate_up, ops::WeightFormat::kMxfp4);
  const std::vector<int32_t>& prompt = fixture.greedy[0].prompt;
  const std::vector<double> decoded = RankGroup(fixture.dir, {.dtype = DType::kF32}).Logits(prompt);
  const std::vector<double> found = RankGroup(fixture.dir, {.dtype = DType::kF16, .formats = stored}).Logits(prompt);
  ASSERT_EQ(found.size(), decoded.size());
  double largest = 0, distance = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    largest = std::max(largest, std::abs(decoded[i]));
    if (!(std::abs(found[i] - decoded[i]) <= distance)) distance = std::abs(found[i] - decoded[i]);
  }
  RecordProperty("distance", std::to_string(distance / largest));
  EXPECT_LE(distance / largest, TestDevice().is_cpu() ? 5e-2 : 5e-3);
}

// Every format that a weight can have, from a checkpoint that is not quantized.
TEST(QuantizedAtLoadTest, LogitsAreNearThoseOfBf16) {
  if (!HasDevices(1)) GTEST_SKIP() << "skipped: no GPU";
  const Fixture fixture = LoadFixture("qwen2-shared");
  const std::vector<int32_t>& prompt = fixture.greedy[0].prompt;
  const std::vector<double> plain = RankGroup(fixture.dir, {.dtype = DType::kBf16}).Logits(prompt);
  for (const ops::WeightFormat format :
       {ops::WeightFormat::kInt8, ops::WeightFormat::kInt4, ops::WeightFormat::kQ8_0, ops::WeightFormat::kQ4_0,
        ops::WeightFormat::kQ4_1, ops::WeightFormat::kMxfp4, ops::WeightFormat::kQ6_K}) {
    RankGroup group(fixture.dir, {.dtype = DType::kBf16, .formats = format});
    const std::vector<double> found = group.Logits(prompt);
    ASSERT_EQ(found.size(), plain.size());
    double both = 0, of_found = 0, of_plain = 0;
    for (size_t i = 0; i < found.size(); ++i) {
      both += found[i] * plain[i], of_found += found[i] * found[i], of_plain += plain[i] * plain[i];
    }
    const double cosine = both / std::sqrt(of_found * of_plain);  // NaN where all are 0
    RecordProperty(ops::WeightFormatName(format), std::to_string(cosine));
    EXPECT_GE(cosine, ops::WeightBits(format) == 4 ? 0.8 : 0.99) << ops::WeightFormatName(format);
    EXPECT_LT(cosine, 1) << ops::WeightFormatName(format);
  }
}

}  // namespace
}  // namespace switchyard::model
