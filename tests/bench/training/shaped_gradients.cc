#include "tests/bench/training/shaped_gradients.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::bench {
namespace {

int64_t TotalElements(const StepShape& shape, int experts) {
  int64_t total = TotalOf(shape.head) + TotalOf(shape.embedding) + shape.layers * experts * TotalOf(shape.expert);
  for (int i = 0; i < shape.layers; ++i) {
    const LayerElements layer = ElementsOfLayer(shape, i);
    total += TotalOf(layer.feed_forward) + TotalOf(layer.attention_out) + TotalOf(layer.attention_in);
  }
  return total;
}

// Hands out memory, one gradient after the other.
class Cutter {
 public:
  explicit Cutter(const TensorView& memory) : left_(memory) {}

  // Each of the elements to one of the places, in turn.
  absl::Status To(const char* stage, const std::vector<int64_t>& elements, std::vector<TensorView*> places) {
    if (elements.size() > places.size()) {
      return absl::InvalidArgumentError(absl::StrCat("step shape: ", elements.size(), " gradients in ", stage,
                                                     ", where models have at most ", places.size()));
    }
    for (size_t i = 0; i < elements.size(); ++i) {
      *places[i] = left_.Rows(0, elements[i]);
      left_ = left_.Rows(elements[i], left_.dim(0) - elements[i]);
    }
    return absl::OkStatus();
  }

 private:
  TensorView left_;
};

absl::Status CutLayer(const StepShape& shape, int layer_idx, int experts, Cutter* cutter,
                      model::LayerGradients* layer) {
  const LayerElements elements = ElementsOfLayer(shape, layer_idx);
  model::AttentionGradients& attention = layer->attention;
  model::MoeGradients& moe = layer->moe.emplace();
  moe.experts.resize(static_cast<size_t>(experts));
  for (ops::FfnGradients& expert : moe.experts) {
    RETURN_IF_ERROR(cutter->To("an expert", shape.expert, {&expert.down.gradient, &expert.gate_up.gradient}));
  }
  RETURN_IF_ERROR(cutter->To("feed-forward", elements.feed_forward, {&moe.router.gradient, &layer->ffn_norm}));
  RETURN_IF_ERROR(cutter->To("attention's end", elements.attention_out, {&attention.o.gradient, &attention.o_bias}));
  return cutter->To(
      "attention's beginning", elements.attention_in,
      {&attention.qkv.gradient, &attention.norm, &attention.q_norm, &attention.k_norm, &attention.qkv_bias});
}

}  // namespace

absl::StatusOr<ShapedGradients> ShapedGradients::Create(const StepShape& shape, int experts) {
  ShapedGradients made;
  ASSIGN_OR_RETURN(made.memory_, Tensor::Allocate(DType::kF32, {TotalElements(shape, experts)}, Device::Cpu()));
  std::memset(made.memory_.view().raw(), 0, static_cast<size_t>(TotalElements(shape, experts) * kGradientBytes));
  Cutter cutter(made.memory_.view());
  model::ModelGradients& views = made.views_;
  RETURN_IF_ERROR(cutter.To("the head", shape.head, {&views.lm_head.gradient, &views.final_norm}));
  RETURN_IF_ERROR(cutter.To("the embedding", shape.embedding, {&views.embedding}));
  views.layers.resize(static_cast<size_t>(shape.layers));
  for (int i = 0; i < shape.layers; ++i) {
    RETURN_IF_ERROR(CutLayer(shape, i, experts, &cutter, &views.layers[static_cast<size_t>(i)]));
  }
  return made;
}

}  // namespace switchyard::bench
