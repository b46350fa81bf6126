// Calibration: bits before and after are those of whole models, GPTQ beats rounding to nearest on text, and which
// datasets are refused.
#include <atomic>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <random>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/workers/model/fixture.h"
#include "tests/workers/model/rank_group.h"
#include "tests/workers/model/temp_dir.h"
#include "tests/workers/quantize/token_file.h"
#include "workers/quantize/calibration.h"
#include "workers/quantize/quantize.h"
#include "workers/quantize/samples.h"
#include "workers/quantize/token_bytes.h"

namespace switchyard::quantize {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kDemoModel[] = "deploy/demo-model";
// 260 of the texts that deploy/demo-model/generate_data.py writes, packed.
constexpr char kText[] = "tests/golden/quantized/written/text.bin";

std::string BytesOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// log2 of the probabilities [rows * V] of what follows each row of the windows, by the whole model in fp32, sequence by
// sequence.
std::vector<double> LogProbabilities(const std::string& dir, const Windows& windows) {
  model::RankGroup group(dir, {.dtype = DType::kF32});
  const auto vocab = static_cast<size_t>(group.config().vocab_size);
  std::vector<double> all;
  for (size_t s = 0; s < windows.begins.size(); ++s) {
    const int64_t begin = windows.begins[s];
    const int64_t end = s + 1 < windows.begins.size() ? windows.begins[s + 1] : windows.num_rows();
    std::vector<double> logits = group.Logits({windows.tokens.begin() + begin, windows.tokens.begin() + end});
    for (size_t row = 0; row < logits.size(); row += vocab) {
      double sum = 0;
      for (size_t v = 0; v < vocab; ++v) sum += std::exp(logits[row + v]);
      for (size_t v = 0; v < vocab; ++v) logits[row + v] = (logits[row + v] - std::log(sum)) / std::log(2.0);
    }
    all.insert(all.end(), logits.begin(), logits.end());
  }
  return all;
}

// -log2 of the probabilities of all targets.
double BitsOf(const std::string& dir, const Windows& windows) {
  const std::vector<double> all = LogProbabilities(dir, windows);
  const size_t vocab = all.size() / windows.tokens.size();
  double bits = 0;
  for (size_t i = 1; i < windows.tokens.size(); ++i) {
    if (windows.is_target[i] != 0) bits -= all[(i - 1) * vocab + static_cast<size_t>(windows.tokens[i])];
  }
  return bits;
}

// The mean over rows of the divergence of b's probabilities from a's, in bits.
double Divergence(const std::vector<double>& a, const std::vector<double>& b, size_t rows) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += std::exp2(a[i]) * (a[i] - b[i]);
  return sum / static_cast<double>(rows);
}

Windows HeldOutOf(const std::string& model, const std::string& dataset, int64_t length) {
  const auto config = model::ReadModelConfig(model);
  const auto samples =
      ReadSamples({.dataset = dataset, .model = model, .length = length}, *config, [] { return false; });
  EXPECT_TRUE(samples.ok()) << samples.status();
  return samples.ok() ? samples->held_out : Windows();
}

std::vector<int32_t> RandomTokens(int64_t count, int32_t vocab) {
  std::mt19937 source(27);
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < count; ++i) tokens.push_back(static_cast<int32_t>(source() % static_cast<uint32_t>(vocab)));
  return tokens;
}

class CalibrateTest : public ::testing::Test {
 protected:
  QuantizeOptions OptionsFor(const std::string& model, int64_t group, const std::string& dataset,
                             int64_t length) const {
    return {.model = model,
            .output = output_,
            .format = {.bits = 4, .group = group},
            .threads = 1,
            .dataset = dataset,
            .length = length,
            .dtype = "fp32"};
  }
  std::string ErrorOf(const QuantizeOptions& options) const {
    const auto report = Quantize(options);
    EXPECT_FALSE(report.ok());
    EXPECT_FALSE(std::filesystem::exists(output_));
    return std::string(report.status().message());
  }

  const model::TempDir dir_;
  const std::string output_ = dir_.File("out");
};

class CalibrateFamiliesTest : public CalibrateTest, public ::testing::WithParamInterface<std::string> {};

TEST_P(CalibrateFamiliesTest, BitsAreThoseOfTheWholeModelsBeforeAndAfter) {
  constexpr int64_t kLength = 48, kWindows = 40, kHeldOut = 5;
  const std::vector<int32_t> tokens = RandomTokens(kLength * kWindows + 7, 256);
  const std::string source = model::LoadFixture(GetParam()).dir;
  // Documents of 31 tokens, of which some windows have parts.
  std::vector<int64_t> documents;
  for (int64_t begin = 0; begin < static_cast<int64_t>(tokens.size()); begin += 31) documents.push_back(begin);
  const std::string dataset = dir_.Write("data.bin", TokenFileOf(tokens, 256, 0, documents));
  const auto report = Quantize(OptionsFor(source, 8, dataset, kLength));
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->samples, kWindows - kHeldOut);
  const Windows held_out = HeldOutOf(source, dataset, kLength);
  EXPECT_EQ(report->held_out_tokens, kHeldOut * kLength - static_cast<int64_t>(held_out.begins.size()));
  EXPECT_EQ(report->held_out_bytes, 0);  // no tokenizer.json
  EXPECT_NEAR(report->bits_before, BitsOf(source, held_out), 1e-5 * report->bits_before);
  EXPECT_NEAR(report->bits_after, BitsOf(output_, held_out), 1e-5 * report->bits_after);
  EXPECT_NE(report->bits_before, report->bits_after);
}

std::vector<std::string> CalibratedFixtures() {
  std::vector<std::string> names = model::FixtureNames();
  std::erase_if(names, [](const std::string& name) { return absl::StartsWith(name, "gptoss"); });
  return names;
}

INSTANTIATE_TEST_SUITE_P(Fixtures, CalibrateFamiliesTest, ::testing::ValuesIn(CalibratedFixtures()),
                         [](const auto& each) { return model::TestName(each.param); });

TEST_F(CalibrateTest, BeatsRoundingToNearestOnTextThatItHasNotSeen) {
  constexpr int64_t kLength = 128;
  const auto report = Quantize(OptionsFor(kDemoModel, 32, kText, kLength));
  ASSERT_TRUE(report.ok()) << report.status();
  QuantizeOptions nearest = OptionsFor(kDemoModel, 32, "", kLength);
  nearest.output = dir_.File("nearest");
  ASSERT_TRUE(Quantize(nearest).ok());
  // A few tokens decide about the bits of so short a text; all probabilities of all rows are a better measure.
  const Windows held_out = HeldOutOf(kDemoModel, kText, kLength);
  const std::vector<double> as_it_was = LogProbabilities(kDemoModel, held_out);
  const double calibrated = Divergence(as_it_was, LogProbabilities(output_, held_out), held_out.tokens.size());
  const double rounded = Divergence(as_it_was, LogProbabilities(nearest.output, held_out), held_out.tokens.size());
  RecordProperty("ratio_of_bits", std::to_string(report->bits_after / report->bits_before));
  RecordProperty("divergence_calibrated", std::to_string(calibrated));
  RecordProperty("divergence_nearest", std::to_string(rounded));
  EXPECT_LT(report->bits_after, 1.02 * report->bits_before);
  EXPECT_LT(calibrated, 0.8 * rounded);
  // A text's bytes: more than one a token, fewer than the longest has.
  EXPECT_GT(report->held_out_bytes, report->held_out_tokens);
  EXPECT_LT(report->held_out_bytes, 8 * report->held_out_tokens);
}

TEST_F(CalibrateTest, ThreadsDoNotChangeABit) {
  const std::string dataset = dir_.Write("data.bin", TokenFileOf(RandomTokens(20 * 64, 256), 256));
  QuantizeOptions options = OptionsFor(model::LoadFixture("qwen2-shared").dir, 8, dataset, 64);
  options.threads = 1;
  ASSERT_TRUE(Quantize(options).ok());
  options.output = dir_.File("threaded");
  options.threads = 3;
  ASSERT_TRUE(Quantize(options).ok());
  for (const auto& entry : std::filesystem::directory_iterator(output_)) {
    const std::string name = entry.path().filename();
    EXPECT_EQ(BytesOf(output_ + "/" + name), BytesOf(options.output + "/" + name)) << name;
  }
}

// Two windows of 16 tokens calibrate, fewer rows than any expert wants.
TEST_F(CalibrateTest, ExpertsThatFewRowsChoseAreRoundedToNearestAndCounted) {
  const std::string source = model::LoadFixture("mixtral-gqa").dir;
  const std::string dataset = dir_.Write("data.bin", TokenFileOf(RandomTokens(3 * 16, 256), 256));
  const auto report = Quantize(OptionsFor(source, 8, dataset, 16));
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->rounded_experts, 2 * 5);
  QuantizeOptions nearest = OptionsFor(source, 8, "", 16);
  nearest.output = dir_.File("nearest");
  ASSERT_TRUE(Quantize(nearest).ok());
  const auto calibrated = checkpoint::Checkpoint::Open(output_), rounded = checkpoint::Checkpoint::Open(nearest.output);
  for (const auto& [name, like] : {std::pair("model.layers.1.block_sparse_moe.experts.3.w2.weight_packed", true),
                                   std::pair("model.layers.1.self_attn.q_proj.weight_packed", false)}) {
    const auto a = calibrated->Find(name), b = rounded->Find(name);
    ASSERT_EQ(a.entry->bytes, b.entry->bytes);
    std::string from(static_cast<size_t>(a.entry->bytes), '\0'), to = from;
    ASSERT_TRUE(a.file->Read(a.entry->begin, a.entry->bytes, from.data()).ok());
    ASSERT_TRUE(b.file->Read(b.entry->begin, b.entry->bytes, to.data()).ok());
    EXPECT_EQ(from == to, like) << name;
  }
}

TEST_F(CalibrateTest, DatasetsThatDoNotFitTheModelAreRefused) {
  const std::string source = model::LoadFixture("mixtral-gqa").dir;
  const auto error = [&](const std::string& dataset, int64_t length) {
    return ErrorOf(OptionsFor(source, 8, dataset, length));
  };
  const std::vector<int32_t> tokens = RandomTokens(256, 256);
  EXPECT_THAT(error(dir_.Write("large.bin", TokenFileOf(tokens, 300)), 64),
              HasSubstr("its tokens are below 300, the model's vocabulary has 256"));
  const std::string fitting = dir_.Write("data.bin", TokenFileOf(tokens, 256));
  EXPECT_THAT(error(fitting, 129), HasSubstr("has 256 tokens; needed are 258 at least"));
  EXPECT_THAT(error(fitting, 641), HasSubstr("--sequence=641: the model's context has 640 positions"));
  EXPECT_THAT(error(dir_.File("none.bin"), 64), HasSubstr("none.bin"));
  EXPECT_THAT(error(dir_.Write("text.bin", "no tokens"), 64), HasSubstr("text.bin"));
  EXPECT_THAT(ErrorOf(OptionsFor(kDemoModel, 32, dir_.Write("other.bin", TokenFileOf(tokens, 256, 7)), 64)),
              HasSubstr("was packed with another tokenizer than the model's tokenizer.json"));
  QuantizeOptions dtype = OptionsFor(source, 8, fitting, 64);
  dtype.dtype = "int3";
  EXPECT_THAT(ErrorOf(dtype), HasSubstr("int3"));
}

TEST_F(CalibrateTest, ARunThatIsStoppedLeavesNothing) {
  const std::string dataset = dir_.Write("data.bin", TokenFileOf(RandomTokens(10 * 64, 256), 256));
  std::atomic<int64_t> asked = 0;
  QuantizeOptions options = OptionsFor(model::LoadFixture("mixtral-gqa").dir, 8, dataset, 64);
  options.stop = [&] { return ++asked > int64_t{1} << 40; };
  ASSERT_TRUE(Quantize(options).ok());
  const int64_t times = asked;
  ASSERT_GT(times, 20);
  for (const int64_t most : {times / 10, times / 4, times / 2, times - 1}) {
    std::filesystem::remove_all(output_);
    asked = 0;
    options.stop = [&] { return ++asked > most; };
    ASSERT_TRUE(absl::IsCancelled(Quantize(options).status())) << most << " of " << times;
    EXPECT_FALSE(std::filesystem::exists(output_));
    EXPECT_FALSE(std::filesystem::exists(output_ + ".unfinished"));
  }
}

TEST_F(CalibrateTest, WindowsAreSpreadAndTheLastOnesHeldOut) {
  std::vector<int32_t> tokens(20 * 4 + 3);
  std::iota(tokens.begin(), tokens.end(), 0);
  std::vector<bool> trained(tokens.size(), true);
  trained[75] = false;
  const std::string path = dir_.Write("data.bin", TokenFileOf(tokens, 256, 0, {0, 5, 74, 76}, trained));
  const std::string source = model::LoadFixture("mixtral-gqa").dir;
  const auto config = model::ReadModelConfig(source);
  const auto samples =
      ReadSamples({.dataset = path, .model = source, .samples = 3, .length = 4}, *config, [] { return false; });
  ASSERT_TRUE(samples.ok()) << samples.status();
  EXPECT_THAT(samples->calibration.tokens, ElementsAre(0, 1, 2, 3, 24, 25, 26, 27, 48, 49, 50, 51));
  EXPECT_THAT(samples->calibration.begins, ElementsAre(0, 4, 8));
  EXPECT_THAT(samples->held_out.tokens, ElementsAre(72, 73, 74, 75, 76, 77, 78, 79));
  EXPECT_THAT(samples->held_out.begins, ElementsAre(0, 2, 4));
  EXPECT_THAT(samples->held_out.is_target, ElementsAre(0, 1, 0, 0, 0, 1, 1, 1));
}

TEST(TokenBytesTest, CountsWhatTokensStandFor) {
  EXPECT_THAT(*BytesOfTokens(R"({"model": {"vocab": {"a": 0, "Ġthe": 2, "Ã©": 1}}, "decoder": {"type": "ByteLevel"},
                                 "added_tokens": [{"id": 3, "content": "<end>", "special": true},
                                                  {"id": 4, "content": "<tab>", "special": false}]})"),
              ElementsAre(1, 2, 4, 0, 5));
  EXPECT_THAT(*BytesOfTokens(R"({"model": {"vocab": [["▁the", -1.0], ["<0x0A>", -2], ["é", -3]]}})"),
              ElementsAre(4, 1, 2));
  EXPECT_FALSE(BytesOfTokens("{}").ok());
}

}  // namespace
}  // namespace switchyard::quantize
