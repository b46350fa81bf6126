// Loads a rank's weights from a checkpoint: each needed byte is read once (those of an embedding twice that is tied to
// a quantized lm_head), compared with its file's block sums (of a manifest of ours), checked, decoded where it is
// quantized (matrix_reader.h), converted to the model's dtype and packed, through small staging buffers.
//
// Resident memory stays below the held weights + kStagingBytes (half as much again with quantized ones, twice as much
// with transposed ones) + a few MB. Several threads read and pack; LoadWeights blocks until all is done.  Errors name
// file, tensor, expected and found. NaN and Inf weights are errors, as are those that fp16 cannot hold; DataLoss: the
// manifest has other bytes.  Does not do: memory limits (memory_plan.h).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "workers/checkpoint/adapters/lora_adapter.h"
#include "workers/checkpoint/tensors/checkpoint.h"
#include "workers/model/config/config.h"
#include "workers/model/weights/params.h"
#include "workers/model/weights/weights.h"
#include "workers/tensor/dtype.h"

namespace switchyard::model {

inline constexpr int64_t kStagingBytes = 32 << 20;  // of all threads together

// A checksum of each tensor's bytes as read (of a quantized matrix: of its decoded values), by name.
using TensorSums = absl::btree_map<std::string, uint64_t>;

struct LoadOptions {
  DType dtype = DType::kBf16;      // to serve in; the files' own may differ
  ops::WeightFormats format = {};  // of the matrices (weights.h)
  std::vector<int32_t> residents;  // experts to hold of every MoE layer, by slot: ExpertLayout::Residents(rank)
  int num_threads = 1;
  Device device = Device::Cpu();  // where the weights go
  bool experts = true;            // false: without routed experts, which a store provides
  // Added to the matrices that it adapts, in fp32, before they are rounded or quantized; null: none.  Borrowed.
  const checkpoint::LoraAdapter* adapter = nullptr;
  TensorSums* replicated_sums = nullptr;  // receives those of tensors that every rank loads
  // Called by one loading thread at a time, about every 250 ms and at the end.  false stops the load (Cancelled).
  absl::AnyInvocable<bool(int64_t bytes_done, int64_t bytes_total)> progress;
};

// Logs a line every two seconds, and one for tensors of the checkpoint that the model does not use.
absl::StatusOr<ModelWeights> LoadWeights(const checkpoint::Checkpoint& checkpoint, const ModelConfig& config,
                                         LoadOptions options);

// Loads the routed experts of options.residents alone, packed for options.device but on the host, each to its place
// (ExpertSpace), unless that is null.  After an error contents are undefined.
absl::Status LoadExperts(const checkpoint::Checkpoint& checkpoint, const ModelConfig& config, LoadOptions options,
                         std::function<char*(int layer, int32_t expert)> place);

// Loads the params of a table (params.h); options.dtype is that of its tensors.  After an error contents are undefined.
absl::Status LoadParams(const checkpoint::Checkpoint& checkpoint, const std::vector<Param>& params,
                        LoadOptions options);

}  // namespace switchyard::model
