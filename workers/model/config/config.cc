#include "workers/model/config/config.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"
#include "scheduler/base/io/model_dir.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/base/text/quote.h"
#include "scheduler/base/text/strict_json.h"
#include "workers/model/config/config_reader.h"
#include "workers/model/config/rope_reader.h"
#include "workers/model/families/family.h"
#include "workers/ops/attention/attention.h"

namespace switchyard::model {
namespace {

constexpr char kConfigFile[] = "config.json";
constexpr char kGenerationFile[] = "generation_config.json";

// Far beyond every model that exists, and small enough that nothing overflows before CheckMemory speaks.
constexpr int64_t kMaxLayers = 4096;
constexpr int64_t kMaxHeads = 4096;
constexpr int64_t kMaxWidth = 1 << 20;
constexpr int64_t kMaxVocab = 1 << 24;
constexpr int64_t kMaxContext = 1 << 30;
constexpr int64_t kMaxTokenId = (int64_t{1} << 31) - 1;

// Keys of all families that serving need not read (training: training_config.h), but that others are misspelled from.
constexpr const char* kOtherKeys[] = {"architectures",
                                      "attention_dropout",
                                      "initializer_range",
                                      "model_type",
                                      "output_router_logits",
                                      "pad_token_id",
                                      "router_aux_loss_coef",
                                      "router_jitter_noise",
                                      "transformers_version",
                                      "use_cache",
                                      "vocab_size",
                                      "hidden_size",
                                      "num_hidden_layers",
                                      "num_attention_heads",
                                      "num_key_value_heads",
                                      "head_dim",
                                      "intermediate_size",
                                      "moe_intermediate_size",
                                      "shared_expert_intermediate_size",
                                      "num_experts",
                                      "num_local_experts",
                                      "num_experts_per_tok",
                                      "norm_topk_prob",
                                      "decoder_sparse_step",
                                      "mlp_only_layers",
                                      "sliding_window",
                                      "use_sliding_window",
                                      "max_window_layers",
                                      "layer_types",
                                      "clip_qkv",
                                      "qkv_bias",
                                      "attention_bias",
                                      "rms_norm_eps",
                                      "layer_norm_epsilon",
                                      "rope_theta",
                                      "rope_scaling",
                                      "rope_parameters",
                                      "tie_word_embeddings",
                                      "torch_dtype",
                                      "dtype",
                                      "hidden_act",
                                      "max_position_embeddings",
                                      "bos_token_id",
                                      "eos_token_id"};

absl::Status CheckFields(const nlohmann::json& root) {
  if (root.contains("auto_map")) {
    return absl::InvalidArgumentError(absl::StrCat(kConfigFile, ": auto_map: remote code is refused"));
  }
  if (root.contains("quantization_config") && !root["quantization_config"].is_null()) {
    return absl::UnimplementedError(
        absl::StrCat(kConfigFile, ": quantization_config: quantized weights are not supported"));
  }
  return absl::OkStatus();
}

absl::StatusOr<const ModelFamily*> ChooseFamily(const nlohmann::json& root) {
  const auto type = root.find("model_type");
  const auto architectures = root.find("architectures");
  std::string found = "none";
  if (type != root.end() && type->is_string()) {
    found = type->get<std::string>();
    if (const ModelFamily* family = FindFamily(found); family != nullptr) return family;
  } else if (architectures != root.end() && architectures->is_array() && architectures->size() == 1 &&
             (*architectures)[0].is_string()) {
    found = (*architectures)[0].get<std::string>();
    for (const ModelFamily* family : ModelFamilies()) {
      if (found == family->architecture) return family;
    }
  }
  std::vector<std::string> known;
  for (const ModelFamily* family : ModelFamilies()) {
    known.push_back(absl::StrCat(family->model_type, " (", family->architecture, ")"));
  }
  return absl::UnimplementedError(absl::StrCat(kConfigFile, ": unknown architecture \"", Excerpt(found),
                                               "\"; known: ", absl::StrJoin(known, ", ")));
}

void ReadDType(ConfigReader& reader, ModelConfig* config) {
  const std::string key = reader.FirstOf({"dtype", "torch_dtype"});
  if (!reader.Has(key)) return;
  const std::string name = reader.String(key, "");
  if (name == "bfloat16") {
    config->file_dtype = DType::kBf16;
  } else if (name == "float16") {
    config->file_dtype = DType::kF16;
  } else if (name == "float32") {
    config->file_dtype = DType::kF32;
  } else if (name == "float64") {
    config->file_dtype = DType::kF64;
  } else {
    reader.Problem(key,
                   absl::StrCat("unknown dtype \"", Excerpt(name), "\"; known: bfloat16, float16, float32, float64"));
  }
}

void ReadHeads(ConfigReader& reader, ModelConfig* config) {
  config->num_heads = reader.Int("num_attention_heads", std::nullopt, {1, kMaxHeads});
  config->num_kv_heads = reader.Int("num_key_value_heads", config->num_heads, {1, kMaxHeads});
  const bool heads_known = reader.AllGood({"num_attention_heads"});
  if (heads_known && reader.AllGood({"num_key_value_heads"}) && config->num_heads % config->num_kv_heads != 0) {
    reader.Problem("num_key_value_heads", absl::StrCat("num_attention_heads ", config->num_heads,
                                                       " is no multiple of it: ", config->num_kv_heads));
  }
  const bool width_known = heads_known && reader.AllGood({"hidden_size"});
  if (width_known && !reader.Has("head_dim") && config->hidden % config->num_heads != 0) {
    reader.Problem("num_attention_heads", absl::StrCat("hidden_size ", config->hidden, " is no multiple of it: ",
                                                       config->num_heads, ", and there is no head_dim"));
  }
  config->head_dim =
      reader.Int("head_dim", std::max<int64_t>(config->hidden / config->num_heads, 1), {1, ops::kMaxHeadDim});
  if (width_known && config->head_dim > ops::kMaxHeadDim) {
    reader.Problem("head_dim", absl::StrCat("hidden_size / num_attention_heads is ", config->head_dim, ", limit ",
                                            ops::kMaxHeadDim));
  }
}

void ReadActivation(ConfigReader& reader, const ModelFamily& family, ModelConfig* config) {
  const std::string found = reader.String("hidden_act", family.activations.front().name);
  std::vector<absl::string_view> known;
  for (const NamedActivation& each : family.activations) {
    known.push_back(each.name);
    if (found != each.name) continue;
    config->activation = each.activation;
    return;
  }
  reader.Problem("hidden_act",
                 absl::StrCat("unknown activation \"", Excerpt(found), "\"; known: ", absl::StrJoin(known, ", ")));
}

// What every family has.
void ReadCommonConfig(ConfigReader& reader, const ModelFamily& family, ModelConfig* config) {
  config->model_type = family.model_type;
  config->architecture = family.architecture;
  config->vocab_size = reader.Int("vocab_size", std::nullopt, {1, kMaxVocab});
  config->hidden = reader.Int("hidden_size", std::nullopt, {1, kMaxWidth});
  config->layers.resize(reader.Int("num_hidden_layers", std::nullopt, {1, kMaxLayers}));
  config->context = reader.Int("max_position_embeddings", std::nullopt, {1, kMaxContext});
  ReadHeads(reader, config);
  config->norm = family.norm;
  config->norm_eps = reader.Number(family.norm_eps_key, family.default_norm_eps, 0, 1);
  config->tie_embeddings = reader.Bool("tie_word_embeddings", family.tied_by_default);
  ReadActivation(reader, family, config);
  ReadDType(reader, config);
  config->learned_positions = family.learned_positions;
  if (!config->learned_positions) ReadRope(reader, family.default_theta, config);
  for (const int64_t id : reader.Ints("eos_token_id", {0, kMaxTokenId})) {
    config->eos_token_ids.push_back(static_cast<int32_t>(id));
  }
  if (reader.Has("bos_token_id")) {
    config->bos_token_id = static_cast<int32_t>(reader.Int("bos_token_id", 0, {0, kMaxTokenId}));
  }
}

absl::Status ReadGeneration(absl::string_view text, ModelConfig* config) {
  nlohmann::json root;
  ASSIGN_OR_RETURN(root, ParseStrictJson(kGenerationFile, text, {.max_depth = kMaxConfigDepth}));
  if (!root.is_object()) return absl::InvalidArgumentError(absl::StrCat(kGenerationFile, ": not an object"));
  ConfigReader reader(root, kGenerationFile);
  const std::vector<int64_t> ids = reader.Ints("eos_token_id", {0, kMaxTokenId});
  RETURN_IF_ERROR(reader.Finish());
  if (!ids.empty()) config->eos_token_ids.assign(ids.begin(), ids.end());
  return absl::OkStatus();
}

}  // namespace

int64_t ModelConfig::num_moe_layers() const {
  return std::count_if(layers.begin(), layers.end(), [](const LayerConfig& layer) { return layer.moe; });
}

absl::StatusOr<ModelConfig> ParseModelConfig(absl::string_view config_text, absl::string_view generation_text) {
  nlohmann::json root;
  ASSIGN_OR_RETURN(root, ParseStrictJson(kConfigFile, config_text, {.max_depth = kMaxConfigDepth}));
  if (!root.is_object()) return absl::InvalidArgumentError(absl::StrCat(kConfigFile, ": not an object"));
  const ModelFamily* family = nullptr;  // first: of an unknown one nothing else matters
  ASSIGN_OR_RETURN(family, ChooseFamily(root));
  RETURN_IF_ERROR(CheckFields(root));
  ConfigReader reader(root, kConfigFile);
  reader.Know(kOtherKeys);
  ModelConfig config;
  ReadCommonConfig(reader, *family, &config);
  family->read_config(reader, &config);
  reader.CheckSpelling();
  RETURN_IF_ERROR(reader.Finish());
  if (!generation_text.empty()) RETURN_IF_ERROR(ReadGeneration(generation_text, &config));
  return config;
}

absl::StatusOr<ModelConfig> ReadModelConfig(const std::string& path) {
  absl::StatusOr<ModelDir> dir = ModelDir::Open(path);
  RETURN_IF_ERROR(dir.status());
  std::string config_text;
  ASSIGN_OR_RETURN(config_text, dir->ReadSmallFile(kConfigFile, kMaxConfigBytes));
  std::string generation_text;
  if (dir->Exists(kGenerationFile)) {
    ASSIGN_OR_RETURN(generation_text, dir->ReadSmallFile(kGenerationFile, kMaxConfigBytes));
  }
  return ParseModelConfig(config_text, generation_text);
}

}  // namespace switchyard::model
