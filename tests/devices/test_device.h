// The device that a test program is about: the CPU, or, where it is linked with CUDA, the first GPU, real or emulated.
//
// One test source is so a test of each: linked with sy_test_device_cpu, _emulated or _gpu.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "workers/comm/core/communicator.h"
#include "workers/comm/group/rendezvous_store.h"
#include "workers/tensor/device.h"
#include "workers/tensor/device_queue.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard {

// Also makes it known.  Cuda(0) is named even where there is no GPU; every test of the program is skipped there.
Device TestDevice();
// Whether a group of so many ranks can be made: on the CPU always, else each has a device of its own.
bool HasDevices(int world);
// Kernels run as fibers, some thousand times slower: tests then take less of everything.
bool DeviceIsEmulated();

// A group of ranks as threads, rank r on device r: of plain messages on the CPU, over NCCL, real or emulated, on GPUs.
// Aborts where it does not form.
std::vector<std::unique_ptr<comm::Communicator>> MakeTestGroup(int world);

// The communicator of a rank that is a process of its own and computes on TestDevice(), over socket groups of its
// ranks: on the CPU that for messages, on a GPU one over NCCL, in which all ranks may be on one GPU if each has an
// NCCL_HOSTID of its own (NcclGroupOptions::allow_shared_device).  Errors: as of FormNcclGroup.
absl::StatusOr<std::unique_ptr<comm::Communicator>> FormTestRank(comm::RendezvousStore* store,
                                                                 std::unique_ptr<comm::Communicator> messages,
                                                                 std::unique_ptr<comm::Communicator> watch,
                                                                 absl::Time deadline);

// A stream on the test's device (or the index-th of its kind), with pool and queue of its own.
class TestStream {
 public:
  explicit TestStream(int threads = 1, int index = 0, const DeviceQueueOptions& options = {.deterministic = true});

  const Stream& get() const { return stream_; }
  operator const Stream&() const { return stream_; }  // NOLINT

 private:
  ThreadPool pool_;
  std::unique_ptr<DeviceQueue> queue_;
  Stream stream_;
};

}  // namespace switchyard
