#include "workers/model/config/config.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "nlohmann/json.hpp"
#include "scheduler/base/check.h"
#include "scheduler/base/io/model_dir.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/base/text/quote.h"
#include "scheduler/base/text/strict_json.h"
#include "workers/checkpoint/gguf/gguf_weights.h"
#include "workers/model/config/config_reader.h"
#include "workers/model/families/family.h"
#include "workers/ops/attention/attention.h"

namespace switchyard::model {
namespace {

constexpr char kGenerationFile[] = "generation_config.json";

// Far beyond every model that exists, and small enough that nothing overflows before CheckMemory.
constexpr int64_t kMaxLayers = 4096;
constexpr int64_t kMaxHeads = 4096;
constexpr int64_t kMaxWidth = 1 << 20;
constexpr int64_t kMaxVocab = 1 << 24;
constexpr int64_t kMaxContext = 1 << 30;
constexpr int64_t kMaxTokenId = (int64_t{1} << 31) - 1;
constexpr double kHuge = 1e12;

// Keys that not every family reads (some are for training), but that others may be misspellings of.
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
                                      "intermediate_size",
                                      "moe_intermediate_size",
                                      "shared_expert_intermediate_size",
                                      "norm_topk_prob",
                                      "decoder_sparse_step",
                                      "mlp_only_layers",
                                      "sliding_window",
                                      "use_sliding_window",
                                      "max_window_layers",
                                      "layer_types",
                                      "clip_qkv",
                                      "swiglu_alpha",
                                      "swiglu_limit",
                                      "qkv_bias",
                                      "attention_bias",
                                      "rms_norm_eps",
                                      "layer_norm_epsilon",
                                      "rope_theta",
                                      "rope_scaling",
                                      "rope_parameters",
                                      "bos_token_id",
                                      "eos_token_id"};

constexpr double kMost = 1e6;

// Keys of transformers' models and of GPT-2 for randomness, of which each family has its own (ModelFamily::noise).
constexpr const char* kRandomKeys[] = {"attention_dropout", "router_jitter_noise", "hidden_dropout",
                                       "attn_pdrop",        "embd_pdrop",          "resid_pdrop"};

// Reads the family's keys; the others must be 0.
absl::Status ReadNoise(ConfigReader& reader, const ModelFamily& family, TrainingConfig* config) {
  config->noise_keys = family.noise;
  const std::pair<const char*, double*> own[] = {{family.noise.embedding, &config->embedding_dropout},
                                                 {family.noise.hidden, &config->hidden_dropout},
                                                 {family.noise.attention, &config->attention_dropout},
                                                 {family.noise.router_jitter, &config->router_jitter}};
  for (const absl::string_view key : kRandomKeys) {
    const auto* const found = std::find_if(
        std::begin(own), std::end(own), [&](const auto& each) { return each.first != nullptr && each.first == key; });
    const double value = reader.Number(key, 0.0, 0, kMost);
    if (!reader.AllGood({key})) continue;
    if (found != std::end(own)) {
      if (value >= 1)
        reader.Problem(key, value, " is outside [0, 1), which is refused also where the job gives a rate of its own");
      *found->second = value;
    } else if (value != 0) {
      return absl::UnimplementedError(absl::StrCat(kConfigFile, ": ", key, ": ", value, ", but models of ",
                                                   family.model_type,
                                                   " have no such dropout or noise; set it to 0 in this ",
                                                   "config.json (a rate of the job that is 0 is not enough), and give ",
                                                   "the rates that you want by the job's dropout and router_jitter"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckFields(const nlohmann::json& root) {
  if (root.contains("auto_map")) {
    return absl::InvalidArgumentError(absl::StrCat(kConfigFile, ": auto_map: remote code is refused"));
  }
  return absl::OkStatus();
}

void ReadQuantization(const nlohmann::json& root, ConfigReader& reader, ModelConfig* config) {
  const std::string key = reader.FirstOf({"quantization_config", "compression_config"});  // newer, older
  if (!reader.Has(key)) return;
  absl::StatusOr<checkpoint::QuantizationConfig> read = checkpoint::ReadQuantizationConfig(key, root[key]);
  if (read.ok()) {
    config->quantization = *std::move(read);
    return;
  }
  for (const absl::string_view line : absl::StrSplit(read.status().message(), '\n')) {
    const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(line, absl::MaxSplits(": ", 1));
    reader.Problem(parts.first, parts.second);
  }
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
  for (const auto& [known, dtype] : kConfigDTypes) {
    if (name != known) continue;
    config->file_dtype = dtype;
    return;
  }
  reader.Problem(key, "unknown dtype \"", Excerpt(name), "\"; known: bfloat16, float16, float32, float64");
}

void ReadHeads(ConfigReader& reader, ModelConfig* config) {
  config->num_heads = reader.Int("num_attention_heads", std::nullopt, {1, kMaxHeads});
  config->num_kv_heads = reader.Int("num_key_value_heads", config->num_heads, {1, kMaxHeads});
  const bool heads_known = reader.AllGood({"num_attention_heads"});
  if (heads_known && reader.AllGood({"num_key_value_heads"}) && config->num_heads % config->num_kv_heads != 0) {
    reader.Problem("num_key_value_heads", "num_attention_heads ", config->num_heads,
                   " is no multiple of it: ", config->num_kv_heads);
  }
  const bool width_known = heads_known && reader.AllGood({"hidden_size"});
  if (width_known && !reader.Has("head_dim") && config->hidden % config->num_heads != 0) {
    reader.Problem("num_attention_heads", "hidden_size ", config->hidden, " is no multiple of it: ", config->num_heads,
                   ", and there is no head_dim");
  }
  config->head_dim =
      reader.Int("head_dim", std::max<int64_t>(config->hidden / config->num_heads, 1), {1, ops::kMaxHeadDim});
  if (width_known && config->head_dim > ops::kMaxHeadDim) {
    reader.Problem("head_dim", "hidden_size / num_attention_heads is ", config->head_dim, ", limit ", ops::kMaxHeadDim);
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
  reader.Problem("hidden_act", "unknown activation \"", Excerpt(found), "\"; known: ", absl::StrJoin(known, ", "));
}

// "su" is the name of longrope in early Phi-3 configs.
constexpr std::pair<absl::string_view, ops::RopeKind> kRopeKinds[] = {
    {"default", ops::RopeKind::kDefault},   {"linear", ops::RopeKind::kLinear}, {"yarn", ops::RopeKind::kYarn},
    {"longrope", ops::RopeKind::kLongRope}, {"su", ops::RopeKind::kLongRope},   {"llama3", ops::RopeKind::kLlama3}};

bool ReadRopeKind(ConfigReader& scaling, const std::string& key, ops::RopeKind* kind) {
  const std::string name = scaling.String(key, "default");
  for (const auto& [known, found] : kRopeKinds) {
    if (name == known) *kind = found;
    if (name == known) return true;
  }
  scaling.Problem(key, "unknown RoPE \"", Excerpt(name), "\"; known: default, linear, yarn, longrope, llama3");
  return false;
}

void ReadYarn(ConfigReader& scaling, ops::RopeConfig* rope) {
  rope->beta_fast = scaling.Number("beta_fast", 32.0, 0, kHuge, /*open=*/true);
  rope->beta_slow = scaling.Number("beta_slow", 1.0, 0, kHuge, /*open=*/true);
  rope->truncate = scaling.Bool("truncate", true);
  rope->mscale = scaling.Number("mscale", 0.0, 0, kHuge);
  rope->mscale_all_dim = scaling.Number("mscale_all_dim", 0.0, 0, kHuge);
}

void ReadLongRope(ConfigReader& scaling, ops::RopeConfig* rope) {
  rope->short_factor = scaling.Numbers("short_factor");
  rope->long_factor = scaling.Numbers("long_factor");
  for (const auto& [key, factors] :
       {std::make_pair("short_factor", &rope->short_factor), std::make_pair("long_factor", &rope->long_factor)}) {
    if (!scaling.AllGood({key})) continue;
    if (static_cast<int64_t>(factors->size()) != rope->rotary_dim / 2) {
      scaling.Problem(key, "expected ", rope->rotary_dim / 2, " numbers, found ", factors->size());
    }
    if (std::any_of(factors->begin(), factors->end(), [](double f) { return f <= 0; })) {
      scaling.Problem(key, "expected positive numbers");
    }
  }
}

void ReadScaling(ConfigReader& scaling, double theta, const ModelConfig& config, double original_max,
                 ops::RopeConfig* rope) {
  const std::string kind_key = scaling.FirstOf({"rope_type", "type"});
  rope->theta = scaling.Number("rope_theta", theta, 0, kHuge, /*open=*/true);
  const double partial = scaling.Number("partial_rotary_factor", 1.0, 0, 1, /*open=*/true);
  rope->rotary_dim = static_cast<int64_t>(static_cast<double>(config.head_dim) * partial);
  if (rope->rotary_dim < 2 || rope->rotary_dim % 2 != 0) {
    scaling.Problem("partial_rotary_factor", "rotates ", rope->rotary_dim, " of ", config.head_dim,
                    " dims; it must be an even number");
  }
  if (!ReadRopeKind(scaling, kind_key, &rope->kind) || rope->kind == ops::RopeKind::kDefault) return;
  const double context = static_cast<double>(config.context);
  rope->original_max_positions =
      original_max > 0 ? original_max : scaling.Number("original_max_position_embeddings", context, 1, kHuge);
  const bool stretched = rope->kind == ops::RopeKind::kYarn || rope->kind == ops::RopeKind::kLongRope;
  std::optional<double> factor;
  if (stretched) factor = context / rope->original_max_positions;
  rope->factor = scaling.Number("factor", factor, 0, kHuge, /*open=*/true);
  if (stretched && scaling.Has("attention_factor")) {
    rope->attention_factor = scaling.Number("attention_factor", 1.0, 0, kHuge, /*open=*/true);
  }
  if (rope->kind == ops::RopeKind::kYarn) ReadYarn(scaling, rope);
  if (rope->kind == ops::RopeKind::kLongRope) ReadLongRope(scaling, rope);
  if (rope->kind == ops::RopeKind::kLlama3) {
    rope->low_freq_factor = scaling.Number("low_freq_factor", std::nullopt, 0, kHuge, /*open=*/true);
    rope->high_freq_factor = scaling.Number("high_freq_factor", std::nullopt, 0, kHuge, /*open=*/true);
    if (scaling.AllGood({"low_freq_factor", "high_freq_factor"}) && rope->high_freq_factor <= rope->low_freq_factor) {
      scaling.Problem("high_freq_factor", "must exceed low_freq_factor ", rope->low_freq_factor);
    }
  }
}

// YaRN and linear scaling lengthen the context; max_position_embeddings has it with that (gpt-oss) or without (Qwen3).
void LengthenContext(ConfigReader& scaling, ModelConfig* config) {
  const ops::RopeConfig& rope = config->rope;
  if (rope.kind != ops::RopeKind::kYarn && rope.kind != ops::RopeKind::kLinear) return;
  if (!scaling.AllGood({"factor", "original_max_position_embeddings"})) return;
  const double length = std::floor(rope.original_max_positions * rope.factor);
  if (length > static_cast<double>(kMaxContext)) {
    scaling.Problem("factor", "makes a context of ", length, " tokens, limit ", kMaxContext);
  } else {
    config->context = std::max(config->context, static_cast<int64_t>(length));
  }
}

// v5 may give one object for each layer type.  Families use one RoPE, so the objects have to agree.
const nlohmann::json* Unnest(ConfigReader& reader, const std::string& key, const nlohmann::json* object) {
  const nlohmann::json* first = nullptr;
  for (const char* type : {"full_attention", "sliding_attention"}) {
    const auto it = object->find(type);
    if (it == object->end() || it->is_null()) continue;
    if (!it->is_object()) {
      reader.Problem(key, type, " is no object");
    } else if (first != nullptr && *first != *it) {
      reader.Problem(key, "layer types with different RoPE parameters are not supported");
    } else {
      first = &*it;
    }
  }
  return first == nullptr ? object : first;
}

// Sets config->rope from the spelling of transformers v4 (rope_theta and rope_scaling) or v5 (rope_parameters, flat or
// one for each layer type), and lengthens the context.  REQUIRES: head_dim and context are set.
void ReadRope(ConfigReader& reader, double default_theta, ModelConfig* config) {
  const std::string key = reader.FirstOf({"rope_parameters", "rope_scaling"});
  const double theta = reader.Number("rope_theta", default_theta, 0, kHuge, /*open=*/true);
  const double original_max = reader.Number("original_max_position_embeddings", 0.0, 0, kHuge);
  const nlohmann::json empty = nlohmann::json::object();
  const nlohmann::json* object = reader.Object(key);
  if (object == nullptr) object = &empty;
  // How many dims rotate, and how far, follows from these.
  if (!reader.AllGood({"head_dim", "hidden_size", "num_attention_heads", "max_position_embeddings"})) return;
  ConfigReader scaling(*Unnest(reader, key, object), "");
  ReadScaling(scaling, theta, *config, original_max, &config->rope);
  LengthenContext(scaling, config);
  scaling.CheckSpelling();
  reader.Adopt(key, scaling);
}

// Reads the fields that all families share.
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
  ASSIGN_OR_RETURN(const nlohmann::json root, ParseConfigObject(kGenerationFile, text));
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
  ASSIGN_OR_RETURN(const nlohmann::json root, ParseConfigObject(kConfigFile, config_text));
  ASSIGN_OR_RETURN(const ModelFamily* const family, ChooseFamily(root));  // first: else nothing matters
  RETURN_IF_ERROR(CheckFields(root));
  ConfigReader reader(root, kConfigFile);
  reader.Know(kOtherKeys);
  ModelConfig config;
  ReadCommonConfig(reader, *family, &config);
  ReadQuantization(root, reader, &config);
  family->read_config(reader, &config);
  reader.CheckSpelling();
  RETURN_IF_ERROR(reader.Finish());
  if (!generation_text.empty()) RETURN_IF_ERROR(ReadGeneration(generation_text, &config));
  return config;
}

absl::StatusOr<ModelConfig> ReadModelConfig(const std::string& path) {
  ASSIGN_OR_RETURN(const ModelDir dir, checkpoint::OpenModelFiles(path));
  if (!dir.Exists(kConfigFile))
    return absl::NotFoundError(absl::StrCat("model directory ", path, ": ", WhyNoConfig(path)));
  ASSIGN_OR_RETURN(const std::string config_text, dir.ReadSmallFile(kConfigFile, kMaxConfigBytes));
  std::string generation_text;
  if (dir.Exists(kGenerationFile)) {
    ASSIGN_OR_RETURN(generation_text, dir.ReadSmallFile(kGenerationFile, kMaxConfigBytes));
  }
  return ParseModelConfig(config_text, generation_text);
}

absl::Status NoQuantizedTraining(const checkpoint::QuantizationConfig& quantization) {
  return absl::UnimplementedError(absl::StrCat(
      kConfigFile, ": quantization_config: training from quantized weights (", quantization.method,
      ") is not supported: train from the model's bf16 or fp32 checkpoint, or dequantize it first with transformers"));
}

absl::StatusOr<TrainingConfig> ParseTrainingConfig(absl::string_view config_text) {
  ASSIGN_OR_RETURN(const nlohmann::json root, ParseConfigObject(kConfigFile, config_text));
  ASSIGN_OR_RETURN(const ModelFamily* const family, ChooseFamily(root));
  ConfigReader reader(root, kConfigFile);
  TrainingConfig config;
  config.initializer_range = reader.Number("initializer_range", config.initializer_range, 0, kMost, /*open=*/true);
  if (reader.Has("router_aux_loss_coef")) {
    config.router_aux_loss_coef = reader.Number("router_aux_loss_coef", std::nullopt, 0, kMost);
  }
  RETURN_IF_ERROR(ReadNoise(reader, *family, &config));
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
