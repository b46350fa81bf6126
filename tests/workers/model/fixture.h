// The tiny checkpoints of tests/golden/models and what HuggingFace transformers makes of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace switchyard::model {

struct LogitsGolden {
  std::vector<int32_t> tokens;  // [S]
  std::vector<float> values;    // [S, V], fp32
  // [S] how far transformers' own bf16 is from them: of each position the largest difference / largest of all values.
  std::vector<float> bf16;
};

struct GreedyGolden {
  std::vector<int32_t> prompt;
  std::vector<int32_t> tokens;  // the 64 that follow
};

struct Fixture {
  std::string name;
  std::string dir;
  std::vector<LogitsGolden> logits;
  LogitsGolden steady;                  // 40 tokens, drawn so that no router is undecided
  std::vector<int32_t> steady_experts;  // [S, MoE layers, K] where they go, best first
  std::vector<GreedyGolden> greedy;
};

// Names of all of them, sorted.
std::vector<std::string> FixtureNames();
// Aborts if it cannot be read: tests run in the root of the source tree.
Fixture LoadFixture(const std::string& name);

// "mixtral-gqa" → "mixtral_gqa", for names of parameterised tests.
std::string TestName(std::string name);

}  // namespace switchyard::model
