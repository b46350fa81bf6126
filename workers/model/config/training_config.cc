#include "workers/model/config/training_config.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/base/text/strict_json.h"
#include "workers/model/config/config.h"
#include "workers/model/config/config_reader.h"

namespace switchyard::model {
namespace {

constexpr double kMost = 1e6;

// Keys of transformers' models and of GPT-2 for randomness that training does not have.
constexpr const char* kRandomKeys[] = {"attention_dropout", "router_jitter_noise", "hidden_dropout",
                                       "attn_pdrop",        "embd_pdrop",          "resid_pdrop"};

}  // namespace

absl::StatusOr<TrainingConfig> ParseTrainingConfig(absl::string_view config_text) {
  ASSIGN_OR_RETURN(const nlohmann::json root, ParseConfigObject(kConfigFile, config_text));
  ConfigReader reader(root, kConfigFile);
  TrainingConfig config;
  config.initializer_range = reader.Number("initializer_range", config.initializer_range, 0, kMost, /*open=*/true);
  if (reader.Has("router_aux_loss_coef")) {
    config.router_aux_loss_coef = reader.Number("router_aux_loss_coef", std::nullopt, 0, kMost);
  }
  for (const char* key : kRandomKeys) {
    const double value = reader.Number(key, 0.0, 0, kMost);
    if (value == 0 || !reader.ok()) continue;
    return absl::UnimplementedError(
        absl::StrCat(kConfigFile, ": ", key, ": ", value,
                     ", but training knows no dropout and no noise of routers: it must be 0; set ",
                     "it to 0 in this config.json to train without"));
  }
  RETURN_IF_ERROR(reader.Finish());
  return config;
}

absl::StatusOr<std::string> ConfigWithDType(absl::string_view config_text, DType dtype) {
  ASSIGN_OR_RETURN(const nlohmann::json root, ParseConfigObject(kConfigFile, config_text));
  const auto named = std::find_if(std::begin(kConfigDTypes), std::end(kConfigDTypes),
                                  [&](const auto& each) { return each.second == dtype; });
  SY_CHECK(named != std::end(kConfigDTypes));
  const std::string name(named->first);
  const bool older = root.contains("torch_dtype");
  if (root.value("dtype", nlohmann::json()) == name && (!older || root["torch_dtype"] == name)) {
    return std::string(config_text);
  }
  nlohmann::ordered_json config;
  SY_CHECK(!ReadJson(config_text, {.max_depth = kMaxConfigDepth}, &config));  // it was read above
  config["dtype"] = name;
  if (older) config["torch_dtype"] = name;
  return config.dump(2) + "\n";
}

}  // namespace switchyard::model
