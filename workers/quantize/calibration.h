// Quantizes the layers of a model one after the other by GPTQ (gptq.h), each by the inputs that its matrices get where
// the layers before it are quantized already.
//
// A layer is run twice over the samples: once as it is, for the inputs of its matrices, then quantized, for its
// outputs. A routed expert sees the rows that chose it; its down projection those that its quantized gate and up
// projections make of them.  An expert that fewer than kLeastRows rows chose is rounded to nearest.  Beside the samples
// go windows that are held out, once through the model as it is and once through the quantized one, for bits before and
// after. In memory are one layer, the hidden rows of all windows, inputs of one layer's feed-forward, and the products
// of one matrix's inputs.  Thread-compatible.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "workers/checkpoint/tensors/checkpoint.h"
#include "workers/model/config/config.h"
#include "workers/quantize/gram.h"
#include "workers/quantize/layer_plan.h"
#include "workers/quantize/model_part.h"
#include "workers/quantize/output_files.h"
#include "workers/quantize/samples.h"
#include "workers/tensor/device.h"
#include "workers/tensor/tensor.h"

namespace switchyard::quantize {

inline constexpr double kDamping = 0.01;   // of the mean of a Gram matrix's diagonal, added to it
inline constexpr int64_t kLeastRows = 64;  // by which an expert is calibrated

// Bits of all targets of the held-out windows.
struct HeldOutBits {
  double before = 0, after = 0;
};

struct CalibrationHooks {
  std::function<bool()> stop;                       // asked often; true ends with Cancelled
  std::function<void(absl::string_view line)> say;  // called often, with what is done
};

class Calibration {
 public:
  // Embeds the samples.  Borrows checkpoint and config.  ResourceExhausted: they need more memory than there is.
  static absl::StatusOr<std::unique_ptr<Calibration>> Create(const Stream& stream,
                                                             const checkpoint::Checkpoint& checkpoint,
                                                             const model::ModelConfig& config, DType dtype,
                                                             const GroupFormat& format, Samples samples,
                                                             CalibrationHooks hooks);

  // Layers in rising order, each once.  weights, plan: of PlanLayer, the weights of dtype(), which it takes.
  absl::StatusOr<std::vector<NamedMatrix>> QuantizeLayer(int64_t layer_idx, model::ModelWeights weights,
                                                         const LayerPlan& plan);
  // After the last layer.
  absl::StatusOr<HeldOutBits> MeasureHeldOut();

  DType dtype() const { return options_.dtype; }
  int64_t rounded_experts() const { return rounded_experts_; }  // rounded to nearest for want of rows

 private:
  // The matrices that get the same inputs.
  struct Inputs {
    Tensor normed;    // [T, H] of feed-forwards, of the samples
    Tensor topk_idx;  // [T, K]; rank 0: a dense layer
    Gram qkv, attended;
    Inputs(const model::ModelConfig& config, DType dtype, int64_t rows, bool moe);
  };
  struct Layer {
    const LayerPlan* plan;
    ModelPart* part;
    std::vector<NamedMatrix>* matrices;
  };

  Calibration(const Stream& stream, const checkpoint::Checkpoint& checkpoint, const model::ModelConfig& config,
              const GroupFormat& format, Samples samples, CalibrationHooks hooks)
      : stream_(stream),
        checkpoint_(checkpoint),
        config_(config),
        format_(format),
        samples_(std::move(samples)),
        hooks_(std::move(hooks)) {}
  absl::Status CheckMemory() const;
  absl::Status EmbedAll();
  absl::Status RunAll(const Windows& windows, ModelPart* part, const TensorView& rows);
  absl::Status Collect(ModelPart* part, Inputs* inputs);
  absl::Status QuantizeAttention(const Layer& layer, Inputs* inputs);
  absl::Status QuantizeFeedForwards(const Layer& layer, const Inputs& inputs);
  // rows: of inputs.normed, that it gets.
  absl::Status QuantizeFfn(const Layer& layer, const Inputs& inputs, model::FfnWeights* ffn,
                           const std::vector<int32_t>& rows);
  // The matrices that lie in `weight`; gram: null: to nearest.
  absl::Status QuantizeWeight(const Layer& layer, ops::Weight* weight, const Gram* gram);
  // Of the layer under way: "layer 3 of 16: inputs, row 2048 of 65536".
  void Say(absl::string_view what, int64_t done, int64_t all) const;
  absl::Status CheckGoing() const {
    return hooks_.stop() ? absl::CancelledError("interrupted; nothing was written") : absl::OkStatus();
  }

  const Stream stream_;
  const checkpoint::Checkpoint& checkpoint_;
  const model::ModelConfig& config_;
  const GroupFormat format_;
  const Samples samples_;
  const CalibrationHooks hooks_;
  PartOptions options_;
  Tensor rows_, held_out_, held_out_before_;  // [T, H] AccDType: of samples and held-out windows
  int64_t layer_idx_ = 0;                     // under way
  int64_t rounded_experts_ = 0;
};

}  // namespace switchyard::quantize
