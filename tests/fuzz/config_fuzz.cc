// config.json and, behind a NUL, generation_config.json.  A config that is taken has sizes that its memory can be
// computed from, and one with another dtype is the same but for it.
#include "tests/fuzz/fuzz.h"
#include "workers/model/config/config.h"
#include "workers/model/config/memory_plan.h"

namespace switchyard::fuzz {

void Fuzz(absl::string_view input) {
  const auto [text, generation] = CutAtNul(input);
  const auto config = model::ParseModelConfig(text, generation);
  CheckSameEnd(config, model::ParseModelConfig(text, generation));
  (void)model::ParseTrainingConfig(text);
  const auto changed = model::ConfigWithDType(text, DType::kF16);
  if (!config.ok()) return;
  SY_CHECK(config->num_layers() > 0 && config->vocab_size > 0 && config->hidden > 0 && config->context > 0);
  SY_CHECK(config->num_heads > 0 && config->num_heads % config->num_kv_heads == 0 && config->head_dim > 0);
  SY_CHECK(config->top_k <= config->num_experts);
  const model::MemoryNeed need = {DType::kBf16, config->num_experts, 1 << 20};
  SY_CHECK(model::WeightBytes(*config, DType::kBf16, config->num_experts) > 0);
  SY_CHECK(model::MemoryBytes(*config, need) > 1 << 20);
  SY_CHECK(model::KvBytesPerToken(*config, DType::kBf16) > 0);
  (void)model::CheckMemory(*config, need, 1 << 30);
  SY_CHECK_OK(changed.status());
  const auto again = model::ParseModelConfig(*changed, generation);
  SY_CHECK_OK(again.status());
  SY_CHECK(again->file_dtype == DType::kF16);
  SY_CHECK_EQ(again->num_layers(), config->num_layers());
  SY_CHECK_EQ(again->norm_eps, config->norm_eps);
  SY_CHECK(*model::ConfigWithDType(*changed, DType::kF16) == *changed);
}

}  // namespace switchyard::fuzz
