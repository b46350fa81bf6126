// Adapters beside each other on whole models: PEFT's logits, no row's answer depends on the others', and what is
// refused.
#include "workers/model/weights/served_adapters.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/base/check.h"
#include "scheduler/base/io/model_dir.h"
#include "tests/workers/checkpoint/safetensors_bytes.h"
#include "tests/workers/model/fixture.h"
#include "tests/workers/model/rank_group.h"
#include "tests/workers/model/temp_dir.h"
#include "workers/checkpoint/tensors/weights_file.h"
#include "workers/model/weights/adapters.h"

namespace switchyard::model {
namespace {

using checkpoint::LoraAdapter;
using testing::HasSubstr;

constexpr char kAdapters[] = "tests/golden/adapters/", kModels[] = "tests/golden/models/";

std::vector<std::string> FoldersOf(const std::string& model) {
  return {absl::StrCat(kAdapters, "lora-", model), absl::StrCat(kAdapters, "other-", model)};
}

template <class Elem>
std::vector<Elem> Golden(const std::string& name, const std::string& tensor) {
  const absl::StatusOr<ModelDir> dir = ModelDir::Open(kAdapters);
  SY_CHECK_OK(dir.status());
  const auto file = checkpoint::WeightsFile::OpenSafetensors(*dir, name + ".safetensors");
  SY_CHECK_OK(file.status());
  std::vector<Elem> values;
  for (const auto& [each, entry] : (*file)->tensors()) {
    if (each != tensor) continue;
    values.resize(static_cast<size_t>(entry.bytes) / sizeof(Elem));
    SY_CHECK_OK((*file)->Read(entry.begin, entry.bytes, values.data()));
  }
  SY_CHECK(!values.empty());
  return values;
}

class ServedAdaptersTest : public testing::TestWithParam<std::string> {
 protected:
  const std::string model_ = kModels + GetParam();
  // Three prompts, each for the model and for both adapters; the same tokens beside each other.
  std::vector<std::vector<int32_t>> prompts_, want_;
  std::vector<int32_t> adapter_of_;
  void SetUp() override {
    for (int i = 0; i < 3; ++i) {
      for (const auto& [name, adapter] : {std::pair("base", 0), std::pair("other", 2), std::pair("lora", 1)}) {
        const std::string file = "beside-" + GetParam();
        prompts_.push_back(Golden<int32_t>(file, absl::StrCat(name, ".", i, ".prompt")));
        want_.push_back(Golden<int32_t>(file, absl::StrCat(name, ".", i, ".tokens")));
        adapter_of_.push_back(adapter);
      }
    }
  }
  std::vector<std::vector<int32_t>> Greedy(RankGroupOptions options) {
    options.adapters = FoldersOf(GetParam());
    options.adapter_of = adapter_of_;
    RankGroup group(model_, options);
    auto tokens = group.Greedy(prompts_, static_cast<int32_t>(want_[0].size()));
    EXPECT_EQ(group.rows_given() > 0, options.min_rebalance_rows > 0);
    return tokens;
  }
};
INSTANTIATE_TEST_SUITE_P(Models, ServedAdaptersTest, testing::Values("olmoe-clip", "qwen2-shared"),
                         [](const auto& info) {
                           return absl::StrReplaceAll(info.param, {{"-", "_"}});
                         });

TEST_P(ServedAdaptersTest, MixedInOneBatchTheyAnswerAsPeft) {
  EXPECT_EQ(Greedy({}), want_);
  EXPECT_EQ(Greedy({.world = 2, .threads = 2}), want_);
  EXPECT_EQ(Greedy({.chunk = 7, .batch = 4}), want_);
  EXPECT_EQ(Greedy({.world = 2, .micro_batches = 3}), want_);
  EXPECT_EQ(Greedy({.world = 2, .batch = 3, .min_rebalance_rows = 1}), want_);
  EXPECT_EQ(Greedy({.world = 4, .chunk = 7, .batch = 5, .micro_batches = 2, .min_rebalance_rows = 2}), want_);
  EXPECT_EQ(Greedy({.expert_slots = 3}), want_);
}

// Also where numbers are rounded coarsely, so that the least difference would be seen.
TEST_P(ServedAdaptersTest, AnswersDoNotDependOnTheBatch) {
  for (const auto& [dtype, format] :
       {std::pair(DType::kBf16, ops::WeightFormat::kPlain), std::pair(DType::kF32, ops::WeightFormat::kInt8),
        std::pair(DType::kBf16, ops::WeightFormat::kInt4)}) {
    const RankGroupOptions alone = {.dtype = dtype, .formats = format, .batch = 1};
    const auto want = Greedy(alone);
    std::vector<std::vector<int32_t>> of[3];
    for (size_t i = 0; i < want.size(); ++i) of[i % 3].push_back(want[i]);
    EXPECT_NE(of[0], of[1]);
    EXPECT_NE(of[0], of[2]);
    EXPECT_EQ(Greedy({.dtype = dtype, .formats = format}), want);
    EXPECT_EQ(Greedy({.dtype = dtype, .formats = format, .world = 2, .chunk = 5, .batch = 5, .min_rebalance_rows = 1}),
              want);
    // Without adapters the model answers as it did.
    std::vector<std::vector<int32_t>> plain_prompts;
    for (size_t i = 0; i < prompts_.size(); i += 3) plain_prompts.push_back(prompts_[i]);
    RankGroup plain(model_, {.dtype = dtype, .formats = format});
    const auto base = plain.Greedy(plain_prompts, static_cast<int32_t>(want_[0].size()));
    for (size_t i = 0; i < base.size(); ++i) EXPECT_EQ(base[i], want[3 * i]);
  }
}

TEST_P(ServedAdaptersTest, LogitsArePeftsAndOfTheModelAloneToTheBit) {
  const std::string name = "lora-" + GetParam();
  const std::vector<float> golden = Golden<float>(name, "logits");
  std::vector<int32_t> tokens = Golden<int32_t>(name, "steps.tokens");
  const auto logits = [&](std::vector<std::string> adapters, std::vector<int32_t> adapter_of) {
    RankGroupOptions options;
    options.adapters = std::move(adapters);
    options.adapter_of = std::move(adapter_of);
    RankGroup group(model_, options);
    tokens.resize(golden.size() / static_cast<size_t>(group.config().vocab_size));
    return group.Logits(tokens);
  };
  const std::vector<double> got = logits(FoldersOf(GetParam()), {1});
  double largest = 0, difference = 0;
  for (size_t i = 0; i < golden.size(); ++i) {
    largest = std::max<double>(largest, std::abs(golden[i]));
    difference = std::max(difference, std::abs(golden[i] - got[i]));
  }
  EXPECT_LT(difference, 1e-4 * largest);
  EXPECT_EQ(logits(FoldersOf(GetParam()), {0}), logits({}, {}));
  EXPECT_NE(logits(FoldersOf(GetParam()), {2}), got);
}

// Models that have no goldens with adapters: with biases, with norms of each head, and a file whose rows of q and k are
// in another order.  The oracle is the same adapter merged into the weights.
struct Base {
  const char *fixture, *path;
};

class DrawnAdapterTest : public testing::TestWithParam<Base> {
 protected:
  // Of all four projections, as PEFT saves it.
  static void Write(const ModelConfig& config, const TempDir& dir) {
    constexpr int64_t kRank = 4;
    std::mt19937 gen(11);
    const auto draw = [&](int64_t rows, int64_t columns, double deviation) {
      std::normal_distribution<float> normal(0, static_cast<float>(deviation));
      std::vector<float> values(static_cast<size_t>(rows * columns));
      for (float& value : values) value = normal(gen);
      return checkpoint::FloatTensor("F32", {rows, columns}, values);
    };
    std::map<std::string, checkpoint::WrittenTensor> tensors;
    for (int64_t layer = 0; layer < config.num_layers(); ++layer) {
      for (const AdaptedProjection& of : AdaptedProjections(config)) {
        const std::string name = absl::StrCat("base_model.model.model.layers.", layer, ".self_attn.", of.name);
        tensors[name + ".lora_A.weight"] = draw(kRank, of.k, 1 / std::sqrt(static_cast<double>(of.k)));
        tensors[name + ".lora_B.weight"] = draw(of.n, kRank, 0.2);
      }
    }
    dir.Write("adapter_config.json", R"({"peft_type": "LORA", "r": 4, "lora_alpha": 6})");
    dir.Write("adapter_model.safetensors", checkpoint::SafetensorsBytes(tensors));
  }
  static double Distance(const std::vector<double>& a, const std::vector<double>& b) {
    EXPECT_EQ(a.size(), b.size());
    double difference = 0, largest = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      difference = std::max(difference, std::abs(a[i] - b[i]));
      largest = std::max(largest, std::abs(b[i]));
    }
    return difference / largest;
  }
};
INSTANTIATE_TEST_SUITE_P(Models, DrawnAdapterTest,
                         testing::Values(Base{"gptoss-plain", "tests/golden/models/gptoss-plain"},
                                         Base{"gptoss-mxfp4", "tests/golden/models/gptoss-mxfp4"},
                                         Base{"qwen3-qknorm", "tests/golden/models/qwen3-qknorm"},
                                         Base{"mixtral-gqa", "tests/golden/gguf/models/mixtral-gqa.gguf"}),
                         [](const auto& info) { return TestName(info.param.fixture); });

TEST_P(DrawnAdapterTest, RowsGetWhatMergedWeightsGive) {
  const auto config = ReadModelConfig(GetParam().path);
  ASSERT_TRUE(config.ok()) << config.status();
  const TempDir dir;
  Write(*config, dir);
  const std::vector<int32_t> tokens = LoadFixture(GetParam().fixture).steady.tokens;
  for (const auto& [dtype, tolerance] : {std::pair(DType::kF32, 1e-4), std::pair(DType::kF64, 1e-5)}) {
    const auto logits = [&](const RankGroupOptions& options) {
      RankGroup group(GetParam().path, options);
      return group.Logits(tokens);
    };
    const auto merged = logits({.dtype = dtype, .merged_adapter = dir.path()});
    EXPECT_LT(Distance(logits({.dtype = dtype, .adapters = {dir.path()}, .adapter_of = {1}}), merged), tolerance)
        << DTypeName(dtype);
    EXPECT_GT(Distance(logits({.dtype = dtype}), merged), 0.05) << "the adapter would not be seen";
  }
}

std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// What CheckServedAdapter says of olmoe-clip's adapter, with `from` in its files as `to` (in the weights' as long).
absl::Status Checked(const std::string& model, DType dtype, const std::string& from = "", const std::string& to = "") {
  const std::string source = absl::StrCat(kAdapters, "lora-olmoe-clip/");
  TempDir dir;
  for (const char* const name : {"adapter_config.json", "adapter_model.safetensors"}) {
    std::string text = ReadAll(source + name);
    if (!from.empty()) text = absl::StrReplaceAll(text, {{from, to}});
    dir.Write(name, text);
  }
  const auto adapter = LoraAdapter::Open(dir.path());
  EXPECT_TRUE(adapter.ok()) << adapter.status();
  return CheckServedAdapter(*ReadModelConfig(kModels + model), dtype, **adapter);
}

TEST(ServedAdapterCheckTest, WhatDoesNotFitIsNamed) {
  EXPECT_TRUE(Checked("olmoe-clip", DType::kBf16).ok());
  const absl::Status shape = Checked("mixtral-window", DType::kBf16);
  EXPECT_EQ(shape.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(shape.message()),
              testing::AllOf(HasSubstr("_proj.weight is ["), HasSubstr("the adapter is for [")));
  const absl::Status expert =
      Checked("olmoe-clip", DType::kBf16, ".layers.0.self_attn.q_proj.", ".l.0.mlp.experts.1.up_proj.");
  EXPECT_EQ(expert.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(expert.message()), HasSubstr("(--adapter merges one that adapts other matrices, too)"));
  const auto fused = LoraAdapter::Open(absl::StrCat(kAdapters, "experts-olmoe-clip"));
  ASSERT_TRUE(fused.ok()) << fused.status();
  const absl::Status experts =
      CheckServedAdapter(*ReadModelConfig(absl::StrCat(kModels, "olmoe-clip")), DType::kBf16, **fused);
  EXPECT_EQ(experts.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(experts.message()), HasSubstr("it adapts model.layers.0.mlp.experts.0.down_proj"));
  const absl::Status dense = Checked("olmoe-clip", DType::kBf16, "0.self_attn.q_proj.", "0.mlp.share.q_proj.");
  EXPECT_EQ(dense.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(dense.message()), HasSubstr("it adapts model.layers.0.mlp.share.q_proj.weight; of adapters"));
  const absl::Status layer = Checked("olmoe-clip", DType::kBf16, ".layers.0.", ".layers.9.");
  EXPECT_EQ(layer.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(layer.message()),
              HasSubstr("it adapts model.layers.9.self_attn.k_proj.weight, the model has "));
}

// Else it would be Inf where sums are multiplied by it.
TEST(ServedAdapterCheckTest, AScaleThatSumsCannotHoldIsRefused) {
  const auto checked = [](DType dtype) {
    return Checked("olmoe-clip", dtype, "\"lora_alpha\": 8", "\"lora_alpha\": 1e300");
  };
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
    const absl::Status status = checked(dtype);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("_proj.weight: its scale, of lora_alpha and r, is 2.5e+299, which fp32 cannot hold"));
  }
  EXPECT_TRUE(checked(DType::kF64).ok());
}

TEST(ServedAdapterCheckTest, BytesAreThoseOfTheWeights) {
  const auto adapter = LoraAdapter::Open(absl::StrCat(kAdapters, "other-olmoe-clip"));
  ASSERT_TRUE(adapter.ok()) << adapter.status();
  const ModelConfig config = *ReadModelConfig(absl::StrCat(kModels, "olmoe-clip"));
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBf16, DType::kF16}) {
    ModelWeights weights;
    auto layers = PackServedAdapter(config, dtype, **adapter);
    ASSERT_TRUE(layers.ok()) << layers.status();
    for (LayerAdapter& layer : *layers) weights.adapters.emplace_back().push_back(std::move(layer));
    EXPECT_EQ(weights.bytes(), ServedAdapterBytes(dtype, **adapter));
    EXPECT_GT(weights.bytes(), 0);
  }
}

}  // namespace
}  // namespace switchyard::model
