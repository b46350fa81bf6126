#include "workers/model/weights/params.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <unordered_map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "workers/checkpoint/quantized/transposed_matrix.h"
#include "workers/checkpoint/safetensors/safetensors_header.h"
#include "workers/model/config/memory_plan.h"

namespace switchyard::model {
namespace {

constexpr char kEmbedding[] = "model.embed_tokens.weight";

std::string Named(absl::string_view pattern, int64_t layer_idx, int64_t expert_idx = 0) {
  return absl::StrReplaceAll(pattern, {{"{i}", absl::StrCat(layer_idx)}, {"{e}", absl::StrCat(expert_idx)}});
}

class Table {
 public:
  // checkpoint: null: nothing to compare with, and experts are not fused.
  Table(const ModelConfig& config, const ModelFamily& family, const checkpoint::Checkpoint* checkpoint)
      : config_(config), family_(family), checkpoint_(checkpoint) {}

  void AddModel(ModelWeights* weights) {
    const std::string embedding = kEmbedding;
    const std::vector<int64_t> shape = {config_.vocab_size, config_.hidden};
    if (weights->embedding.bytes() != 0) Add({.name = embedding, .shape = shape, .tensor = &weights->embedding});
    Add({.name = config_.tie_embeddings ? embedding : "lm_head.weight", .shape = shape, .weight = &weights->lm_head});
    if (config_.learned_positions) {
      Add({.name = "model.embed_positions.weight",
           .shape = {config_.context, config_.hidden},
           .tensor = &weights->positions});
    }
    AddNorm("model.norm.", &weights->final_norm, &weights->final_norm_bias);
    for (int64_t i = 0; i < config_.num_layers(); ++i) AddLayer(i, weights->residents, &weights->layers[i]);
  }

  void AddLayer(int64_t layer_idx, const std::vector<int32_t>& residents, LayerWeights* layer) {
    AddAttention(layer_idx, layer);
    if (layer->dense.has_value()) {
      AddFfn(absl::StrCat("model.layers.", layer_idx, ".mlp."), config_.dense_intermediate, &*layer->dense);
    } else {
      AddMoe(layer_idx, residents, &*layer->moe);
    }
  }

  // ids: by slot.
  void AddExperts(int64_t layer_idx, absl::Span<const int32_t> ids, absl::Span<FfnWeights> experts) {
    const MoeNaming& names = family_.moe;
    const bool fused = names.fused_transposed
                           ? !Has(Named(names.expert_up, layer_idx))
                           : names.fused_gate_up != nullptr && Has(Named(names.fused_gate_up, layer_idx));
    for (size_t slot = 0; slot < experts.size(); ++slot) {
      const size_t first = params_.size();
      fused ? AddFusedExpert(layer_idx, ids[slot], &experts[slot]) : AddExpert(layer_idx, ids[slot], &experts[slot]);
      for (size_t i = first; i < params_.size(); ++i) {
        params_[i].shard = Shard::kExpert;
        params_[i].layer = static_cast<int32_t>(layer_idx);
        params_[i].expert = ids[slot];
      }
    }
  }

  absl::StatusOr<std::vector<Param>> Finish() {
    if (problems_.empty()) return std::move(params_);
    const size_t shown = std::min<size_t>(problems_.size(), kMaxReported);
    std::string text = absl::StrJoin(problems_.begin(), problems_.begin() + static_cast<int64_t>(shown), "\n");
    if (problems_.size() > shown) absl::StrAppend(&text, "\nand ", problems_.size() - shown, " more");
    return absl::InvalidArgumentError(text);
  }

 private:
  // Sets columns, and rows unless they are given, from the shape.
  void Add(Param param) {
    param.columns = param.shape.size() > 1 ? param.shape.back() : 1;
    if (param.rows == 0) param.rows = param.shape.front();
    if (checkpoint_ != nullptr && !FindQuantized(&param) && !FindTransposed(&param)) Compare(param);
    params_.push_back(std::move(param));
  }

  // Whether the checkpoint has it in a quantized format, well or with problems.
  bool FindQuantized(Param* param) {
    absl::StatusOr<std::unique_ptr<checkpoint::MatrixReader>> matrix = checkpoint::OpenMatrix(
        *checkpoint_, config_.quantization.has_value() ? &*config_.quantization : nullptr, param->name, param->shape);
    if (!matrix.ok()) {
      problems_.emplace_back(matrix.status().message());
      return true;
    }
    param->matrix = *std::move(matrix);
    return param->matrix != nullptr;
  }

  // Whether the checkpoint has to have it transposed; then it does, or there is a problem.
  bool FindTransposed(Param* param) {
    if (!param->transposed) return false;
    Param stored = *param;
    std::swap(*(stored.shape.end() - 2), stored.shape.back());
    const size_t problems = problems_.size();
    Compare(stored);
    if (problems_.size() > problems) return true;
    param->matrix = std::make_shared<checkpoint::TransposedMatrix>(param->name, checkpoint_->Find(param->name));
    return true;
  }

  void Compare(const Param& param) {
    const checkpoint::TensorLocation at = checkpoint_->Find(param.name);
    const checkpoint::TensorEntry wanted{.dtype = "", .shape = param.shape};
    if (at.file == nullptr) {
      problems_.push_back(
          absl::StrCat("tensor \"", param.name, "\": expected ", wanted.ShapeString(), ", it is missing"));
      return;
    }
    const absl::StatusOr<DType> dtype = checkpoint::ParseSafetensorsDType(at.entry->dtype);
    if (at.entry->shape != param.shape) {
      problems_.push_back(absl::StrCat(at.file->name(), ": tensor \"", param.name, "\": expected ",
                                       wanted.ShapeString(), ", found ", at.entry->ShapeString()));
    } else if (!dtype.ok() || !IsFloating(*dtype)) {
      problems_.push_back(absl::StrCat(at.file->name(), ": tensor \"", param.name,
                                       "\": expected BF16, F16, F32 or F64, found ", at.entry->dtype));
    }
  }

  bool Has(const std::string& name) const {
    return checkpoint_ != nullptr && checkpoint::HasMatrix(*checkpoint_, name);
  }

  void AddAttention(int64_t layer_idx, LayerWeights* layer) {
    const std::string prefix = absl::StrCat("model.layers.", layer_idx, ".");
    AttentionWeights& a = layer->attention;
    AddNorm(prefix + "input_layernorm.", &a.norm, &a.norm_bias);
    AddNorm(prefix + "post_attention_layernorm.", &layer->ffn_norm, &layer->ffn_norm_bias);
    const std::string self = prefix + "self_attn.";
    int64_t first_row = 0;
    for (const auto& [proj, width] :
         {std::make_pair("q_proj", config_.q_width()), std::make_pair("k_proj", config_.kv_width()),
          std::make_pair("v_proj", config_.kv_width())}) {
      Add({.name = absl::StrCat(self, proj, ".weight"),
           .shape = {width, config_.hidden},
           .weight = &a.qkv,
           .first_row = first_row});
      if (config_.qkv_bias) {
        Add({.name = absl::StrCat(self, proj, ".bias"),
             .shape = {width},
             .tensor = &a.qkv_bias,
             .first_row = first_row});
      }
      first_row += width;
    }
    Add({.name = self + "o_proj.weight", .shape = {config_.hidden, config_.q_width()}, .weight = &a.o});
    if (config_.o_bias) Add({.name = self + "o_proj.bias", .shape = {config_.hidden}, .tensor = &a.o_bias});
    if (config_.attention_sinks) Add({.name = self + "sinks", .shape = {config_.num_heads}, .tensor = &a.sinks});
    if (config_.qk_norm == QkNorm::kNone) return;
    const bool per_head = config_.qk_norm == QkNorm::kPerHead;
    const int64_t q = per_head ? config_.head_dim : config_.q_width();
    const int64_t k = per_head ? config_.head_dim : config_.kv_width();
    Add({.name = self + "q_norm.weight", .shape = {q}, .tensor = &a.q_norm});
    Add({.name = self + "k_norm.weight", .shape = {k}, .tensor = &a.k_norm});
  }

  void AddNorm(const std::string& prefix, Tensor* gamma, Tensor* beta) {
    Add({.name = prefix + "weight", .shape = {config_.hidden}, .tensor = gamma});
    if (config_.norm != NormKind::kLayer) return;
    Add({.name = prefix + "bias", .shape = {config_.hidden}, .tensor = beta});
  }

  void AddFfn(const std::string& prefix, int64_t width, FfnWeights* ffn) {
    AddFfn({prefix + "gate_proj.weight", prefix + "up_proj.weight", prefix + "down_proj.weight"}, width, ffn);
  }

  // The names of a feed-forward's weights; those of its biases follow.
  struct FfnNames {
    std::string gate, up, down;
  };

  void AddFfn(const FfnNames& names, int64_t width, FfnWeights* ffn) {
    const int64_t hidden = config_.hidden;
    const bool gated = ops::IsGated(config_.activation);
    if (gated) Add({.name = names.gate, .shape = {width, hidden}, .weight = &ffn->gate_up});
    Add({.name = names.up, .shape = {width, hidden}, .weight = &ffn->gate_up, .first_row = gated ? width : 0});
    Add({.name = names.down, .shape = {hidden, width}, .weight = &ffn->down});
    if (!config_.ffn_bias) return;
    const auto bias = [](const std::string& weight) { return absl::StrReplaceAll(weight, {{".weight", ".bias"}}); };
    if (gated) {  // in the weights themselves
      Add({.name = bias(names.gate), .shape = {width}, .weight = &ffn->gate_up, .bias = true});
      Add({.name = bias(names.up), .shape = {width}, .weight = &ffn->gate_up, .first_row = width, .bias = true});
      Add({.name = bias(names.down), .shape = {hidden}, .weight = &ffn->down, .bias = true});
      return;
    }
    Add({.name = bias(names.up), .shape = {width}, .tensor = &ffn->up_bias});
    Add({.name = bias(names.down), .shape = {hidden}, .tensor = &ffn->down_bias});
  }

  void AddMoe(int64_t layer_idx, const std::vector<int32_t>& residents, MoeWeights* moe) {
    const MoeNaming& names = family_.moe;
    std::string router = Named(names.router[0], layer_idx);
    if (names.router[1] != nullptr && !Has(router) && Has(Named(names.router[1], layer_idx))) {
      router = Named(names.router[1], layer_idx);
    }
    Add({.name = router, .shape = {config_.num_experts, config_.hidden}, .weight = &moe->router});
    if (config_.router_bias) {
      Add({.name = Named(names.router_bias, layer_idx),
           .shape = {config_.num_experts},
           .tensor = &moe->router_bias,
           .router_bias = true});
    }
    if (config_.router_logit_bias) {
      Add({.name = Named(names.router_logit_bias, layer_idx),
           .shape = {config_.num_experts},
           .weight = &moe->router,
           .bias = true});
    }
    AddExperts(layer_idx, residents, absl::MakeSpan(moe->experts));
    if (!moe->shared.has_value()) return;
    const std::string prefix = absl::StrCat("model.layers.", layer_idx, ".mlp.shared_expert");
    AddFfn(prefix + ".", config_.shared_intermediate, &*moe->shared);
    Add({.name = prefix + "_gate.weight", .shape = {1, config_.hidden}, .weight = &moe->shared_gate});
  }

  void AddExpert(int64_t layer_idx, int64_t expert_idx, FfnWeights* expert) {
    const MoeNaming& names = family_.moe;
    const auto name = [&](const char* pattern) {
      return pattern == nullptr ? std::string() : Named(pattern, layer_idx, expert_idx);
    };
    AddFfn({name(names.expert_gate), name(names.expert_up), name(names.expert_down)}, config_.expert_intermediate,
           expert);
  }

  void AddFusedExpert(int64_t layer_idx, int64_t expert_idx, FfnWeights* expert) {
    const int64_t width = config_.expert_intermediate;
    const int64_t hidden = config_.hidden;
    const MoeNaming& names = family_.moe;
    Add({.name = Named(names.fused_gate_up, layer_idx),
         .shape = {config_.num_experts, 2 * width, hidden},
         .source_row = expert_idx * 2 * width,
         .rows = 2 * width,
         .weight = &expert->gate_up,
         .transposed = names.fused_transposed,
         .interleaved = names.fused_transposed});
    Add({.name = Named(names.fused_down, layer_idx),
         .shape = {config_.num_experts, hidden, width},
         .source_row = expert_idx * hidden,
         .rows = hidden,
         .weight = &expert->down,
         .transposed = names.fused_transposed});
    if (!config_.ffn_bias) return;
    Add({.name = Named(names.fused_gate_up_bias, layer_idx),
         .shape = {config_.num_experts, 2 * width},
         .source_row = expert_idx,
         .rows = 1,
         .weight = &expert->gate_up,
         .interleaved = true,
         .bias = true});
    Add({.name = Named(names.fused_down_bias, layer_idx),
         .shape = {config_.num_experts, hidden},
         .source_row = expert_idx,
         .rows = 1,
         .weight = &expert->down,
         .bias = true});
  }

  const ModelConfig& config_;
  const ModelFamily& family_;
  const checkpoint::Checkpoint* const checkpoint_;
  std::vector<Param> params_;
  std::vector<std::string> problems_;
};

}  // namespace

absl::StatusOr<std::vector<Param>> BuildParams(const ModelConfig& config, const ModelFamily& family,
                                               const checkpoint::Checkpoint& checkpoint, ModelWeights* weights) {
  Table table(config, family, &checkpoint);
  table.AddModel(weights);
  return table.Finish();
}

std::vector<Param> ListParams(const ModelConfig& config, const ModelFamily& family, ModelWeights* weights) {
  Table table(config, family, /*checkpoint=*/nullptr);
  table.AddModel(weights);
  return *table.Finish();
}

std::vector<std::vector<Param>> DescribeParams(const ModelConfig& config, const ModelFamily& family) {
  ModelWeights weights;  // without memory
  weights.residents.resize(static_cast<size_t>(config.num_experts));
  std::iota(weights.residents.begin(), weights.residents.end(), 0);
  for (const LayerConfig& of : config.layers) {
    LayerWeights& layer = weights.layers.emplace_back();
    if (!of.moe) {
      layer.dense.emplace();
      continue;
    }
    layer.moe.emplace().experts.resize(static_cast<size_t>(config.num_experts));
    if (config.shared_intermediate > 0) layer.moe->shared.emplace();
  }
  std::vector<std::vector<Param>> places;
  std::unordered_map<const void*, size_t> index;
  for (Param& param : ListParams(config, family, &weights)) {
    const void* const place = param.weight != nullptr ? static_cast<const void*>(param.weight) : param.tensor;
    const auto [found, added] = index.try_emplace(place, places.size());
    if (added) places.emplace_back();
    param.weight = nullptr;
    param.tensor = nullptr;
    places[found->second].push_back(std::move(param));
  }
  if (HasEmbedding(config, ops::WeightFormat::kPlain)) {
    const std::vector<int64_t> shape = {config.vocab_size, config.hidden};
    places.push_back({{.name = kEmbedding, .shape = shape, .rows = shape[0], .columns = shape[1]}});
  }
  return places;
}

absl::StatusOr<std::vector<Param>> BuildLayerParams(const ModelConfig& config, const ModelFamily& family,
                                                    const checkpoint::Checkpoint* checkpoint, int64_t layer_idx,
                                                    const std::vector<int32_t>& residents, LayerWeights* layer) {
  Table table(config, family, checkpoint);
  table.AddLayer(layer_idx, residents, layer);
  return table.Finish();
}

std::vector<Param> ListExpertParams(const ModelConfig& config, const ModelFamily& family, absl::Span<const int32_t> ids,
                                    absl::Span<std::vector<FfnWeights>> experts) {
  Table table(config, family, /*checkpoint=*/nullptr);
  size_t moe_layer = 0;
  for (int64_t i = 0; i < config.num_layers(); ++i) {
    if (config.layers[i].moe) table.AddExperts(i, ids, absl::MakeSpan(experts[moe_layer++]));
  }
  return *table.Finish();
}

}  // namespace switchyard::model
