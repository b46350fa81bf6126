// A checkpoint of one small OLMoE layer with numbered elements, for tests of loading.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/workers/checkpoint/safetensors_bytes.h"
#include "tests/workers/model/temp_dir.h"
#include "workers/model/config/config.h"
#include "workers/model/weights/loader.h"
#include "workers/ops/gemm/weight.h"
#include "workers/tensor/tensor.h"

namespace switchyard::model {

inline constexpr int64_t kHidden = 8, kWidth = 6, kVocab = 10, kExperts = 3, kHeadDim = 4;

inline ModelConfig SmallConfig() {
  ModelConfig c;
  c.model_type = "olmoe";
  c.architecture = "OlmoeForCausalLM";
  c.vocab_size = kVocab;
  c.hidden = kHidden;
  c.context = 32;
  c.layers.resize(1);
  c.num_heads = 2;
  c.num_kv_heads = 1;
  c.head_dim = kHeadDim;
  c.qk_norm = QkNorm::kWholeRow;
  c.rope.rotary_dim = kHeadDim;
  c.num_experts = kExperts;
  c.top_k = 2;
  c.expert_intermediate = kWidth;
  return c;
}

using Tensors = std::map<std::string, checkpoint::WrittenTensor>;

// Values that differ between elements and that every dtype holds exactly.
inline checkpoint::WrittenTensor Numbered(const std::string& dtype, std::vector<int64_t> shape, int first) {
  int64_t n = 1;
  for (const int64_t d : shape) n *= d;
  std::vector<float> values;
  for (int64_t i = 0; i < n; ++i) values.push_back(static_cast<float>((first + i) % 251) / 4);
  return checkpoint::FloatTensor(dtype, std::move(shape), values);
}

inline Tensors SmallTensors(const std::string& dtype, bool fused) {
  const std::string layer = "model.layers.0.";
  Tensors t;
  t["model.embed_tokens.weight"] = Numbered(dtype, {kVocab, kHidden}, 1);
  t["lm_head.weight"] = Numbered(dtype, {kVocab, kHidden}, 2);
  t["model.norm.weight"] = Numbered(dtype, {kHidden}, 3);
  t[layer + "input_layernorm.weight"] = Numbered(dtype, {kHidden}, 4);
  t[layer + "post_attention_layernorm.weight"] = Numbered(dtype, {kHidden}, 5);
  t[layer + "self_attn.q_proj.weight"] = Numbered(dtype, {8, kHidden}, 6);
  t[layer + "self_attn.k_proj.weight"] = Numbered(dtype, {4, kHidden}, 7);
  t[layer + "self_attn.v_proj.weight"] = Numbered(dtype, {4, kHidden}, 8);
  t[layer + "self_attn.o_proj.weight"] = Numbered(dtype, {kHidden, 8}, 9);
  t[layer + "self_attn.q_norm.weight"] = Numbered(dtype, {8}, 10);
  t[layer + "self_attn.k_norm.weight"] = Numbered(dtype, {4}, 11);
  t[layer + "mlp.gate.weight"] = Numbered(dtype, {kExperts, kHidden}, 12);
  if (fused) {
    t[layer + "mlp.experts.gate_up_proj"] = Numbered(dtype, {kExperts, 2 * kWidth, kHidden}, 13);
    t[layer + "mlp.experts.down_proj"] = Numbered(dtype, {kExperts, kHidden, kWidth}, 14);
    return t;
  }
  for (int e = 0; e < kExperts; ++e) {
    const std::string expert = absl::StrCat(layer, "mlp.experts.", e, ".");
    const int at = e * 2 * kWidth * kHidden;
    t[expert + "gate_proj.weight"] = Numbered(dtype, {kWidth, kHidden}, 13 + at);
    t[expert + "up_proj.weight"] = Numbered(dtype, {kWidth, kHidden}, 13 + at + kWidth * kHidden);
    t[expert + "down_proj.weight"] = Numbered(dtype, {kHidden, kWidth}, 14 + e * kWidth * kHidden);
  }
  return t;
}

inline absl::StatusOr<ModelWeights> Load(const Tensors& tensors, LoadOptions options, const ModelConfig& config) {
  TempDir dir;
  dir.Write("model.safetensors", checkpoint::SafetensorsBytes(tensors));
  const auto checkpoint = checkpoint::Checkpoint::Open(dir.path());
  if (!checkpoint.ok()) return checkpoint.status();
  return LoadWeights(*checkpoint, config, std::move(options));
}

inline LoadOptions AllExperts(DType dtype = DType::kF32) {
  LoadOptions options;
  options.dtype = dtype;
  options.residents = {0, 1, 2};
  options.num_threads = 2;
  return options;
}

inline std::vector<float> Rows(const ops::Weight& weight) {
  Tensor rows(weight.dtype(), {weight.n(), weight.k()});
  EXPECT_TRUE(weight.UnpackRows(0, rows).ok());
  std::vector<float> values;
  VisitDType(weight.dtype(), [&]<class Elem>() {
    for (int64_t i = 0; i < rows.view().NumElements(); ++i) {
      values.push_back(static_cast<float>(static_cast<Acc<Elem>>(rows.data<Elem>()[i])));
    }
  });
  return values;
}

inline std::vector<float> Expected(int first, int64_t n) {
  std::vector<float> values;
  for (int64_t i = 0; i < n; ++i) values.push_back(static_cast<float>((first + i) % 251) / 4);
  return values;
}

}  // namespace switchyard::model
