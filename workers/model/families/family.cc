#include "workers/model/families/family.h"

#include <algorithm>
#include <limits>
#include <string>

#include "scheduler/base/text/quote.h"
#include "workers/ops/router/router.h"

namespace switchyard::model {
namespace {

constexpr int64_t kMaxExperts = 65536;
constexpr const ModelFamily* kFamilies[] = {&kMixtralFamily, &kQwen2MoeFamily, &kQwen3MoeFamily,
                                            &kOlmoeFamily,   &kGpt2MoeFamily,  &kGptOssFamily};

}  // namespace

absl::Span<const ModelFamily* const> ModelFamilies() { return kFamilies; }

const ModelFamily* FindFamily(absl::string_view model_type) {
  const auto it = std::find_if(std::begin(kFamilies), std::end(kFamilies),
                               [&](const ModelFamily* family) { return family->model_type == model_type; });
  return it == std::end(kFamilies) ? nullptr : *it;
}

void ReadExperts(ConfigReader& reader, ModelConfig* config) {
  const std::string key = reader.FirstOf({"num_experts", "num_local_experts"});
  config->num_experts = reader.Int(key, std::nullopt, {1, kMaxExperts});
  config->top_k = reader.Int("num_experts_per_tok", std::nullopt, {1, ops::kMaxTopK});
  if (reader.AllGood({key, "num_experts_per_tok"}) && config->top_k > config->num_experts) {
    reader.Problem("num_experts_per_tok", config->top_k, " exceeds ", key, " ", config->num_experts);
  }
}

void ReadSparseExperts(ConfigReader& reader, ModelConfig* config) {
  ReadExperts(reader, config);
  const int64_t num_layers = config->num_layers();
  // As in transformers, a step beyond the last layer leaves every layer dense, and an index of no layer is ignored.
  const int64_t step = reader.Int("decoder_sparse_step", 1, {1, std::numeric_limits<int64_t>::max()});
  for (int64_t i = 0; i < num_layers; ++i) config->layers[i].moe = (i + 1) % step == 0;
  for (const int64_t i : reader.Ints("mlp_only_layers", {})) {
    if (i >= 0 && i < num_layers) config->layers[i].moe = false;
  }
  // Only dense layers need intermediate_size, and a bad number of layers hides which are dense.
  const bool known = reader.AllGood({"num_hidden_layers", "decoder_sparse_step", "mlp_only_layers"});
  if (known && config->num_moe_layers() < num_layers) {
    config->dense_intermediate = reader.Int("intermediate_size", std::nullopt, {1, kMaxIntermediate});
  }
  config->expert_intermediate = reader.Int("moe_intermediate_size", std::nullopt, {1, kMaxIntermediate});
}

bool ReadLayerTypes(ConfigReader& reader, int32_t window, ModelConfig* config) {
  if (!reader.Has("layer_types")) return false;
  const std::vector<std::string> types = reader.Strings("layer_types");
  if (!reader.AllGood({"layer_types", "num_hidden_layers"})) return true;
  if (types.size() != config->layers.size()) {
    reader.Problem("layer_types", "has ", types.size(), " entries for ", config->layers.size(), " layers");
    return true;
  }
  const bool window_known = reader.AllGood({"sliding_window", "use_sliding_window"});
  for (size_t i = 0; i < types.size(); ++i) {
    if (types[i] == "sliding_attention") {
      if (window <= 0 && window_known)
        reader.Problem("layer_types", "has sliding_attention, but there is no sliding_window");
      config->layers[i].window = window;
    } else if (types[i] != "full_attention") {
      reader.Problem("layer_types", "unknown type \"", Excerpt(types[i]),
                     "\"; known: full_attention, sliding_attention");
    }
  }
  return true;
}

}  // namespace switchyard::model
