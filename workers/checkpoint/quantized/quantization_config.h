// The `quantization_config` of a config.json as a struct: in which of the published formats the matrices of a
// checkpoint are stored.
//
// Understood are the values of quant_method: fp8, compressed-tensors (pack-quantized, int-quantized, float-quantized),
// awq, gptq and mxfp4.  What it says of activations and of KV caches is not read: they are computed in the dtype that
// is served.  Pure, thread-safe.
// Errors: InvalidArgument with a line for every problem: the field, what was found, what is understood.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json_fwd.hpp"

namespace switchyard::checkpoint {

enum class StoredFormat : uint8_t {
  kFp8,     // X.weight E4M3, and X.weight_scale_inv or X.weight_scale
  kInt8,    // X.weight I8, X.weight_scale, X.weight_zero_point unless symmetric
  kPacked,  // X.weight_packed, X.weight_scale, X.weight_shape, X.weight_zero_point unless symmetric, X.weight_g_idx
  kAwq,     // X.qweight, X.qzeros, X.scales, transposed
  kGptq,    // X.qweight, X.qzeros, X.scales, X.g_idx, transposed
  kMxfp4,   // X_blocks, X_scales
};

// The values that share a scale.
enum class ScaleScope : uint8_t {
  kTensor,
  kChannel,          // a row
  kTensorOrChannel,  // as the shape of the scales says
  kGroup,            // `group` columns of a row
  kBlock,            // block_rows × block_columns
};

// How some of the matrices are stored.
struct StoredWeights {
  StoredFormat format = StoredFormat::kFp8;
  int bits = 8;
  ScaleScope scope = ScaleScope::kTensor;
  int64_t group = 0;  // of kGroup
  int64_t block_rows = 0, block_columns = 0;
  bool symmetric = true;
  bool zeros_less_one = false;  // GPTQ's first format stores zero points less one
  bool ordered = false;         // columns name their groups (g_idx)

  std::string ToString() const;  // "pack-quantized, 4 bits, groups of 128, symmetric"
};

struct QuantizationConfig {
  std::string method;                    // quant_method
  std::vector<StoredWeights> weights;    // not empty; where there are several, a matrix has the one that fits it
  std::vector<std::string> unconverted;  // modules that are stored plainly, as the file names them: names, patterns

  // Names everything that decides about a value, so that two configs with one text read the same values.
  std::string ToString() const;
};

// Reads the object; `name` is its own, for messages: "quantization_config".
absl::StatusOr<QuantizationConfig> ReadQuantizationConfig(absl::string_view name, const nlohmann::json& object);

}  // namespace switchyard::checkpoint
