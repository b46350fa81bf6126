// The activation of a feed-forward, between its two products.  Plain data.
#pragma once

#include <cstdint>

namespace switchyard::ops {

enum class Activation : uint8_t {
  kSwiGlu,    // silu(gate) * up: two products go in
  kGelu,      // x · Φ(x), Φ by the error function (HF's "gelu"); one product
  kGeluTanh,  // its approximation by tanh (HF's "gelu_new", "gelu_pytorch_tanh")
};

constexpr bool IsGated(Activation activation) { return activation == Activation::kSwiGlu; }

// Columns that go in where F come out.
constexpr int64_t SumsWidth(Activation activation, int64_t ffn) { return IsGated(activation) ? 2 * ffn : ffn; }

}  // namespace switchyard::ops
