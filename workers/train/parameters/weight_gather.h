// Working weights of blocks that are shared out (dense_shards.h): each rank rounds its part of the master, all gather
// them, and each publishes the whole.  Blocks travel in groups; a group is gathered while the caller's work for the
// next one runs.
//
// Thread-compatible.  A rank has memory for two groups, until Finish.  CPU only.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "workers/comm/core/communicator.h"
#include "workers/tensor/device.h"
#include "workers/tensor/tensor.h"

namespace switchyard::train {

struct ParameterBlock;

// With whom, and until when.  Calls are of class all_reduce.
struct GatherCall {
  comm::Communicator* comm = nullptr;  // borrowed
  absl::Time deadline = absl::InfiniteFuture();
};

class WeightGather {
 public:
  // rows: [n, k] all of a block's values, in the dtype of its working weight.
  using PublishFn = std::function<absl::Status(ParameterBlock* block, const TensorView& rows)>;
  // publish: for blocks with a weight; a block's tensor is filled here.
  WeightGather(const Stream& stream, const GatherCall& call, PublishFn publish)
      : stream_(stream), call_(call), publish_(std::move(publish)) {}

  // Collective, in the same order on all ranks.  The block's master must not change until Finish.  Errors: the
  // communicator's, ResourceExhausted, publish's; after one no further call is allowed.
  absl::Status Add(ParameterBlock* block);
  // Blocks until all is published.
  absl::Status Finish();

 private:
  struct Group {
    std::vector<ParameterBlock*> blocks = {};
    std::vector<TensorView> rows = {};  // of each
    Tensor memory = {};                 // of those with a weight
    std::unique_ptr<comm::Work> work = nullptr;
  };
  absl::Status Launch();
  absl::Status Receive();
  absl::Status Round(const Group& group) const;

  const Stream stream_;
  const GatherCall call_;
  const PublishFn publish_;
  Group next_;
  int64_t next_bytes_ = 0;
  std::optional<Group> under_way_;
  uint32_t launched_ = 0;
};

}  // namespace switchyard::train
