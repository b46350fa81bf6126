// The activation of a feed-forward, between its two products.  Plain data.
#pragma once

#include <cstdint>

namespace switchyard::ops {

enum class Activation : uint8_t {
  kSwiGlu,    // silu(gate) * up, from two products
  kGelu,      // x · Φ(x), Φ by the error function (HF's "gelu"); one product
  kGeluTanh,  // its approximation by tanh (HF's "gelu_new", "gelu_pytorch_tanh")
};

constexpr bool IsGated(Activation activation) { return activation == Activation::kSwiGlu; }

// SwiGLU with bounds (gpt-oss): with gate' = min(gate, limit) and up' = clamp(up, -limit, limit),
//   gate' * sigmoid(alpha · gate') * (up' + 1)
struct GluClamp {
  double alpha = 1;
  double limit = 0;  // 0: none, silu(gate) * up
};

// Columns of the activation's input for F columns of its output.
constexpr int64_t SumsWidth(Activation activation, int64_t ffn) { return IsGated(activation) ? 2 * ffn : ffn; }

}  // namespace switchyard::ops
