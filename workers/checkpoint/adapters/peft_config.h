// Parses adapter_config.json of a folder of low-rank adapters as PEFT saves it: ranks, scales, and which matrices of
// fused experts are adapted.  Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace switchyard::checkpoint {

inline constexpr char kPeftConfigName[] = "adapter_config.json";

// Of the adapters of one kind.
struct RankAndAlpha {
  int64_t rank = 0;
  double alpha = 0;
};

struct PeftConfig {
  RankAndAlpha all = {};
  std::optional<RankAndAlpha> gate_up = {}, down = {};  // of fused experts; unset: they are not adapted
  bool rank_stabilized = false;                         // alpha / sqrt(rank), not alpha / rank
  // Projections that rank_pattern or alpha_pattern names without the experts, "down_proj": PEFT gives their ranks and
  // alphas to other modules of that name, too.
  std::set<std::string> short_patterns = {};

  double ScaleOf(const RankAndAlpha& of) const;
  // Unimplemented: a short pattern is about the module, "model.layers.0.mlp.shared_expert.down_proj", which is none of
  // fused experts.
  absl::Status CheckModule(absl::string_view module) const;
};

// Errors begin with the file's name and the key.  InvalidArgument: no JSON, a value of another kind.  Unimplemented:
// what changes the model otherwise than by B A (DoRA, biases, saved modules), patterns of other matrices, and
// target_parameters of a PEFT before 0.19.1, whose lora_A of experts is over their outputs.
absl::StatusOr<PeftConfig> ParsePeftConfig(absl::string_view text);

}  // namespace switchyard::checkpoint
