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
  const auto none = CountTrained(With({}), config);
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_EQ(none->frozen_experts + none->frozen_dense + none->adapters, 0);
  // The first rule that fits holds.
  const auto some = CountTrained(With({{.pattern = "*experts.0.*", .rate = 2},
                                       {.pattern = "*.experts.*", .frozen = true},
                                       {.pattern = "lm_head.weight", .frozen = true}}),
                                 config);
  ASSERT_TRUE(some.ok()) << some.status();
  EXPECT_EQ(some->frozen_experts, experts / config.num_experts * (config.num_experts - 1));
  EXPECT_EQ(some->frozen_dense, config.vocab_size * config.hidden);
}

TEST(RulesTest, RefuseAPatternThatFitsNothingAndATrainingOfNothing) {
  for (const char* model : {"qwen2-shared", "olmoe-clip", "gpt2-bias", "mixtral-window", "qwen3-qknorm"}) {
    const model::ModelConfig config = ConfigOf(model);
    EXPECT_TRUE(CountTrained(With({{.pattern = "*embed_tokens*", .frozen = true}}), config).ok()) << model;
    const absl::Status wrong =
        CountTrained(With({{.pattern = "*norm*", .rate = 2}, {.pattern = "*.expert.*", .frozen = true}}), config)
            .status();
    EXPECT_EQ(wrong.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(wrong.message()), HasSubstr("parameters[1]: \"*.expert.*\" fits no weight of "));
    const absl::Status all = CountTrained(With({{.pattern = "*", .frozen = true}}), config).status();
    EXPECT_THAT(std::string(all.message()), HasSubstr("all weights are frozen"));
  }
}

TEST(RulesTest, ConcernAdaptersAloneWhereThereAreSome) {
  const model::ModelConfig config = ConfigOf("olmoe-clip");
  const auto counted = CountTrained(With({{.pattern = "*lora_B*", .rate = 16}}, 4), config);
  ASSERT_TRUE(counted.ok()) << counted.status();
  const int64_t widths = 4 * config.hidden + 2 * config.q_width() + 2 * config.kv_width();
  EXPECT_EQ(counted->adapters, config.num_layers() * 4 * widths);
  EXPECT_EQ(counted->frozen_dense, 0);
  EXPECT_THAT(std::string(CountTrained(With({{.pattern = "*experts*", .frozen = true}}, 4), config).status().message()),
              HasSubstr("base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"));
}

}  // namespace
}  // namespace switchyard::train
