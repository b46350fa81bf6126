// Patterns of names, and rules against the names of models' weights.
#include "workers/train/parameters/parameter_rules.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/base/check.h"

namespace switchyard::train {
namespace {

using testing::HasSubstr;

TEST(PatternTest, FitsTheWholeName) {
  const struct {
    const char *pattern, *name;
    bool fits;
  } kCases[] = {
      {"lm_head.weight", "lm_head.weight", true},
      {"lm_head", "lm_head.weight", false},
      {"lm_head*", "lm_head.weight", true},
      {"lm_head.weight*", "lm_head.weight", true},
      {"*", "lm_head.weight", true},
      {"*", "", true},
      {"", "", true},
      {"", "a", false},
      {"***", "abc", true},
      {"*.experts.*", "model.layers.0.mlp.experts.3.up_proj.weight", true},
      {"*.experts.*", "model.layers.0.mlp.shared_expert.up_proj.weight", false},
      {"*.layers.1.*", "model.layers.11.mlp.gate.weight", false},
      {"*.1.*", "model.layers.11.mlp.experts.1.up_proj.weight", true},
      {"*ab*ab", "ababab", true},
      {"*ab*ab", "ab", false},
      {"a*b*c", "axxbyybzzc", true},
      {"a*b*c", "axxbyybzz", false},
      {"a?c", "abc", false},  // only * is special
      {"a.c", "abc", false},
      {"[ab]", "a", false},
  };
  for (const auto& each : kCases)
    EXPECT_EQ(FitsPattern(each.pattern, each.name), each.fits) << each.pattern << " " << each.name;
  // Long runs of what nearly fits take time in proportion to both lengths.
  const std::string many(100000, 'a');
  EXPECT_FALSE(FitsPattern("*a*a*a*a*a*a*a*a*b", many));
}

model::ModelConfig ConfigOf(const std::string& name) {
  const absl::StatusOr<model::ModelConfig> config = model::ReadModelConfig("tests/golden/models/" + name);
  SY_CHECK_OK(config.status());
  return *config;
}

jobs::JobSpec With(std::vector<jobs::ParameterRule> rules, int32_t rank = 0) {
  jobs::JobSpec spec;
  spec.parameters = std::move(rules);
  spec.lora.rank = rank;
  return spec;
}

TEST(RulesTest, CountWhatIsFrozen) {
  const model::ModelConfig config = ConfigOf("qwen2-shared");
  const int64_t experts = config.num_moe_layers() * config.num_experts * 3 * config.expert_intermediate * config.hidden;
  const auto none = CountFrozen(With({}), config);
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_EQ(none->OfBase() + none->adapters, 0);
  // The first rule that fits holds.
  const auto some = CountFrozen(With({{.pattern = "*experts.0.*", .rate = 2},
                                      {.pattern = "*.experts.*", .frozen = true},
                                      {.pattern = "lm_head.weight", .frozen = true}}),
                                config);
  ASSERT_TRUE(some.ok()) << some.status();
  ASSERT_EQ(some->of_expert.size(), static_cast<size_t>(config.num_experts));
  EXPECT_EQ(some->of_expert[0], 0);
  for (size_t i = 1; i < some->of_expert.size(); ++i) EXPECT_EQ(some->of_expert[i], experts / config.num_experts);
  EXPECT_EQ(some->dense, config.vocab_size * config.hidden);
  EXPECT_EQ(some->OfBase(), some->dense + experts / config.num_experts * (config.num_experts - 1));
  // A part of a packed weight has its gradient and moments with the others: k of q, k and v, gate of gate and up.
  const int64_t kv = config.num_layers() * config.kv_width(), q = config.num_layers() * config.q_width();
  const auto dense = [&](std::vector<jobs::ParameterRule> rules) { return CountFrozen(With(rules), config)->dense; };
  EXPECT_EQ(dense({{.pattern = "*k_proj.*", .frozen = true}}), 0);
  const std::vector<jobs::ParameterRule> weights = {{.pattern = "*q_proj.weight", .frozen = true},
                                                    {.pattern = "*k_proj.weight", .frozen = true},
                                                    {.pattern = "*v_proj.weight", .frozen = true}};
  EXPECT_EQ(dense(weights), (q + 2 * kv) * config.hidden) << "their biases are another block";
  const auto gates = CountFrozen(With({{.pattern = "*.experts.*.gate_proj.*", .frozen = true}}), config);
  ASSERT_TRUE(gates.ok()) << gates.status();
  EXPECT_EQ(gates->OfBase(), 0);
}

TEST(RulesTest, RefuseAPatternThatFitsNothingAndATrainingOfNothing) {
  for (const char* model : {"qwen2-shared", "olmoe-clip", "gpt2-bias", "mixtral-window", "qwen3-qknorm"}) {
    const model::ModelConfig config = ConfigOf(model);
    EXPECT_TRUE(CountFrozen(With({{.pattern = "*embed_tokens*", .frozen = true}}), config).ok()) << model;
    const absl::Status wrong =
        CountFrozen(With({{.pattern = "*norm*", .rate = 2}, {.pattern = "*.expert.*", .frozen = true}}), config)
            .status();
    EXPECT_EQ(wrong.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(wrong.message()), HasSubstr("parameters[1]: \"*.expert.*\" fits no weight of "));
    const absl::Status all = CountFrozen(With({{.pattern = "*", .frozen = true}}), config).status();
    EXPECT_THAT(std::string(all.message()), HasSubstr("all weights are frozen"));
  }
}

TEST(RulesTest, RefuseARuleThatHoldsForNothing) {
  const model::ModelConfig config = ConfigOf("olmoe-clip");
  const auto refusal = [&](std::vector<jobs::ParameterRule> rules, int32_t rank = 0) {
    const absl::Status status = CountFrozen(With(std::move(rules), rank), config).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_EQ(refusal({{.pattern = "*experts*", .frozen = true}, {.pattern = "*.experts.3.*", .rate = 2}}),
            "parameters[1]: \"*.experts.3.*\" holds for no weight: rules before it hold for all that it fits, such as "
            "parameters[0], \"*experts*\", for model.layers.0.mlp.experts.3.gate_proj.weight");
  EXPECT_THAT(refusal({{.pattern = "*lora_A*"}, {.pattern = "*lora_B*", .rate = 2}, {.pattern = "*", .rate = 3}}, 4),
              HasSubstr("parameters[2]: \"*\" holds for no weight: "))
      << "several hold together";
  EXPECT_TRUE(
      CountFrozen(With({{.pattern = "*experts.3.*", .rate = 2}, {.pattern = "*experts*", .frozen = true}}), config)
          .ok());
}

// Of routers that choose by scores plus biases, which no gradient trains.
TEST(RulesTest, RefuseABiasRateThatMovesNothing) {
  const model::ModelConfig config = ConfigOf("gpt2-bias");
  ASSERT_TRUE(config.router_bias);
  const auto status = [&](const char* pattern, double rate) {
    jobs::JobSpec spec = With({{.pattern = pattern, .frozen = true}});
    spec.balance_bias_rate = rate;
    return CountFrozen(spec, config).status();
  };
  const std::string all = "*e_score_correction_bias";
  EXPECT_EQ(status(all.c_str(), 0.01).message(),
            "parameters: the biases of all routers are frozen, so a balance_bias_rate of 0.01 would move none; 0 is "
            "wanted, or a rule that leaves them");
  EXPECT_TRUE(status(all.c_str(), 0).ok());
  EXPECT_TRUE(status("*layers.0.*", 0.01).ok()) << "those of other layers move";
}

TEST(RulesTest, ConcernAdaptersAloneWhereThereAreSome) {
  const model::ModelConfig config = ConfigOf("olmoe-clip");
  const auto counted = CountFrozen(With({{.pattern = "*lora_B*", .rate = 16}}, 4), config);
  ASSERT_TRUE(counted.ok()) << counted.status();
  const int64_t widths = 4 * config.hidden + 2 * config.q_width() + 2 * config.kv_width();
  EXPECT_EQ(counted->adapters, config.num_layers() * 4 * widths);
  EXPECT_EQ(counted->OfBase(), 0);
  EXPECT_THAT(std::string(CountFrozen(With({{.pattern = "*experts*", .frozen = true}}, 4), config).status().message()),
              HasSubstr("base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"));
}

// The error names what the job has: targets, not rules.
TEST(RulesTest, AdaptersOfTooManyExpertsAreRefusedByTheirTargets) {
  model::ModelConfig config = ConfigOf("olmoe-clip");
  config.num_experts = 1 << 20;  // in each of two layers
  config.hidden = config.expert_intermediate = 1;
  jobs::JobSpec spec = With({}, 4);
  EXPECT_TRUE(CountFrozen(spec, config).ok());
  spec.lora.targets = {"q_proj", "down_proj"};
  EXPECT_EQ(CountFrozen(spec, config).status().message(),
            "lora.targets: adapters of experts for a model of 2097152 experts in all, at most 1048576");
  EXPECT_EQ(CountFrozen(With({{.pattern = "*", .rate = 2}}), config).status().message(),
            "parameters: rules for a model of 2097152 experts in all, at most 1048576");
}

}  // namespace
}  // namespace switchyard::train
