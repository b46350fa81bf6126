// Gathers working weights of sharded blocks (dense_shards.h): each rank rounds its part of the master, all
// gather the parts, and each publishes the whole block.  Blocks travel in calls of a bounded size, a large block in
// several; a call runs while the caller works on what the next one carries.
//
// Thread-compatible.  Until it is published, a block's weight is here as a whole in the model's dtype; messages take up
// to twice as many bytes as two calls.  CPU only.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "workers/comm/core/communicator.h"
#include "workers/tensor/device.h"
#include "workers/tensor/tensor.h"
#include "workers/train/parameters/dense_shards.h"

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
  // call_bytes: about so many of all ranks' parts go into a call; the same on all ranks.  publish: for blocks with a
  // weight; a block's tensor is filled here.
  WeightGather(const Stream& stream, const GatherCall& call, int64_t call_bytes, PublishFn publish)
      : stream_(stream), call_(call), call_bytes_(call_bytes), publish_(std::move(publish)) {}

  // Collective, in the same order on all ranks.  The block's master must not change until Finish.  Errors: the
  // communicator's, ResourceExhausted, publish's; after one no further call is allowed.
  absl::Status Add(ParameterBlock* block);
  // Blocks until all is published.
  absl::Status Finish();

 private:
  struct Whole {
    ParameterBlock* block = nullptr;
    TensorView rows = {};
    Tensor memory = {};  // of a block with a weight
  };
  struct Piece {
    const Whole* whole = nullptr;
    ElementRange elements = {};
  };
  struct Group {  // what a call carries
    std::vector<Piece> pieces = {};
    std::unique_ptr<comm::Work> work = nullptr;
  };
  absl::Status Launch();
  absl::Status Receive();

  const Stream stream_;
  const GatherCall call_;
  const int64_t call_bytes_;
  const PublishFn publish_;
  std::deque<Whole> wholes_;  // that are not published; pieces follow their order
  Group next_;
  int64_t next_bytes_ = 0;
  std::optional<Group> under_way_;
  uint32_t launched_ = 0;
};

}  // namespace switchyard::train
