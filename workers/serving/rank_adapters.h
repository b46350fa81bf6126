// The adapters of --adapters on a rank: what they are from the start on, and their weights when a group's are loaded.
//
// Open reads the folders and keeps names, sums and sizes; LoadInto reads them again, so that their values are in memory
// once, rounded.  Immutable.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "scheduler/fleet/adapter_list.h"
#include "workers/model/config/config.h"
#include "workers/model/weights/weights.h"
#include "workers/tensor/dtype.h"

namespace switchyard::worker {

class RankAdapters {
 public:
  RankAdapters() = default;  // none
  // Errors name the adapter and its folder: the folder's (lora_adapter.h) and CheckServedAdapter's.
  static absl::StatusOr<RankAdapters> Open(absl::Span<const fleet::AdapterPlace> places,
                                           const model::ModelConfig& config, DType dtype);

  bool empty() const { return adapters_.empty(); }
  std::vector<std::string> names() const;
  // 16 hex digits over names, order and contents.  REQUIRES: not empty.
  std::string Hash() const;
  // As the weights hold them.
  int64_t bytes() const;
  // FailedPrecondition: a folder has other contents than at the start; ResourceExhausted.
  absl::Status LoadInto(const model::ModelConfig& config, DType dtype, model::ModelWeights* weights) const;

 private:
  struct Adapter {
    fleet::AdapterPlace place;
    std::string hash;  // of its contents
    int64_t bytes = 0;
  };
  std::vector<Adapter> adapters_;
};

}  // namespace switchyard::worker
