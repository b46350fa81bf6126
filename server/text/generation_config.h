// Reads the model's defaults for requests' unset fields from generation_config.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "scheduler/base/io/model_dir.h"

namespace switchyard::text {

struct GenerationDefaults {
  std::optional<double> temperature;
  std::optional<double> top_p;
  std::optional<int32_t> top_k;
  std::optional<double> min_p;
  std::optional<double> repetition_penalty;
  std::optional<int32_t> max_new_tokens;
  std::optional<int32_t> min_new_tokens;
  std::vector<std::string> stop_strings;
  std::vector<int32_t> eos_token_ids;
};

// A missing file gives no defaults.  InvalidArgument names file, key, expected and found value.
absl::StatusOr<GenerationDefaults> LoadGenerationDefaults(const ModelDir& dir);

}  // namespace switchyard::text
