#include "tests/e2e/demo_gguf.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "nlohmann/json.hpp"
#include "scheduler/base/check.h"
#include "tests/e2e/harness.h"
#include "tests/workers/checkpoint/gguf_bytes.h"
#include "workers/checkpoint/tensors/checkpoint.h"
#include "workers/tensor/dtype.h"

namespace switchyard {
namespace {

using checkpoint::Checkpoint;
using checkpoint::GgufArrayKey;
using checkpoint::GgufF32Key;
using checkpoint::GgufRow;
using checkpoint::GgufText;
using checkpoint::GgufTextKey;
using checkpoint::GgufU32;
using checkpoint::GgufU32Key;
using nlohmann::json;

constexpr uint32_t kF32 = 0, kQ40 = 2, kQ80 = 8, kBf16 = 30;
constexpr uint32_t kNormal = 1, kControl = 3, kUserDefined = 4;
constexpr int64_t kBlock = 32;

// GGUF's names of a block's tensors, and HuggingFace's; of experts {e}.
constexpr std::pair<const char*, const char*> kBlockTensors[] = {{"attn_norm", "input_layernorm"},
                                                                 {"attn_q", "self_attn.q_proj"},
                                                                 {"attn_k", "self_attn.k_proj"},
                                                                 {"attn_v", "self_attn.v_proj"},
                                                                 {"attn_output", "self_attn.o_proj"},
                                                                 {"attn_q_norm", "self_attn.q_norm"},
                                                                 {"attn_k_norm", "self_attn.k_norm"},
                                                                 {"ffn_norm", "post_attention_layernorm"},
                                                                 {"ffn_gate_inp", "mlp.gate"},
                                                                 {"ffn_gate_exps", "mlp.experts.{e}.gate_proj"},
                                                                 {"ffn_up_exps", "mlp.experts.{e}.up_proj"},
                                                                 {"ffn_down_exps", "mlp.experts.{e}.down_proj"}};

json ReadJson(const char* name) {
  std::ifstream file(absl::StrCat(kDemoModel, "/", name));
  return json::parse(file);
}

std::vector<float> FloatsOf(const Checkpoint& model, const std::string& name) {
  const checkpoint::TensorLocation at = model.Find(name);
  SY_CHECK(at.file != nullptr && at.entry->dtype == "BF16");
  std::vector<uint16_t> bits(static_cast<size_t>(at.entry->bytes / 2));
  SY_CHECK_OK(at.file->Read(at.entry->begin, at.entry->bytes, bits.data()));
  std::vector<float> values(bits.size());
  for (size_t i = 0; i < bits.size(); ++i) {
    const uint32_t wide = uint32_t{bits[i]} << 16;
    std::memcpy(&values[i], &wide, sizeof(wide));
  }
  return values;
}

void Append(const void* bytes, size_t size, std::string* out) { out->append(static_cast<const char*>(bytes), size); }

// A block of Q4_0: the number with the largest magnitude is -8.
void AppendQ40(const float* values, std::string* out) {
  const float largest =
      *std::max_element(values, values + kBlock, [](float a, float b) { return std::abs(a) < std::abs(b); });
  const auto scale = static_cast<_Float16>(largest / -8);
  Append(&scale, sizeof(scale), out);
  const auto code = [&](int64_t i) {
    const float number = largest == 0 ? 0 : values[i] / (largest / -8);
    return static_cast<int>(std::lround(std::clamp(number, -8.0f, 7.0f))) + 8;
  };
  for (int64_t i = 0; i < kBlock / 2; ++i) out->push_back(static_cast<char>(code(i) | code(i + kBlock / 2) << 4));
}

// Values as a type's bytes.
std::string Encoded(const std::vector<float>& values, uint32_t type) {
  std::string out;
  if (type == kF32) {
    Append(values.data(), values.size() * sizeof(float), &out);
    return out;
  }
  if (type == kBf16) {
    for (const float value : values) Append(reinterpret_cast<const char*>(&value) + 2, 2, &out);
    return out;
  }
  for (size_t begin = 0; begin < values.size(); begin += kBlock) {
    if (type == kQ40) {
      AppendQ40(values.data() + begin, &out);
      continue;
    }
    float most = 0;
    for (size_t i = begin; i < begin + kBlock; ++i) most = std::max(most, std::abs(values[i]));
    const auto scale = static_cast<_Float16>(most / 127);
    Append(&scale, sizeof(scale), &out);
    for (size_t i = begin; i < begin + kBlock; ++i) {
      const float code = most == 0 ? 0 : values[i] / (most / 127);
      out.push_back(static_cast<char>(std::lround(std::clamp(code, -127.0f, 127.0f))));
    }
  }
  return out;
}

// Adds tensors one behind the other.
class TensorWriter {
 public:
  TensorWriter(const Checkpoint& model, const DemoGguf& options, int64_t experts, checkpoint::GgufParts* parts)
      : model_(model), options_(options), experts_(experts), parts_(parts) {}

  void Add(const std::string& name, const std::string& hf) {
    const bool of_experts = absl::StrContains(hf, "{e}");
    std::vector<float> values;
    std::vector<int64_t> shape;
    for (int64_t e = 0; e < (of_experts ? experts_ : 1); ++e) {
      const std::string each = absl::StrReplaceAll(hf, {{"{e}", absl::StrCat(e)}});
      const std::vector<float> part = FloatsOf(model_, each);
      values.insert(values.end(), part.begin(), part.end());
      shape = model_.Find(each).entry->shape;
    }
    if (of_experts) shape.insert(shape.begin(), experts_);
    const bool plain = shape.size() == 1 || absl::StrContains(name, "ffn_gate_inp");
    uint32_t type = options_.blocks == DemoBlocks::kNone ? kBf16 : kQ80;
    if (options_.blocks == DemoBlocks::kMixed && of_experts && !KeepsEight(name)) type = kQ40;
    if (plain) type = kF32;
    parts_->rows.push_back(GgufRow(name, shape, type, parts_->data.size()));
    parts_->data += Encoded(values, type);
    while (parts_->data.size() % 32 != 0) parts_->data += '\0';
  }

 private:
  // Down projections of every other layer do: "blk.0.ffn_down_exps.weight".
  static bool KeepsEight(const std::string& name) {
    const std::vector<std::string> parts = absl::StrSplit(name, '.');
    int layer = 0;
    return absl::StartsWith(parts[2], "ffn_down") && absl::SimpleAtoi(parts[1], &layer) && layer % 2 == 0;
  }

  const Checkpoint& model_;
  const DemoGguf& options_;
  const int64_t experts_;
  checkpoint::GgufParts* const parts_;
};

void AddConfig(const json& config, std::vector<std::string>* keys) {
  const auto number = [&](const char* name, const char* key) {
    keys->push_back(GgufU32Key(absl::StrCat("qwen3moe.", name), config.at(key).get<uint32_t>()));
  };
  keys->push_back(GgufTextKey("general.architecture", "qwen3moe"));
  number("block_count", "num_hidden_layers");
  number("context_length", "max_position_embeddings");
  number("embedding_length", "hidden_size");
  number("attention.head_count", "num_attention_heads");
  number("attention.head_count_kv", "num_key_value_heads");
  number("attention.key_length", "head_dim");
  number("attention.value_length", "head_dim");
  number("expert_count", "num_experts");
  number("expert_used_count", "num_experts_per_tok");
  number("expert_feed_forward_length", "moe_intermediate_size");
  const json& rope = config.contains("rope_parameters") ? config["rope_parameters"] : config;
  keys->push_back(GgufF32Key("qwen3moe.rope.freq_base", rope.at("rope_theta").get<float>()));
  keys->push_back(GgufF32Key("qwen3moe.attention.layer_norm_rms_epsilon", config.at("rms_norm_eps").get<float>()));
}

void AddVocabulary(std::vector<std::string>* keys) {
  const json tokenizer = ReadJson("tokenizer.json");
  std::vector<std::string> tokens(tokenizer["model"]["vocab"].size() + tokenizer["added_tokens"].size());
  std::vector<uint32_t> types(tokens.size(), kNormal);
  size_t count = 0;
  for (const auto& [token, id] : tokenizer["model"]["vocab"].items()) {
    tokens[id.get<size_t>()] = token;
    count = std::max(count, id.get<size_t>() + 1);
  }
  for (const json& added : tokenizer["added_tokens"]) {
    const auto id = added["id"].get<size_t>();
    tokens[id] = added["content"];
    types[id] = added["special"].get<bool>() ? kControl : kUserDefined;
    count = std::max(count, id + 1);
  }
  std::string texts, numbers, merges;
  for (size_t id = 0; id < count; ++id) {
    texts += GgufText(tokens[id]);
    numbers += GgufU32(types[id]);
  }
  for (const json& merge : tokenizer["model"]["merges"]) {
    merges += GgufText(merge.is_string() ? merge.get<std::string>()
                                         : absl::StrCat(merge[0].get<std::string>(), " ", merge[1].get<std::string>()));
  }
  keys->push_back(GgufTextKey("tokenizer.ggml.model", "gpt2"));
  keys->push_back(GgufTextKey("tokenizer.ggml.pre", "qwen2"));
  keys->push_back(GgufArrayKey("tokenizer.ggml.tokens", GgufValueType::kString, count, texts));
  keys->push_back(GgufArrayKey("tokenizer.ggml.token_type", GgufValueType::kInt32, count, numbers));
  keys->push_back(
      GgufArrayKey("tokenizer.ggml.merges", GgufValueType::kString, tokenizer["model"]["merges"].size(), merges));
  const json config = ReadJson("tokenizer_config.json");
  const auto id_of = [&](const char* name) {
    const json& token = config.at(name);
    const auto text = token.is_string() ? token.get<std::string>() : token["content"].get<std::string>();
    return static_cast<uint32_t>(std::find(tokens.begin(), tokens.end(), text) - tokens.begin());
  };
  keys->push_back(GgufU32Key("tokenizer.ggml.eos_token_id", id_of("eos_token")));
  keys->push_back(GgufTextKey("tokenizer.chat_template", config.at("chat_template").get<std::string>()));
}

}  // namespace

std::string DemoGgufBytes(const DemoGguf& options) {
  const json config = ReadJson("config.json");
  const absl::StatusOr<Checkpoint> model = Checkpoint::Open(kDemoModel);
  SY_CHECK_OK(model.status());
  checkpoint::GgufParts parts;
  AddConfig(config, &parts.keys);
  if (options.vocabulary) AddVocabulary(&parts.keys);
  TensorWriter writer(*model, options, config.at("num_experts").get<int64_t>(), &parts);
  writer.Add("token_embd.weight", "model.embed_tokens.weight");
  writer.Add("output_norm.weight", "model.norm.weight");
  if (model->Find("lm_head.weight").file != nullptr) writer.Add("output.weight", "lm_head.weight");
  for (int64_t i = 0; i < config.at("num_hidden_layers").get<int64_t>(); ++i) {
    for (const auto& [gguf, hf] : kBlockTensors) {
      writer.Add(absl::StrCat("blk.", i, ".", gguf, ".weight"), absl::StrCat("model.layers.", i, ".", hf, ".weight"));
    }
  }
  return GgufBytes(parts);
}

}  // namespace switchyard
