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

// Columns of the activation's input for F columns of its output.
constexpr int64_t SumsWidth(Activation activation, int64_t ffn) { return IsGated(activation) ? 2 * ffn : ffn; }

}  // namespace switchyard::ops
