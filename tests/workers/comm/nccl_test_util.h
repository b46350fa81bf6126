// Groups over the emulated NCCL: ranks are threads, rank r on the emulated device r.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/workers/comm/view_checks.h"
#include "workers/comm/core/communicator.h"
#include "workers/comm/nccl/nccl_communicator.h"
#include "workers/tensor/device_queue.h"

namespace switchyard::test {

// A device's memory, and a queue on it.
class DeviceMemory : public RankMemory {
 public:
  explicit DeviceMemory(int device);
  ~DeviceMemory() override;
  TensorView Make(DType dtype, int64_t elements) override;
  void Put(const TensorView& to, const void* from) override;
  absl::Status Get(const TensorView& from, void* to) override;
  const Stream* stream() const override { return &stream_; }
  DeviceQueue& queue() const { return *queue_; }

 private:
  const int device_;
  std::unique_ptr<DeviceQueue> queue_;
  const Stream stream_;
  std::vector<void*> allocations_;
};

struct NcclRanks {
  std::vector<std::unique_ptr<DeviceMemory>> memory;       // [R]; outlives the ranks
  std::vector<std::unique_ptr<comm::Communicator>> ranks;  // [R]; null where forming failed
  std::vector<absl::Status> formed;                        // [R]
};

// options.device and a deadline that is not set are filled in per rank.  skip: a rank that never comes.
NcclRanks FormNccl(int world, int64_t epoch = 1, const comm::NcclGroupOptions& options = {}, int skip = -1);
// As a worker does it: a socket group for messages, another for the watch, one store.  wrap: may put another
// communicator around a rank's watch; called on a thread per rank.
using WrapWatch = std::function<std::unique_ptr<comm::Communicator>(std::unique_ptr<comm::Communicator>)>;
NcclRanks FormNcclOverSockets(int world, const WrapWatch& wrap = nullptr);

// Runs fn on a thread per rank; element r is what rank r's returned.
using RankFn = std::function<absl::Status(comm::Communicator*, DeviceMemory*)>;
std::vector<absl::Status> RunRanks(NcclRanks* group, const RankFn& fn);
// The same over a new group; expects every rank to be OK, and to have stayed so.
void ExpectNcclOk(int world, const RankFn& fn);

// A launch of an exchange of `bytes` bytes among all ranks, or of an all-reduce.
comm::WorkOr StartExchange(comm::Communicator* comm, DeviceMemory* memory, int64_t bytes, absl::Time deadline);
comm::WorkOr StartSum(comm::Communicator* comm, DeviceMemory* memory, absl::Time deadline);

}  // namespace switchyard::test
