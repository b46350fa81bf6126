// The rank's paged KV cache: one pool of blocks, every layer's keys and values in it.
//
// Block b of the pool is block b in each layer; which sequence has it is the scheduler's decision.  Contents are
// written by the attention ops through the views.  Thread-compatible: the runner is its one user. Does not do:
// eviction, hashing, offload.
#pragma once

#include <cstdint>
#include <string>
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

// What one layer keeps for a token.  components: keys and values now; a latent and a rope part for MLA later.
struct CacheSpec {
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  DType dtype = DType::kBf16;
  int32_t window = 0;  // keys older than this are never read again; 0 = all are

  int64_t bytes_per_token() const { return 2 * num_kv_heads * head_dim * DTypeBytes(dtype); }
};

// One for each layer.
std::vector<CacheSpec> CacheSpecs(const ModelConfig& config, DType dtype);

inline constexpr int32_t kMaxBlockSize = 1024;

class KvCache {
 public:
  // As many blocks as fit into `bytes`.  InvalidArgument when not even one does, or when block_size is not in [1,
  // kMaxBlockSize].
  // ResourceExhausted: the device has not so much.
  static absl::StatusOr<KvCache> Create(std::vector<CacheSpec> specs, int32_t block_size, int64_t bytes,
                                        Device device = Device::Cpu());

  int32_t num_blocks() const { return num_blocks_; }
  int32_t block_size() const { return block_size_; }
  int64_t bytes() const;
  // Of those on the CPU, what the system says has been touched: the rest is still to be taken from the machine.
  int64_t ResidentBytes() const;
  const std::vector<CacheSpec>& specs() const { return specs_; }
  ops::KvCacheView layer(int64_t layer_idx) const { return views_[layer_idx]; }

  // Takes the memory now rather than where it is first written to: writes zeros everywhere.
  absl::Status Touch(const Stream& stream);

 private:
  std::vector<CacheSpec> specs_;
  int32_t block_size_ = 0;
  int32_t num_blocks_ = 0;
  std::vector<Tensor> tensors_;          // k and v of each layer
  std::vector<ops::KvCacheView> views_;  // [L]
};

}  // namespace switchyard::model
