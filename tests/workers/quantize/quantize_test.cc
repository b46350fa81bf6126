// Quantized checkpoints as they are written: read back by the loader, number by number, and what is refused.
#include "workers/quantize/quantize.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>

#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/workers/model/fixture.h"
#include "tests/workers/model/rank_group.h"
#include "tests/workers/model/temp_dir.h"
#include "workers/checkpoint/files/file_sums.h"
#include "workers/checkpoint/quantized/matrix_reader.h"
#include "workers/model/families/family.h"
#include "workers/model/weights/loader.h"
#include "workers/model/weights/serving_type.h"
#include "workers/model/weights/unused_tensors.h"
#include "workers/quantize/layer_plan.h"

namespace switchyard::quantize {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kDemoModel[] = "deploy/demo-model";

std::string TextOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

std::vector<std::string> FilesIn(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

// [n * k] of a weight of fp32.
std::vector<float> ValuesOf(const ops::Weight& weight) {
  Tensor rows(DType::kF32, {weight.n(), weight.k()});
  EXPECT_TRUE(weight.UnpackRows(0, rows).ok());
  return std::vector<float>(rows.data<float>(), rows.data<float>() + weight.n() * weight.k());
}

// All weights of products of a model, layer by layer, but routers, gates of shared experts and lm_head.
std::vector<const ops::Weight*> LinearsOf(const model::ModelWeights& weights) {
  std::vector<const ops::Weight*> all;
  const auto add = [&](const model::FfnWeights& ffn) { all.insert(all.end(), {&ffn.gate_up, &ffn.down}); };
  for (const model::LayerWeights& layer : weights.layers) {
    all.insert(all.end(), {&layer.attention.qkv, &layer.attention.o});
    if (layer.dense.has_value()) add(*layer.dense);
    if (!layer.moe.has_value()) continue;
    for (const model::FfnWeights& expert : layer.moe->experts) add(expert);
    if (layer.moe->shared.has_value()) add(*layer.moe->shared);
  }
  return all;
}

struct Loaded {
  model::ModelConfig config;
  ops::WeightFormats stored;
  model::ModelWeights weights;
  std::vector<std::string> unused;
};

// formats: null: as they are stored.
Loaded LoadModel(const std::string& dir, const ops::WeightFormats* formats) {
  Loaded loaded;
  const auto config = model::ReadModelConfig(dir);
  EXPECT_TRUE(config.ok()) << config.status();
  const auto checkpoint = checkpoint::Checkpoint::Open(dir);
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
  if (!config.ok() || !checkpoint.ok()) return loaded;
  loaded.config = *config;
  auto table = model::AllocateWeights(*config, DType::kF32, AllExperts(*config));
  const auto params = model::BuildParams(*config, *model::FindFamily(config->model_type), *checkpoint, &*table);
  EXPECT_TRUE(params.ok()) << params.status();
  if (!params.ok()) return loaded;
  loaded.stored = model::StoredFormats(*params, *table);
  loaded.unused = model::UnusedTensors(*checkpoint, *params);
  auto weights = model::LoadWeights(*checkpoint, *config,
                                    {.dtype = DType::kF32,
                                     .format = formats != nullptr ? *formats : loaded.stored,
                                     .residents = AllExperts(*config),
                                     .progress = {}});
  EXPECT_TRUE(weights.ok()) << weights.status();
  if (weights.ok()) loaded.weights = *std::move(weights);
  return loaded;
}

const ops::WeightFormats kAllPlain;

class QuantizeTest : public ::testing::Test {
 protected:
  QuantizeOptions OptionsFor(const std::string& model, GroupFormat format = {}) const {
    return {.model = model, .output = output_, .format = format, .threads = 2, .dataset = {}};
  }
  std::string ErrorOf(const QuantizeOptions& options) const { return ErrorOf(Quantize(options)); }
  static std::string ErrorOf(const absl::StatusOr<QuantizeReport>& report) {
    EXPECT_FALSE(report.ok());
    return std::string(report.status().message());
  }

  const model::TempDir dir_;
  const std::string output_ = dir_.File("out");
};

class FamiliesTest : public QuantizeTest, public ::testing::WithParamInterface<std::string> {};

TEST_P(FamiliesTest, EveryMatrixIsRoundedToNearestAndTheRestIsKept) {
  const std::string source = model::LoadFixture(GetParam()).dir;
  for (const GroupFormat& format : {GroupFormat{.bits = 4, .group = 8}, GroupFormat{.bits = 8, .group = 8}}) {
    std::filesystem::remove_all(output_);
    const auto report = Quantize(OptionsFor(source, format));
    ASSERT_TRUE(report.ok()) << report.status();
    const Loaded before = LoadModel(source, &kAllPlain), after = LoadModel(output_, &kAllPlain);
    ASSERT_TRUE(after.config.quantization.has_value());
    EXPECT_EQ(after.unused, before.unused);
    const auto from = LinearsOf(before.weights), to = LinearsOf(after.weights);
    ASSERT_EQ(from.size(), to.size());
    ASSERT_GT(from.size(), 0u);
    for (size_t i = 0; i < from.size(); ++i) {
      QuantizedMatrix rounded(format, from[i]->n(), from[i]->k());
      std::vector<float> values = ValuesOf(*from[i]);
      for (int64_t row = 0; row < rounded.rows; ++row) RoundRow(values.data() + row * rounded.columns, row, &rounded);
      rounded.Read(0, rounded.rows, values.data());
      EXPECT_EQ(ValuesOf(*to[i]), values) << i;
    }
    EXPECT_EQ(ValuesOf(after.weights.lm_head), ValuesOf(before.weights.lm_head));
    for (size_t i = 0; i < before.weights.layers.size(); ++i) {
      if (!before.weights.layers[i].moe.has_value()) continue;
      EXPECT_EQ(ValuesOf(after.weights.layers[i].moe->router), ValuesOf(before.weights.layers[i].moe->router));
    }
    EXPECT_LT(report->bytes_after, report->bytes_before);
  }
}

std::vector<std::string> QuantizableFixtures() {
  std::vector<std::string> names = model::FixtureNames();
  std::erase_if(names, [](const std::string& name) { return absl::StartsWith(name, "gptoss"); });
  return names;
}

INSTANTIATE_TEST_SUITE_P(Fixtures, FamiliesTest, ::testing::ValuesIn(QuantizableFixtures()),
                         [](const auto& each) { return model::TestName(each.param); });

// In groups of 32 the numbers are those that the server makes at load, and it holds them as they are.
TEST_F(QuantizeTest, TheServerHoldsTheNumbersThatItWouldMakeItself) {
  for (const auto& [bits, held] : {std::pair(4, ops::WeightFormat::kInt4), std::pair(8, ops::WeightFormat::kInt8)}) {
    std::filesystem::remove_all(output_);
    const auto report = Quantize(OptionsFor(kDemoModel, {.bits = bits, .group = 32}));
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_EQ(report->matrices, 8 * (4 + 16 * 3));
    const ops::WeightFormats formats(held, held, held, ops::WeightFormat::kPlain);
    const Loaded made = LoadModel(kDemoModel, &formats), read = LoadModel(output_, nullptr);
    EXPECT_EQ(read.stored, ops::WeightFormats(held, held, held, ops::WeightFormat::kPlain));
    const auto expected = LinearsOf(made.weights), found = LinearsOf(read.weights);
    ASSERT_EQ(expected.size(), found.size());
    for (size_t i = 0; i < found.size(); ++i) {
      ASSERT_EQ(found[i]->format(), held);
      EXPECT_EQ(ValuesOf(*found[i]), ValuesOf(*expected[i])) << i;
    }
  }
}

std::string HashOf(const model::Param& param) {
  std::vector<float> values(static_cast<size_t>(param.matrix->rows() * param.matrix->columns()));
  checkpoint::MatrixScratch scratch;
  const auto read = [](const checkpoint::WeightsFile& file, int64_t begin, absl::Span<uint8_t> to) {
    return file.Read(begin, static_cast<int64_t>(to.size()), to.data());
  };
  EXPECT_TRUE(param.matrix->Read(0, param.matrix->rows(), values.data(), read, &scratch).ok());
  return checkpoint::Sha256Hex({reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)});
}

// What compressed-tensors and transformers read of what is written (tests/golden/quantized/written/make.py).
TEST_F(QuantizeTest, OthersReadTheSameValuesAndLogits) {
  const auto goldens = nlohmann::json::parse(TextOf("tests/golden/quantized/written/goldens.json"));
  ASSERT_EQ(goldens.size(), 5u);
  for (const auto& golden : goldens) {
    SCOPED_TRACE(golden["model"].get<std::string>());
    std::filesystem::remove_all(output_);
    const int bits = golden["format"] == "int4" ? 4 : 8;
    const std::string source = model::LoadFixture(golden["model"]).dir;
    ASSERT_TRUE(Quantize(OptionsFor(source, {.bits = bits, .group = 8})).ok());
    const auto config = model::ReadModelConfig(output_);
    const auto checkpoint = checkpoint::Checkpoint::Open(output_);
    auto table = model::AllocateWeights(*config, DType::kF32, AllExperts(*config));
    const auto params = model::BuildParams(*config, *model::FindFamily(config->model_type), *checkpoint, &*table);
    ASSERT_TRUE(params.ok()) << params.status();
    std::map<std::string, std::string> found;
    for (const model::Param& param : *params) {
      if (param.matrix != nullptr) found[param.name] = HashOf(param);
    }
    EXPECT_EQ(found, (golden["values"].get<std::map<std::string, std::string>>()));
    model::RankGroup group(output_, {.dtype = DType::kF32});
    const std::vector<double> logits = group.Logits(golden["tokens"]);
    const auto expected = golden["logits"].get<std::vector<double>>();
    ASSERT_EQ(logits.size(), expected.size() * golden["tokens"].size());
    double largest = 0;
    for (const double logit : expected) largest = std::max(largest, std::abs(logit));
    // transformers decodes experts in the dtype of their scales, bf16.
    for (size_t v = 0; v < expected.size(); ++v)
      ASSERT_NEAR(logits[logits.size() - expected.size() + v], expected[v], 5e-3 * largest) << v;
  }
}

TEST_F(QuantizeTest, OtherFilesAreCopiedAndTheConfigKeepsItsFields) {
  ASSERT_TRUE(Quantize(OptionsFor(kDemoModel, {.bits = 4, .group = 16})).ok());
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "generation_config.json"}) {
    EXPECT_EQ(TextOf(output_ + "/" + name), TextOf(std::string(kDemoModel) + "/" + name)) << name;
  }
  EXPECT_THAT(TextOf(output_ + "/config.json"),
              AllOf(HasSubstr(R"("Qwen3MoeForCausalLM")"), HasSubstr(R"("rope_theta": 10000.0)"),
                    HasSubstr(R"("group_size": 16)"), HasSubstr(R"("model.layers.7.mlp.gate")")));
  EXPECT_THAT(FilesIn(dir_.path()), ElementsAre("out"));
}

TEST_F(QuantizeTest, AnOutputThatIsThereIsRefusedUnlessItIsEmpty) {
  QuantizeOptions nowhere = OptionsFor(kDemoModel);
  nowhere.output.clear();
  EXPECT_THAT(ErrorOf(nowhere), HasSubstr("--output: name a directory that does not exist"));
  std::filesystem::create_directory(output_);
  dir_.Write("out/notes.txt", "mine");
  EXPECT_THAT(ErrorOf(OptionsFor(kDemoModel)), HasSubstr("exists; name a directory that does not, or an empty one"));
  std::filesystem::remove(output_ + "/notes.txt");
  EXPECT_TRUE(Quantize(OptionsFor(kDemoModel)).ok());
  QuantizeOptions lost = OptionsFor(kDemoModel);
  lost.output = dir_.File("nowhere/out");
  EXPECT_THAT(ErrorOf(lost), HasSubstr("nowhere is no directory"));
}

TEST_F(QuantizeTest, AnUnfinishedFolderOfAnotherRunIsKept) {
  std::filesystem::create_directory(output_ + ".unfinished");
  EXPECT_THAT(ErrorOf(OptionsFor(kDemoModel)), HasSubstr("out.unfinished exists; another run writes it"));
  EXPECT_THAT(FilesIn(dir_.path()), ElementsAre("out.unfinished"));
}

TEST_F(QuantizeTest, FormatsAndGroupsThatAreNotUnderstoodAreRefused) {
  EXPECT_THAT(ErrorOf(OptionsFor(kDemoModel, {.bits = 5, .group = 32})), HasSubstr("known are int4 and int8"));
  EXPECT_THAT(ErrorOf(OptionsFor(kDemoModel, {.bits = 4, .group = 12})),
              HasSubstr("--group_size=12: must be a multiple of 8 from 8 to 1024"));
  EXPECT_THAT(ErrorOf(OptionsFor(kDemoModel, {.bits = 4, .group = 64})),
              HasSubstr("tensor \"model.layers.0.mlp.experts.0.down_proj.weight\": groups of 64 columns do not divide "
                        "its 96 columns"));
  EXPECT_THAT(FilesIn(dir_.path()), IsEmpty());
}

TEST_F(QuantizeTest, ModelsThatCannotBeQuantizedAreRefused) {
  EXPECT_THAT(ErrorOf(OptionsFor("tests/golden/quantized/models/gptq")),
              HasSubstr("the model is quantized already (gptq"));
  EXPECT_THAT(ErrorOf(OptionsFor("tests/golden/models/gptoss-plain")),
              HasSubstr("gpt_oss: its experts are fused and have biases"));
  EXPECT_THAT(ErrorOf(OptionsFor(dir_.File("nothing"))), HasSubstr("no such directory"));
  EXPECT_THAT(ErrorOf(OptionsFor(dir_.Write("model.gguf", "GGUF"))), HasSubstr("is a GGUF file"));
  EXPECT_THAT(FilesIn(dir_.path()), ElementsAre("model.gguf"));
}

// Stopped at each of the first times that it asks: nothing stays.
TEST_F(QuantizeTest, NothingStaysOfARunThatIsStopped) {
  for (const int64_t most : {0, 1, 5, 40, 400}) {
    std::atomic<int64_t> asked = 0;
    QuantizeOptions options = OptionsFor(kDemoModel);
    options.stop = [&] { return asked.fetch_add(1) >= most; };
    const auto report = Quantize(options);
    ASSERT_TRUE(absl::IsCancelled(report.status())) << report.status();
    EXPECT_THAT(FilesIn(dir_.path()), IsEmpty());
  }
}

TEST_F(QuantizeTest, ValuesThatAreNoNumbersAreNamed) {
  const std::string source = dir_.File("model");
  std::filesystem::copy(model::LoadFixture("mixtral-gqa").dir, source);
  const auto opened = checkpoint::Checkpoint::Open(source);
  const auto at = opened->Find("model.layers.1.block_sparse_moe.experts.3.w2.weight");
  ASSERT_NE(at.entry, nullptr);
  std::fstream file(source + "/model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(at.entry->begin + 2 * (32 + 5));
  file.write("\xc0\x7f", 2);  // NaN in bf16
  file.close();
  EXPECT_THAT(ErrorOf(OptionsFor(source, {.bits = 4, .group = 8})),
              AllOf(HasSubstr("w2.weight\": expected finite values of fp32, found nan at row 1, column 5")));
  EXPECT_THAT(FilesIn(dir_.path()), ElementsAre("model"));
}

}  // namespace
}  // namespace switchyard::quantize
