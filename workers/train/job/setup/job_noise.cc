#include "workers/train/job/setup/job_noise.h"

#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace switchyard::train {

std::string FillNoise(const model::TrainingConfig& config, jobs::JobSpec* spec) {
  std::vector<std::string> texts;
  const auto fill = [&](const char* name, std::optional<double>* rate, const char* key, double of_config) {
    const bool says = rate->has_value();
    if (!says) *rate = of_config;
    if (!says && of_config != 0) texts.push_back(absl::StrCat(name, " ", of_config, " (config.json: ", key, ")"));
    if (says && **rate != 0) texts.push_back(absl::StrCat(name, " ", **rate));
    if (says && **rate == 0 && of_config != 0)
      texts.push_back(absl::StrCat(name, " 0 (config.json: ", key, " ", of_config, ")"));
  };
  const model::NoiseKeys& keys = config.noise_keys;
  fill("embedding", &spec->dropout.embedding, keys.embedding, config.embedding_dropout);
  fill("hidden", &spec->dropout.hidden, keys.hidden, config.hidden_dropout);
  fill("attention", &spec->dropout.attention, keys.attention, config.attention_dropout);
  if (spec->lora.dropout != 0) texts.push_back(absl::StrCat("adapters ", spec->lora.dropout));
  fill("router jitter", &spec->router_jitter, keys.router_jitter, config.router_jitter);
  return texts.empty() ? "" : absl::StrCat("dropout: ", absl::StrJoin(texts, ", "));
}

model::NoiseRates NoiseRatesOf(const jobs::JobSpec& spec) {
  return {.embedding = spec.dropout.embedding.value_or(0),
          .hidden = spec.dropout.hidden.value_or(0),
          .attention = spec.dropout.attention.value_or(0),
          .router_jitter = spec.router_jitter.value_or(0),
          .adapters = spec.lora.dropout};
}

}  // namespace switchyard::train
