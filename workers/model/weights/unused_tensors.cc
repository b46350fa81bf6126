#include "workers/model/weights/unused_tensors.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "scheduler/base/text/quote.h"

namespace switchyard::model {
namespace {

constexpr absl::string_view kExpertsKey = ".experts.";

// A tensor's name without its expert's number.
std::string OfAnyExpert(absl::string_view name) {
  const size_t key = name.find(kExpertsKey);
  if (key == absl::string_view::npos) return std::string(name);
  const size_t number = key + kExpertsKey.size();
  return absl::StrCat(name.substr(0, number),
                      name.substr(std::min(name.size(), name.find_first_not_of("0123456789", number))));
}

// One more than the highest layer of the names; 0: no name has a layer.
int64_t LayersOf(const std::vector<std::string>& names) {
  int64_t layers = 0;
  for (absl::string_view name : names) {
    int64_t layer = 0;
    if (!absl::ConsumePrefix(&name, "model.layers.")) continue;
    if (absl::SimpleAtoi(name.substr(0, name.find('.')), &layer)) layers = std::max(layers, layer + 1);
  }
  return layers;
}

// Scales of activations and of the KV cache, which quantized checkpoints may have; both stay in the served dtype.
bool IsOfActivations(absl::string_view name) {
  for (const char* suffix : {".input_scale", ".input_zero_point", ".output_scale", ".k_scale", ".v_scale"}) {
    if (absl::EndsWith(name, suffix)) return true;
  }
  return false;
}

}  // namespace

std::vector<std::string> UnusedTensors(const checkpoint::Checkpoint& checkpoint, const std::vector<Param>& params) {
  absl::flat_hash_set<std::string> used;
  for (const Param& param : params) {
    used.insert(OfAnyExpert(param.name));
    if (param.matrix == nullptr) continue;
    for (const std::string& name : param.matrix->tensors()) used.insert(OfAnyExpert(name));
  }
  // Other ranks use other experts; with an expert file, none are used here.
  const bool has_experts =
      std::any_of(params.begin(), params.end(), [](const Param& param) { return param.shard == Shard::kExpert; });
  const bool quantized =
      std::any_of(params.begin(), params.end(), [](const Param& param) { return param.matrix != nullptr; });
  std::vector<std::string> unused;
  for (std::string& name : checkpoint.TensorNames()) {
    if (used.contains(OfAnyExpert(name)) || (!has_experts && absl::StrContains(name, kExpertsKey))) continue;
    if (quantized && IsOfActivations(name)) continue;
    unused.push_back(std::move(name));
  }
  return unused;
}

std::string UnusedText(const std::vector<std::string>& unused, const ModelConfig& config) {
  const size_t shown = std::min<size_t>(unused.size(), 3);
  std::vector<std::string> names;
  for (size_t i = 0; i < shown; ++i) names.push_back(Excerpt(unused[i]));
  return absl::StrCat(unused.size(), " tensors of the checkpoint are not part of ", config.architecture, ": ",
                      absl::StrJoin(names, ", "), unused.size() > shown ? " ..." : "");
}

absl::Status CheckAllUsed(const checkpoint::Checkpoint& checkpoint, const ModelConfig& config,
                          const std::vector<Param>& params) {
  if (config.quantization.has_value()) return NoQuantizedTraining(*config.quantization);
  std::vector<std::string> unused = UnusedTensors(checkpoint, params);
  std::erase_if(unused, [&](const std::string& name) {
    return (config.tie_embeddings && name == "lm_head.weight") || absl::EndsWith(name, ".rotary_emb.inv_freq");
  });
  if (unused.empty()) return absl::OkStatus();
  const int64_t layers = LayersOf(unused);
  const std::string cause = layers > config.num_layers() ? absl::StrCat("num_hidden_layers is ", config.num_layers(),
                                                                        ", the checkpoint has ", layers, " layers")
                                                         : "config.json is of another model, or lacks what they are of";
  return absl::InvalidArgumentError(absl::StrCat(UnusedText(unused, config), "; they would not be trained nor saved: ",
                                                 cause, "; correct config.json, or take them out of the checkpoint"));
}

}  // namespace switchyard::model
