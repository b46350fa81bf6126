// Logits of decodes behind contexts of any length, by Model::Forward in a worker's kinds of steps: prompts in chunks,
// then steps of one token of every sequence.  For comparing a device with the CPU on the same weights.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "workers/model/forward/model.h"
#include "workers/tensor/device.h"
#include "workers/tensor/tensor.h"

namespace switchyard::model {

struct DecodeLogitsOptions {
  int64_t chunk = 512;  // most queries of a step
  int64_t decodes = 1;  // of each sequence: its last tokens, which come one a step
  int32_t block_size = 16;
};

// What MakeDummyWeights draws, with all experts, on the stream's device.
absl::StatusOr<std::unique_ptr<Model>> MakeDummyModel(const Stream& stream, const ModelConfig& config, DType dtype);

// `count` tokens drawn from the seed.
std::vector<int32_t> RandomTokens(int64_t count, int64_t vocab, uint64_t seed);

// [sequences * decodes, V] fp32 on the CPU: of each sequence the logits of its last `decodes` positions.
// REQUIRES: every sequence has more than `decodes` tokens, none more than the model's positions.
absl::StatusOr<Tensor> DecodeLogits(const Stream& stream, Model* model, const DecodeLogitsOptions& options,
                                    const std::vector<std::vector<int32_t>>& sequences);

// ‖got - want‖ / ‖want‖ of each row.
std::vector<double> RowDistances(const TensorView& got, const TensorView& want);

}  // namespace switchyard::model
