#include "workers/train/job/setup/adapter_config.h"

#include "nlohmann/json.hpp"
#include "workers/train/parameters/parameter_rules.h"

namespace switchyard::train {

std::string AdapterConfig(const jobs::JobSpec& spec) {
  nlohmann::ordered_json json = {{"peft_type", "LORA"},
                                 {"task_type", "CAUSAL_LM"},
                                 {"base_model_name_or_path", spec.base_checkpoint},
                                 {"r", spec.lora.rank},
                                 {"lora_alpha", spec.lora.Alpha()},
                                 {"lora_dropout", spec.lora.dropout},
                                 {"target_modules", AdaptersOf(spec.lora).targets},
                                 {"bias", "none"},
                                 {"fan_in_fan_out", false},
                                 {"init_lora_weights", true},
                                 {"inference_mode", true}};
  return json.dump(1) + "\n";
}

}  // namespace switchyard::train
