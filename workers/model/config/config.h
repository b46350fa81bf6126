// A model's config.json and generation_config.json, of a Mixture-of-Experts family in the spellings of transformers v4
// and v5, as one plain struct.
//
// ModelConfig is a value that ReadModelConfig fills.  It has everything that a family decides (which layers are dense,
// which norm q and k get, defaults) but the names of tensors (families/family.h).
// Errors: InvalidArgument (the file is wrong, or asks for what we do not run), NotFound, Unimplemented (an unknown
// architecture).  All problems of a file are reported together, each with the key, what was
// expected and what was found; a misspelled key is named with its nearest known one.
// Does not do: weights (loader.h), the tokenizer (server), remote code (`auto_map` is refused).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "workers/checkpoint/quantized/quantization_config.h"
#include "workers/ops/activation/activation.h"
#include "workers/ops/rope/rope.h"
#include "workers/tensor/dtype.h"

namespace switchyard::model {

// RMSNorm of q and k between projection and RoPE.
enum class QkNorm : uint8_t {
  kNone,
  kPerHead,   // one gamma [D] for every head (Qwen3-MoE)
  kWholeRow,  // gamma [N*D] and [Nkv*D] over the whole projection (OLMoE)
};

enum class NormKind : uint8_t {
  kRms,    // RMSNorm: a gamma
  kLayer,  // LayerNorm: gamma and beta
};

struct LayerConfig {
  bool moe = true;     // false: a dense MLP of dense_intermediate
  int32_t window = 0;  // sliding window in keys, its own included; 0 = full attention
};

struct ModelConfig {
  std::string model_type;           // "qwen3_moe": the family
  std::string architecture;         // "Qwen3MoeForCausalLM"
  int64_t vocab_size = 0;           // V
  int64_t hidden = 0;               // H
  int64_t context = 0;              // max_position_embeddings, or what RoPE's scaling makes of it
  std::vector<LayerConfig> layers;  // [L]

  int64_t num_heads = 0;     // N
  int64_t num_kv_heads = 0;  // Nkv
  int64_t head_dim = 0;      // D; not always H / N
  bool qkv_bias = false;
  bool o_bias = false;
  QkNorm qk_norm = QkNorm::kNone;
  double clip_qkv = 0;           // q, k and v are clamped to ±this; 0 = not
  bool attention_sinks = false;  // a score for each head that only the softmax's denominator has (ops/attention)
  ops::RopeConfig rope;
  bool learned_positions = false;  // a table [context, H] is added to the embedding, nothing is rotated

  int64_t num_experts = 0;          // E; 0 only if every layer is dense
  int64_t top_k = 0;                // K
  int64_t expert_intermediate = 0;  // F
  int64_t shared_intermediate = 0;  // width of the shared expert; 0 = none.  Its gate: sigmoid of [1, H]
  int64_t dense_intermediate = 0;   // width of dense layers
  ops::Activation activation = ops::Activation::kSwiGlu;  // of every feed-forward
  ops::GluClamp glu_clamp;                                // bounds of a gated one (gpt-oss)
  bool ffn_bias = false;  // on both of its products; of gated experts they lie in the weights themselves (ops::Weight)
  bool renormalize = false;        // chosen experts' weights are divided by their sum
  bool router_bias = false;        // experts are chosen by probability and a bias [E] (ops/router.h)
  bool router_logit_bias = false;  // logits have a bias [E], which weights see, too

  NormKind norm = NormKind::kRms;
  bool norm_rounds_once = false;  // RMSNorm multiplies by gamma before it rounds (ops/norm/rms_norm.h)
  double norm_eps = 1e-6;
  bool tie_embeddings = false;      // lm_head is the embedding table
  std::optional<DType> file_dtype;  // of the weights, if the file has it
  // In which formats matrices are stored that are not stored plainly; the loader decodes them.
  std::optional<checkpoint::QuantizationConfig> quantization;
  std::vector<int32_t> eos_token_ids;  // of generation_config.json if it names any, else of config.json
  std::optional<int32_t> bos_token_id;

  // How the bits of a checkpoint are read (Checkpoint::Hash); empty: plainly.
  std::string reading() const { return quantization.has_value() ? quantization->ToString() : ""; }
  int64_t num_layers() const { return static_cast<int64_t>(layers.size()); }
  int64_t num_moe_layers() const;
  int64_t q_width() const { return num_heads * head_dim; }
  int64_t kv_width() const { return num_kv_heads * head_dim; }
  int64_t qkv_width() const { return q_width() + 2 * kv_width(); }
};

inline constexpr int64_t kMaxConfigBytes = 1 << 20;  // of a config.json
inline constexpr int kMaxConfigDepth = 16;

// Reads `dir`/config.json and, where it exists, `dir`/generation_config.json.
absl::StatusOr<ModelConfig> ReadModelConfig(const std::string& dir);

// The same from texts; generation_text may be empty.
absl::StatusOr<ModelConfig> ParseModelConfig(absl::string_view config_text, absl::string_view generation_text);

// Unimplemented: "training from quantized weights (…) is not supported; …", with the remedy.
absl::Status NoQuantizedTraining(const checkpoint::QuantizationConfig& quantization);

// A family's keys of config.json for dropout and jitter, which training has alone (training_noise.h); null: none.
struct NoiseKeys {
  const char* embedding = nullptr;
  const char* hidden = nullptr;
  const char* attention = "attention_dropout";
  const char* router_jitter = nullptr;
};

// The fields that training alone reads.  Errors name the key, what was found and what to do.
struct TrainingConfig {
  double initializer_range = 0.02;             // standard deviation of matrices that are drawn anew
  std::optional<double> router_aux_loss_coef;  // weight of the load-balancing loss
  NoiseKeys noise_keys;                        // of the family
  // In [0, 1), 0 where the file has no such key.
  double embedding_dropout = 0, hidden_dropout = 0, attention_dropout = 0, router_jitter = 0;
};

// Unimplemented: a key for dropout or noise above 0 that models of this family do not have; InvalidArgument: a bad
// number.
absl::StatusOr<TrainingConfig> ParseTrainingConfig(absl::string_view config_text);

// Returns the config with that dtype as its `dtype`, and as its `torch_dtype` if it has one; the same bytes if it has
// them already.  Loaders of a checkpoint in its own dtype read it.  InvalidArgument: no JSON object.
absl::StatusOr<std::string> ConfigWithDType(absl::string_view config_text, DType dtype);

}  // namespace switchyard::model
