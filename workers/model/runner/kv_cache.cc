#include "workers/model/runner/kv_cache.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "workers/model/config/memory_plan.h"
#include "workers/tensor/copy.h"
#include "workers/tensor/device_queue.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard::model {

absl::StatusOr<KvCache> KvCache::Create(const ModelConfig& config, DType dtype, int32_t block_size, int64_t bytes,
                                        Device device, ops::KvFormat format) {
  if (block_size < 1 || block_size > kMaxBlockSize) {
    return absl::InvalidArgumentError(absl::StrCat("block_size ", block_size, " is outside [1, ", kMaxBlockSize, "]"));
  }
  const int64_t block_bytes = KvBytesPerToken(config, dtype, format) * block_size;
  int64_t num_blocks = bytes / block_bytes;
  if (num_blocks < 1) {
    return absl::InvalidArgumentError(absl::StrCat("kv_cache_bytes ", bytes, " holds no block: one of ", block_size,
                                                   " tokens takes ", block_bytes, " bytes"));
  }
  if (format != ops::KvFormat::kPlain) dtype = DType::kU8;
  const int64_t count = 2 * config.num_layers();
  const auto shape_of = [&](int64_t blocks) {
    return ops::KvCacheShape(blocks, config.num_kv_heads, block_size, config.head_dim, format);
  };
  // Of a tensor in the one allocation of a device.
  const auto each_of = [&](int64_t blocks) {
    return (shape_of(blocks).NumElements() * DTypeBytes(dtype) + kDeviceAlignment - 1) / kDeviceAlignment *
           kDeviceAlignment;
  };
  num_blocks = std::min<int64_t>(num_blocks, std::numeric_limits<batching::BlockId>::max());
  // A device's driver rounds each allocation up, and `bytes` may be all that is left.
  while (!device.is_cpu() && num_blocks > 1 && count * each_of(num_blocks) > bytes) --num_blocks;
  KvCache cache;
  cache.block_size_ = block_size;
  cache.num_blocks_ = static_cast<int32_t>(num_blocks);
  const Shape shape = shape_of(num_blocks);
  const int64_t each = each_of(num_blocks);
  if (!device.is_cpu()) {
    ASSIGN_OR_RETURN(cache.memory_, Buffer::Allocate(count * each, device));
  }
  for (int64_t i = 0; i < count; ++i) {
    if (device.is_cpu()) {
      cache.tensors_.emplace_back(dtype, shape);
    } else {
      char* const at = static_cast<char*>(cache.memory_.data()) + i * each;
      cache.tensors_.push_back(Tensor::Over(TensorView(at, dtype, shape, device)));
    }
  }
  for (size_t i = 0; i < cache.tensors_.size(); i += 2) {
    cache.views_.push_back({.k = cache.tensors_[i], .v = cache.tensors_[i + 1], .format = format});
  }
  return cache;
}

absl::Status KvCache::Touch(const Stream& stream) {
  constexpr int64_t kPiece = 2 << 20;
  for (const Tensor& tensor : tensors_) {
    if (stream.queue() != nullptr) {
      RETURN_IF_ERROR(FillZero(stream, tensor));
      continue;
    }
    char* base = static_cast<char*>(tensor.view().raw());
    const int64_t bytes = tensor.bytes();
    stream.pool().ParallelFor((bytes + kPiece - 1) / kPiece, 1, [&](int64_t begin, int64_t end) {
      std::memset(base + begin * kPiece, 0, static_cast<size_t>(std::min(bytes, end * kPiece) - begin * kPiece));
    });
  }
  return absl::OkStatus();
}

int64_t KvCache::ResidentBytes() const {
  const int64_t page = sysconf(_SC_PAGESIZE);
  int64_t resident = 0;
  for (const Tensor& tensor : tensors_) {
    // Counts whole pages only; a page that the tensor shares with others is theirs, too.
    const auto base = reinterpret_cast<intptr_t>(tensor.view().raw());
    const intptr_t begin = (base + page - 1) / page * page, end = (base + tensor.bytes()) / page * page;
    resident += tensor.bytes() - std::max<intptr_t>(0, end - begin);
    if (end <= begin) continue;
    std::vector<unsigned char> pages(static_cast<size_t>((end - begin) / page));
    if (mincore(reinterpret_cast<void*>(begin), static_cast<size_t>(end - begin), pages.data()) != 0) continue;
    resident += page * std::count_if(pages.begin(), pages.end(), [](unsigned char each) { return (each & 1) != 0; });
  }
  return resident;
}

int64_t KvCache::bytes() const {
  int64_t bytes = 0;
  for (const Tensor& tensor : tensors_) bytes += tensor.bytes();
  return bytes;
}

}  // namespace switchyard::model
