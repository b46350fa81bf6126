// An expert's two matrices as one run of bytes, in the expert file, in copies and in slots: gate_up [2F, H] gated
// panels, then down [H, F] panels, as weight.h packs them for the kind of device, with their biases if they have any,
// each at a multiple of 256 bytes.
// Plain data.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"
#include "workers/ops/gemm/weight.h"
#include "workers/tensor/device.h"
#include "workers/tensor/tensor.h"

namespace switchyard::moe {

// What an expert's matrices are of.
struct ExpertType {
  ExpertType(DType compute, ops::WeightFormat of_gate_up = {}, ops::WeightFormat of_down = {})  // NOLINT
      : dtype(compute), gate_up(of_gate_up), down(of_down) {}

  DType dtype;
  ops::WeightFormat gate_up, down;  // in which the matrices are held
};

struct PackedExpert {
  PackedExpert() = default;
  // REQUIRES: hidden (H), ffn (F) >= 1; a floating dtype.
  PackedExpert(int64_t hidden, int64_t ffn, const ExpertType& type, DeviceKind device, bool bias = false)
      : gate_up{.n = 2 * ffn,
                .k = hidden,
                .dtype = type.dtype,
                .layout = ops::WeightLayout::kGatedPanels,
                .format = type.gate_up,
                .bias = bias},
        down{.n = hidden, .k = ffn, .dtype = type.dtype, .format = type.down, .bias = bias} {
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

// A model's experts: those of a layer are alike, and layers may differ in their formats.
class ExpertForms {
 public:
  ExpertForms() = default;
  ExpertForms(const PackedExpert& all) : ExpertForms(std::vector<PackedExpert>{all}) {}  // NOLINT
  // By layer, among those with experts; or one that all have.  REQUIRES: at least one.
  explicit ExpertForms(std::vector<PackedExpert> layers) : layers_(std::move(layers)) {
    SY_CHECK(!layers_.empty());
    for (const PackedExpert& expert : layers_) bytes_ = std::max(bytes_, expert.bytes);
  }

  // REQUIRES: not made by default.
  const PackedExpert& of(int moe_layer) const {
    return layers_[layers_.size() == 1 ? 0 : static_cast<size_t>(moe_layer)];
  }
  // Of the largest: what a place must have that any of them may be in.
  int64_t bytes() const { return bytes_; }
  // "gate_up … down …"; where layers differ "0: gate_up … down …, 1: gate_up … down …, by layer 0 0 1 0".
  std::string ToString() const {
    std::vector<std::string> forms;
    std::string numbers;
    for (const PackedExpert& expert : layers_) {
      std::string form = absl::StrCat("gate_up ", expert.gate_up.ToString(), " down ", expert.down.ToString());
      const auto found = std::find(forms.begin(), forms.end(), form);
      absl::StrAppend(&numbers, " ", found - forms.begin());
      if (found == forms.end()) forms.push_back(std::move(form));
    }
    if (forms.size() == 1) return forms[0];
    std::string text;
    for (size_t i = 0; i < forms.size(); ++i) absl::StrAppend(&text, i, ": ", forms[i], ", ");
    return absl::StrCat(text, "by layer", numbers);
  }

 private:
  std::vector<PackedExpert> layers_;
  int64_t bytes_ = 0;
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
