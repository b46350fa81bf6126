// An expert's two matrices as one run of bytes, in the expert file, in copies and in slots: gate_up [2F, H] gated
// panels, then down [H, F] panels, as weight.h packs them for the kind of device, with their biases if they have any,
// each at a multiple of 256 bytes.
// Plain data.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"
#include "workers/ops/gemm/weight.h"
#include "workers/tensor/device.h"
#include "workers/tensor/tensor.h"

namespace switchyard::moe {

struct PackedExpert {
  PackedExpert() = default;
  // REQUIRES: hidden (H), ffn (F) >= 1; a floating dtype.
  PackedExpert(int64_t hidden, int64_t ffn, ops::WeightType type, DeviceKind device, bool bias = false)
      : gate_up{.n = 2 * ffn,
                .k = hidden,
                .dtype = type.dtype,
                .layout = ops::WeightLayout::kGatedPanels,
                .format = type.format.gate_up,
                .bias = bias},
        down{.n = hidden, .k = ffn, .dtype = type.dtype, .format = type.format.down, .bias = bias} {
    SY_CHECK(hidden >= 1 && ffn >= 1);
    const auto aligned = [](int64_t size) {
      return (size + kDeviceAlignment - 1) / kDeviceAlignment * kDeviceAlignment;
    };
    down_offset = aligned(ops::PackedBytes(gate_up, device));
    bytes = down_offset + aligned(ops::PackedBytes(down, device));
  }

  ops::WeightDesc gate_up, down;
  int64_t down_offset = 0;  // bytes from the expert's first byte
  int64_t bytes = 0;        // a multiple of 256
};

// Which expert of the model.
struct ExpertId {
  int32_t layer = 0;   // among the MoE layers
  int32_t expert = 0;  // in [0, E)

  bool operator==(const ExpertId&) const = default;
  template <class Hash>
  friend Hash AbslHashValue(Hash hash, const ExpertId& id) {
    return Hash::combine(std::move(hash), id.layer, id.expert);
  }
  std::string ToString() const {  // "expert 3 of MoE layer 5"
    return absl::StrCat("expert ", expert, " of MoE layer ", layer);
  }
};

}  // namespace switchyard::moe
