// Checks of collectives on views, which the test of every backend runs on every rank.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "workers/comm/core/communicator.h"
#include "workers/tensor/tensor.h"

namespace switchyard::test {

// A rank's memory and stream: the host's here, a device's in the tests of device groups.
class RankMemory {
 public:
  virtual ~RankMemory() = default;
  // Lives as long as this object.
  virtual TensorView Make(DType dtype, int64_t elements) = 0;
  virtual void Put(const TensorView& to, const void* from) = 0;
  // Copies the contents after all of the stream's work.
  virtual absl::Status Get(const TensorView& from, void* to) = 0;
  virtual const Stream* stream() const = 0;
};

class HostMemory : public RankMemory {
 public:
  TensorView Make(DType dtype, int64_t elements) override;
  void Put(const TensorView& to, const void* from) override;
  absl::Status Get(const TensorView& from, void* to) override;
  const Stream* stream() const override { return nullptr; }

 private:
  std::vector<Tensor> tensors_;
};

// Rounds of unequal splits, with empty parts, gaps between them and parts of one rank only; own parts, too.
absl::Status CheckSizedExchanges(comm::Communicator* comm, RankMemory* memory);
// A rank that sends nothing and receives nothing, and one that sends all.
absl::Status CheckOneSidedExchange(comm::Communicator* comm, RankMemory* memory);
// Rounds of parts of unequal size in one memory, with empty parts and gaps that must stay.
absl::Status CheckSizedGathers(comm::Communicator* comm, RankMemory* memory);
// Views up and down a Split of every two neighbours (a last odd rank is alone, and its call is refused).
absl::Status CheckPairs(comm::Communicator* comm, RankMemory* memory);
// Sums and gathers of the rows and columns of a mesh [R / 2, 2], beside sums of the whole group: groups that overlap.
absl::Status CheckMesh(comm::Communicator* comm, RankMemory* memory);
// Sums have the bits of rank order (small integers and halves, so that any order and rounding has).
absl::Status CheckExactSums(comm::Communicator* comm, RankMemory* memory);

}  // namespace switchyard::test
