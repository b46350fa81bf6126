// The check of a model before a job begins with it.
#include "workers/train/job/check_trainable.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/workers/model/temp_dir.h"

namespace switchyard::train {
namespace {

using testing::HasSubstr;

constexpr char kConfig[] = R"({"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "hidden_size": 8,
  "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 16,
  "num_local_experts": 4, "num_experts_per_tok": 2, "vocab_size": 300, "max_position_embeddings": 64})";

class CheckTrainableTest : public testing::Test {
 protected:
  absl::StatusOr<model::ModelConfig> Check(const std::string& from, const std::string& to, bool weights = false) {
    std::filesystem::create_directories(root_.path() + "/model");
    EXPECT_THAT(kConfig, HasSubstr(from));
    std::ofstream(root_.path() + "/model/config.json") << absl::StrReplaceAll(kConfig, {{from, to}});
    return CheckTrainable(*RootDir::Open(root_.path(), "the checkpoint root"), "model", weights);
  }
  std::string Refused(const std::string& from, const std::string& to) {
    return std::string(Check(from, to).status().message());
  }

  model::TempDir root_;
};

TEST_F(CheckTrainableTest, FactsAreOneLineOfJson) {
  const std::string line = ModelCheckLine(Check("{", "{"));
  EXPECT_EQ(line.find('\n'), line.size() - 1);
  // Embedding and head, q k v o, experts of three matrices, router, three norms.
  const int parameters = 2 * 300 * 8 + (8 * 8 + 2 * 8 * 4 + 8 * 8) + 4 * 3 * 8 * 16 + 4 * 8 + 3 * 8;
  const nlohmann::json facts = {{"architecture", "MixtralForCausalLM"},
                                {"context", 64},
                                {"vocab", 300},
                                {"experts", 4},
                                {"router_bias", false},
                                {"parameters", parameters}};
  EXPECT_EQ(nlohmann::json::parse(line), facts);
}

TEST_F(CheckTrainableTest, WhatNoWorkerTrains) {
  EXPECT_THAT(Refused("_per_tok\": 2", "_per_tok\": 5"), HasSubstr("num_experts_per_tok"));
  EXPECT_THAT(Refused("{", R"({"hidden_act": "sine",)"), HasSubstr("unknown activation \"sine\""));
  EXPECT_THAT(Refused("{", R"({"rope_scaling": {"rope_type": "spiral"},)"), HasSubstr("spiral"));
  EXPECT_THAT(Refused("{", R"({"quantization_config": {"quant_method": "awq"},)"), HasSubstr("quantized weights"));
  EXPECT_THAT(Refused("\"mixtral\"", "\"gpt_oss\""), HasSubstr("training of gpt_oss is not supported"));
  EXPECT_THAT(Refused("\"hidden_size\": 8", "\"hidden_size\": 9"), HasSubstr("no multiple"));
  // An error is a line, too, whatever it quotes.
  const std::string line = ModelCheckLine(Check("{", "{\"hidden_act\": \"\xc3\xa9\\n\","));
  EXPECT_EQ(line.find('\n'), line.size() - 1);
  const nlohmann::json error = nlohmann::json::parse(line);
  EXPECT_EQ(error["code"], static_cast<int>(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(error["error"].get<std::string>(), HasSubstr("unknown activation"));
}

TEST_F(CheckTrainableTest, WeightsAreOpenedWhereAJobBeginsFromThem) {
  EXPECT_EQ(Check("{", "{", true).status().code(), absl::StatusCode::kNotFound);
  std::ofstream(root_.path() + "/model/model.safetensors") << "torn";
  EXPECT_THAT(std::string(Check("{", "{", true).status().message()), HasSubstr("model.safetensors"));
  EXPECT_TRUE(Check("{", "{", false).ok());
}

}  // namespace
}  // namespace switchyard::train
