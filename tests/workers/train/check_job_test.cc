// The check of a job before it is accepted: its model, the weights that it begins from, its memory.
#include "workers/train/job/check_job.h"

#include <cinttypes>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/workers/model/small_checkpoint.h"

namespace switchyard::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr char kConfig[] = R"({"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "hidden_size": 8,
  "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 16,
  "num_local_experts": 4, "num_experts_per_tok": 2, "vocab_size": 300, "max_position_embeddings": 64})";

// SmallConfig's.
constexpr char kOlmoe[] = R"({"architectures": ["OlmoeForCausalLM"], "model_type": "olmoe", "hidden_size": 8,
  "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 6,
  "num_experts": 3, "num_experts_per_tok": 2, "vocab_size": 10, "max_position_embeddings": 32})";

class CheckJobTest : public testing::Test {
 protected:
  absl::StatusOr<CheckedJob> Check(const std::string& from, const std::string& to) {
    std::filesystem::create_directories(root_.path() + "/model");
    EXPECT_THAT(kConfig, HasSubstr(from));
    std::ofstream(root_.path() + "/model/config.json") << absl::StrReplaceAll(kConfig, {{from, to}});
    return CheckSpec({.architecture = "model"});
  }
  absl::StatusOr<CheckedJob> CheckSpec(const jobs::JobSpec& spec, const JobCheckOptions& options = {}) {
    return CheckJob(*RootDir::Open(root_.path(), "the checkpoint root"), spec, options);
  }
  // A job that begins from these tensors.
  absl::Status CheckBase(const model::Tensors& tensors, absl::Duration read_limit = absl::Seconds(60)) {
    std::filesystem::create_directories(root_.path() + "/base");
    std::ofstream(root_.path() + "/base/config.json") << kOlmoe;
    std::ofstream(root_.path() + "/base/model.safetensors") << checkpoint::SafetensorsBytes(tensors);
    return CheckSpec({.base_checkpoint = "base"}, {.read_limit = read_limit}).status();
  }
  std::string Refused(const std::string& from, const std::string& to) {
    return std::string(Check(from, to).status().message());
  }

  model::TempDir root_;
};

TEST_F(CheckJobTest, FactsAreOneLineOfJson) {
  const std::string line = JobCheckLine(Check("{", "{"));
  EXPECT_EQ(line.find('\n'), line.size() - 1);
  // Embedding and head, q k v o, experts of three matrices, router, three norms.
  const int parameters = 2 * 300 * 8 + (8 * 8 + 2 * 8 * 4 + 8 * 8) + 4 * 3 * 8 * 16 + 4 * 8 + 3 * 8;
  const nlohmann::json facts = {{"architecture", "MixtralForCausalLM"},
                                {"context", 64},
                                {"vocab", 300},
                                {"experts", 4},
                                {"router_bias", false},
                                {"parameters", parameters},
                                {"frozen", 0},
                                {"adapters", 0}};
  EXPECT_EQ(nlohmann::json::parse(line), facts);
}

TEST_F(CheckJobTest, WhatIsFrozenIsCounted) {
  ASSERT_TRUE(Check("{", "{").ok());
  jobs::JobSpec spec = {.architecture = "model"};
  spec.parameters = {{.pattern = "*.experts.1.*", .frozen = true}, {.pattern = "lm_head*", .frozen = true}};
  nlohmann::json facts = nlohmann::json::parse(JobCheckLine(CheckSpec(spec)));
  EXPECT_EQ(facts["frozen"], 3 * 8 * 16 + 300 * 8);
  EXPECT_EQ(facts["adapters"], 0);
  spec.parameters = {};
  spec.lora = {.rank = 2, .targets = {"k_proj"}};
  facts = nlohmann::json::parse(JobCheckLine(CheckSpec(spec)));
  EXPECT_EQ(facts["frozen"], 0);
  EXPECT_EQ(facts["adapters"], 2 * (8 + 4));
  spec.lora.targets = {"k_proj", "gate_up_proj", "down_proj"};
  facts = nlohmann::json::parse(JobCheckLine(CheckSpec(spec)));
  EXPECT_EQ(facts["adapters"], 2 * (8 + 4) + 4 * 2 * ((8 + 2 * 16) + (16 + 8)));  // of four experts
  spec.parameters = {{.pattern = "*.experts.9.*", .frozen = true}};
  EXPECT_THAT(std::string(CheckSpec(spec).status().message()),
              HasSubstr("parameters[0]: \"*.experts.9.*\" fits no weight of "));
}

TEST_F(CheckJobTest, WhatNoWorkerTrains) {
  EXPECT_THAT(Refused("_per_tok\": 2", "_per_tok\": 5"), HasSubstr("num_experts_per_tok"));
  EXPECT_THAT(Refused("{", R"({"hidden_act": "sine",)"), HasSubstr("unknown activation \"sine\""));
  EXPECT_THAT(Refused("{", R"({"rope_scaling": {"rope_type": "spiral"},)"), HasSubstr("spiral"));
  EXPECT_THAT(Refused("{", R"({"quantization_config": {"quant_method": "awq"},)"), HasSubstr("quantized weights"));
  EXPECT_THAT(Refused("\"mixtral\"", "\"gpt_oss\""), HasSubstr("training of gpt_oss is not supported"));
  EXPECT_THAT(Refused("\"hidden_size\": 8", "\"hidden_size\": 9"), HasSubstr("no multiple"));
  // An error is a line, too, whatever it quotes.
  const std::string line = JobCheckLine(Check("{", "{\"hidden_act\": \"\xc3\xa9\\n\","));
  EXPECT_EQ(line.find('\n'), line.size() - 1);
  const nlohmann::json error = nlohmann::json::parse(line);
  EXPECT_EQ(error["code"], static_cast<int>(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(error["error"].get<std::string>(), HasSubstr("unknown activation"));
}

TEST_F(CheckJobTest, WeightsAreOpenedWhereAJobBeginsFromThem) {
  EXPECT_TRUE(Check("{", "{").ok());
  EXPECT_EQ(CheckSpec({.base_checkpoint = "model"}).status().code(), absl::StatusCode::kNotFound);
  std::ofstream(root_.path() + "/model/model.safetensors") << "torn";
  EXPECT_THAT(std::string(CheckSpec({.base_checkpoint = "model"}).status().message()), HasSubstr("model.safetensors"));
}

TEST_F(CheckJobTest, TensorsAreTheModels) {
  const std::string up = "model.layers.0.mlp.experts.2.up_proj.weight", head = "lm_head.weight";
  for (const bool fused : {false, true}) {
    EXPECT_EQ(CheckBase(model::SmallTensors("BF16", fused)), absl::OkStatus()) << fused;
  }
  const model::Tensors good = model::SmallTensors("F32", /*fused=*/false);
  const auto refused = [&](const std::function<void(model::Tensors*)>& spoil) {
    model::Tensors tensors = good;
    spoil(&tensors);
    const absl::Status status = CheckBase(tensors);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(refused([&](auto* t) { t->erase(up); }), HasSubstr(up));
  EXPECT_THAT(refused([&](auto* t) { (*t)[head] = model::Numbered("F32", {8, 10}, 1); }), HasSubstr("[8, 10]"));
  EXPECT_THAT(refused([&](auto* t) {
                (*t)["model.layers.1.mlp.gate.weight"] = model::Numbered("F32", {3, 8}, 1);
              }),
              HasSubstr("model.layers.1.mlp.gate.weight"));
  EXPECT_THAT(refused([&](auto* t) {
                for (int i = 0; i < 2; ++i) t->erase(std::prev(t->end()));
                t->erase("model.embed_tokens.weight");
                t->erase(head);
              }),
              HasSubstr("embed_tokens"));
}

TEST_F(CheckJobTest, ValuesAreFinite) {
  const std::string down = "model.layers.0.mlp.experts.1.down_proj.weight";
  const std::vector<float> nan(48, std::numeric_limits<float>::quiet_NaN());
  for (const char* dtype : {"F32", "BF16"}) {
    model::Tensors tensors = model::SmallTensors(dtype, /*fused=*/false);
    tensors[down] = checkpoint::FloatTensor(dtype, {8, 6}, nan);
    const absl::Status status = CheckBase(tensors);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << dtype;
    EXPECT_THAT(std::string(status.message()), HasSubstr(down));
    EXPECT_TRUE(CheckBase(tensors, absl::ZeroDuration()).ok()) << "values are read for a while only";
  }
}

// Nothing is allocated for a config.json that describes another model than the files have.
TEST_F(CheckJobTest, AModelThatItsFilesCannotHold) {
  ASSERT_TRUE(CheckBase(model::SmallTensors("F32", /*fused=*/false)).ok());
  std::ofstream(root_.path() + "/base/config.json")
      << absl::StrReplaceAll(kOlmoe, {{"\"vocab_size\": 10", "\"vocab_size\": 16777216"}});
  EXPECT_THAT(
      std::string(CheckSpec({.base_checkpoint = "base"}).status().message()),
      HasSubstr("config.json: describes a model of about 5.36872e+08 bytes in bf16, the files of its weights have "));
}

TEST_F(CheckJobTest, MemoryOfRanksOnThisMachine) {
  ASSERT_TRUE(Check("{", "{").ok());
  jobs::JobSpec spec = {.architecture = "model", .sequence_length = 64, .batch_sequences = 1 << 20, .workers = 2};
  EXPECT_TRUE(CheckSpec(spec).ok()) << "other machines'";
  const JobCheckOptions options = {.ranks_here = 2, .memory_bytes = int64_t{2} << 30};
  const absl::Status status = CheckSpec(spec, options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("the worker has 1073741824 bytes available; most are activations: "
                        "a lower micro_batch_sequences (now 524288)"));
  spec.micro_batch_sequences = 64;
  EXPECT_TRUE(CheckSpec(spec, options).ok());
  spec.offload = jobs::OffloadPolicy::kAlways;
  EXPECT_THAT(std::string(CheckSpec(spec, options).status().message()), HasSubstr("no --train_offload_dir"));
}

// Dense state is most of this model's.
TEST_F(CheckJobTest, ShardedDenseStateNeedsLess) {
  ASSERT_TRUE(Check("\"vocab_size\": 300", "\"vocab_size\": 300000").ok());
  jobs::JobSpec spec = {.architecture = "model", .workers = 2};
  const auto refused = [&](int64_t bytes) {
    return std::string(CheckSpec(spec, {.ranks_here = 2, .memory_bytes = bytes}).status().message());
  };
  const auto needed = [&] {
    int64_t bytes = 0;
    EXPECT_EQ(std::sscanf(refused(1).c_str(), "training needs at least %" SCNd64 " bytes", &bytes), 1) << refused(1);
    return bytes;
  };
  const int64_t whole = needed();
  EXPECT_THAT(refused(2 * whole - 2),
              AllOf(HasSubstr("zero=1, with which each has "), HasSubstr(" of them, is enough")));
  EXPECT_THAT(refused(2), HasSubstr(" of them, is not enough; workers with more memory are needed"));
  spec.zero = 1;
  // Embedding and head: of 12 bytes a number half are the other worker's.
  const int64_t sharded = needed(), less = 12 / 2 * 2 * 300'000 * 8;
  EXPECT_GE(whole - sharded, less);
  EXPECT_LE(whole - sharded, less + less / 100);
  EXPECT_EQ(refused(2 * whole - 2), "");
}

}  // namespace
}  // namespace switchyard::train
