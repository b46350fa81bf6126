// The adapters of --adapters on a rank: what they are from the start on, and their weights when a group's are loaded.
//
// Open reads the folders and keeps names, sums and sizes; Load reads them again, so that their values are in memory
// once, rounded.  Both read one folder after another, and while they do, one folder's values are in memory in fp32,
// with the largest of its tensors as it is stored.  Each worker has its own copy.  Immutable.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "scheduler/fleet/adapter_list.h"
#include "workers/model/config/config.h"
#include "workers/model/weights/weights.h"
#include "workers/tensor/dtype.h"

namespace switchyard::worker {

class RankAdapters {
 public:
  // done of total bytes, as bytes() counts them, after each adapter; false stops.
  using Progress = absl::FunctionRef<bool(int64_t done, int64_t total)>;

  RankAdapters() = default;  // none
  // Errors name the adapter and its folder: the folder's (lora_adapter.h) and CheckServedAdapter's.
  // available: bytes of memory that reading one may use; ResourceExhausted: it needs more.
  static absl::StatusOr<RankAdapters> Open(absl::Span<const fleet::AdapterPlace> places,
                                           const model::ModelConfig& config, DType dtype,
                                           int64_t available = std::numeric_limits<int64_t>::max());

  bool empty() const { return adapters_.empty(); }
  std::vector<std::string> names() const;
  // 16 hex digits over names, order and contents.  REQUIRES: not empty.
  std::string Hash() const;
  // As the weights hold them.
  int64_t bytes() const;
  // Returns them as ModelWeights::adapters; empty: there are none.  Blocks.  Call it before other weights are loaded:
  // then a folder that does not fit any more costs no time, and what reading takes beside bytes() is not beside those.
  // Errors name the adapter: DataLoss: its folder has other contents than at the start; the folder's, as Open's;
  // ResourceExhausted.  Cancelled: progress stopped it.
  absl::StatusOr<std::vector<std::vector<model::LayerAdapter>>> Load(const model::ModelConfig& config, DType dtype,
                                                                     Progress progress) const;

 private:
  struct Adapter {
    fleet::AdapterPlace place;
    std::string hash;  // of its contents
    int64_t bytes = 0;
  };
  std::vector<Adapter> adapters_;
};

}  // namespace switchyard::worker
