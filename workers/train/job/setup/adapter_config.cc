#include "workers/train/job/setup/adapter_config.h"

#include <algorithm>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "scheduler/jobs/lora_targets.h"
#include "workers/train/parameters/parameter_rules.h"

namespace switchyard::train {
namespace {

// The PEFT as which the folder has adapters of experts: earlier ones had lora_A and lora_B the other way round, so
// readers ask for it (workers/checkpoint/adapters/peft_config.h).
constexpr char kPeftVersion[] = "0.21.2";

}  // namespace

std::string AdapterConfig(const jobs::JobSpec& spec) {
  std::vector<std::string> modules = AdaptersOf(spec.lora).targets, of_experts;
  const auto first = std::stable_partition(modules.begin(), modules.end(),
                                           [](const std::string& target) { return !jobs::IsExpertTarget(target); });
  of_experts.assign(first, modules.end());
  modules.erase(first, modules.end());
  nlohmann::ordered_json json = {{"peft_type", "LORA"},
                                 {"task_type", "CAUSAL_LM"},
                                 {"base_model_name_or_path", spec.base_checkpoint},
                                 {"r", spec.lora.rank},
                                 {"lora_alpha", spec.lora.Alpha()},
                                 {"lora_dropout", spec.lora.dropout},
                                 {"target_modules", modules},
                                 {"bias", "none"},
                                 {"fan_in_fan_out", false},
                                 {"init_lora_weights", true},
                                 {"inference_mode", true}};
  if (!of_experts.empty()) {
    json["target_parameters"] = of_experts;
    json["peft_version"] = kPeftVersion;
  }
  return json.dump(1) + "\n";
}

}  // namespace switchyard::train
