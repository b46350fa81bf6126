// The rank's paged KV cache: one pool of blocks with every layer's keys and values.
//
// Block b of the pool is block b in each layer; the scheduler decides to which sequence it belongs.  The attention ops
// write contents through the views.  Thread-compatible.  Does not do: eviction, hashing, offload.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "scheduler/batching/step.h"
#include "workers/model/config/config.h"
#include "workers/ops/attention/kv_cache_view.h"
#include "workers/tensor/device.h"
#include "workers/tensor/dtype.h"
#include "workers/tensor/tensor.h"

namespace switchyard::model {

inline constexpr int32_t kMaxBlockSize = 1024;

class KvCache {
 public:
  // Allocates as many blocks as fit into `bytes` (KvBytesPerToken), of `dtype` or in 8 bits.  InvalidArgument when not
  // even one does, or when block_size is not in [1, kMaxBlockSize].  ResourceExhausted: the device has not so much.
  static absl::StatusOr<KvCache> Create(const ModelConfig& config, DType dtype, int32_t block_size, int64_t bytes,
                                        Device device = Device::Cpu(), ops::KvFormat format = ops::KvFormat::kPlain);

  int32_t num_blocks() const { return num_blocks_; }
  int32_t block_size() const { return block_size_; }
  int64_t bytes() const;
  // The bytes on the CPU that have been touched; the machine has yet to provide the rest.
  int64_t ResidentBytes() const;
  ops::KvCacheView layer(int64_t layer_idx) const { return views_[layer_idx]; }

  // Writes zeros everywhere, so that the memory is taken now.
  absl::Status Touch(const Stream& stream);

 private:
  int32_t block_size_ = 0;
  int32_t num_blocks_ = 0;
  Buffer memory_;                        // of all tensors, on a device; on the CPU each has its own
  std::vector<Tensor> tensors_;          // k and v of each layer
  std::vector<ops::KvCacheView> views_;  // [L]
};

}  // namespace switchyard::model
