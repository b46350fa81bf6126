#include <thread>
#include <utility>

#include "absl/time/clock.h"
#include "scheduler/base/check.h"
#include "tests/devices/test_device.h"
#include "tests/gpu/gpu_test.h"
#include "workers/comm/group/rendezvous_store.h"
#include "workers/comm/local/local_communicator.h"
#include "workers/comm/nccl/nccl_communicator.h"
#include "workers/ops/core/kernels_cuda.h"
#include "workers/tensor/cuda/cuda_backend.h"

namespace switchyard {

namespace {

// Linked into every test of a GPU: without one all of it is skipped.
class NeedsDevice : public testing::Environment {
 public:
  void SetUp() override { SkipWithoutGpu(); }
};
[[maybe_unused]] testing::Environment* const needs_device = testing::AddGlobalTestEnvironment(new NeedsDevice);

}  // namespace

Device TestDevice() {
  static const bool registered = [] {
    RegisterBackend(DeviceKind::kCuda, CudaBackend());
    ops::RegisterCudaOps();
    return true;
  }();
  static_cast<void>(registered);
  return Device::Cuda(0);
}

bool DeviceIsEmulated() {
  const auto description = CudaBackend()->Describe(0);
  return description.ok() && description->name.find("mulat") != std::string::npos;
}

std::vector<std::unique_ptr<comm::Communicator>> MakeTestGroup(int world) {
  std::vector<std::unique_ptr<comm::Communicator>> messages = comm::MakeLocalGroup(world),
                                                   group(static_cast<size_t>(world));
  if (world == 1) return messages;
  std::vector<std::unique_ptr<comm::Communicator>> watches = comm::MakeLocalGroup(world);
  comm::InMemoryStore store;
  std::vector<std::thread> threads;
  for (int r = 0; r < world; ++r) {
    threads.emplace_back([&, r] {
      auto formed = comm::FormNcclGroup({.device = r, .deadline = absl::Now() + absl::Seconds(60)}, &store,
                                        {.messages = std::move(messages[r]), .watch = std::move(watches[r])});
      SY_CHECK_OK(formed.status());
      group[r] = *std::move(formed);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return group;
}

absl::StatusOr<std::unique_ptr<comm::Communicator>> FormTestRank(comm::RendezvousStore* store,
                                                                 std::unique_ptr<comm::Communicator> messages,
                                                                 std::unique_ptr<comm::Communicator> watch,
                                                                 absl::Time deadline) {
  return comm::FormNcclGroup({.device = TestDevice().index, .deadline = deadline, .allow_shared_device = true}, store,
                             {.messages = std::move(messages), .watch = std::move(watch)});
}

}  // namespace switchyard
