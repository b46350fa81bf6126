#include "tests/workers/comm/nccl_test_util.h"

#include <cuda_runtime.h>

#include <thread>
#include <utility>

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "scheduler/base/check.h"
#include "tests/workers/comm/comm_test_util.h"
#include "workers/comm/local/local_communicator.h"
#include "workers/comm/tcp/socket_communicator.h"
#include "workers/tensor/cuda/cuda_backend.h"

namespace switchyard::test {
namespace {

std::unique_ptr<DeviceQueue> NewQueue(int device) {
  auto queue = CudaBackend()->NewQueue(device, {});
  SY_CHECK_OK(queue.status());
  return *std::move(queue);
}

}  // namespace

DeviceMemory::DeviceMemory(int device)
    : device_(device), queue_(NewQueue(device)), stream_(Stream::On(queue_.get(), nullptr)) {}

DeviceMemory::~DeviceMemory() {
  queue_.reset();
  for (void* allocation : allocations_) cudaFree(allocation);
}

TensorView DeviceMemory::Make(DType dtype, int64_t elements) {
  SY_CHECK(cudaSetDevice(device_) == cudaSuccess);
  void* memory = nullptr;
  SY_CHECK(cudaMalloc(&memory, static_cast<size_t>(elements * DTypeBytes(dtype) + 1)) == cudaSuccess);
  allocations_.push_back(memory);
  return TensorView(memory, dtype, {elements}, Device::Cuda(device_));
}

void DeviceMemory::Put(const TensorView& to, const void* from) {
  SY_CHECK(cudaSetDevice(device_) == cudaSuccess);
  SY_CHECK(cudaMemcpy(to.raw(), from, static_cast<size_t>(comm::NumBytes(to)), cudaMemcpyHostToDevice) == cudaSuccess);
}

absl::Status DeviceMemory::Get(const TensorView& from, void* to) {
  SY_CHECK(cudaSetDevice(device_) == cudaSuccess);
  const absl::Status done = queue_->Synchronize(Soon());
  if (!done.ok()) return done;
  SY_CHECK(cudaMemcpy(to, from.raw(), static_cast<size_t>(comm::NumBytes(from)), cudaMemcpyDeviceToHost) ==
           cudaSuccess);
  return absl::OkStatus();
}

NcclRanks FormNccl(int world, int64_t epoch, const comm::NcclGroupOptions& options, int skip) {
  NcclRanks group;
  auto messages = comm::MakeLocalGroup(world, epoch);
  auto watch = comm::MakeLocalGroup(world, epoch);
  comm::InMemoryStore store;
  group.ranks.resize(world);
  group.formed.resize(world);
  for (int r = 0; r < world; ++r) group.memory.push_back(std::make_unique<DeviceMemory>(r));
  std::vector<std::thread> threads;
  for (int r = 0; r < world; ++r) {
    if (r == skip) continue;
    threads.emplace_back([&, r] {
      comm::NcclGroupOptions mine = options;
      if (options.device == 0) mine.device = r;
      if (options.deadline == absl::Time()) mine.deadline = Soon();
      auto comm = comm::FormNcclGroup(mine, &store, {std::move(messages[r]), std::move(watch[r])});
      group.formed[r] = comm.status();
      if (comm.ok()) group.ranks[r] = *std::move(comm);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return group;
}

NcclRanks FormNcclOverSockets(int world, const WrapWatch& wrap) {
  NcclRanks group;
  comm::InMemoryStore store;
  group.ranks.resize(world);
  group.formed.resize(world);
  for (int r = 0; r < world; ++r) group.memory.push_back(std::make_unique<DeviceMemory>(r));
  std::vector<std::thread> threads;
  for (int r = 0; r < world; ++r) {
    threads.emplace_back([&, r] {
      comm::GroupOptions host{.rank = r, .world = world, .token = "secret", .address = "127.0.0.1", .deadline = Soon()};
      auto messages = comm::FormSocketGroup({.group = host}, &store);
      SY_CHECK_OK(messages.status());
      host.token += "/watch";
      auto watch = comm::FormSocketGroup({.group = host}, &store);
      SY_CHECK_OK(watch.status());
      if (wrap != nullptr) watch = wrap(*std::move(watch));
      auto comm =
          comm::FormNcclGroup({.device = r, .deadline = Soon()}, &store, {*std::move(messages), *std::move(watch)});
      group.formed[r] = comm.status();
      if (comm.ok()) group.ranks[r] = *std::move(comm);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return group;
}

std::vector<absl::Status> RunRanks(NcclRanks* group, const RankFn& fn) {
  std::vector<absl::Status> statuses(group->ranks.size());
  std::vector<std::thread> threads;
  for (size_t r = 0; r < group->ranks.size(); ++r) {
    threads.emplace_back([&, r] {
      statuses[r] = group->formed[r];
      if (statuses[r].ok()) statuses[r] = fn(group->ranks[r].get(), group->memory[r].get());
    });
  }
  for (std::thread& thread : threads) thread.join();
  return statuses;
}

void ExpectNcclOk(int world, const RankFn& fn) {
  NcclRanks group = FormNccl(world);
  for (const absl::Status& status : group.formed) ASSERT_TRUE(status.ok()) << status;
  const std::vector<absl::Status> statuses = RunRanks(&group, fn);
  for (int r = 0; r < world; ++r) {
    EXPECT_TRUE(statuses[r].ok()) << "rank " << r << ": " << statuses[r];
    EXPECT_TRUE(group.ranks[r]->status().ok()) << "rank " << r << ": " << group.ranks[r]->status();
  }
}

comm::WorkOr StartExchange(comm::Communicator* comm, DeviceMemory* memory, int64_t bytes, absl::Time deadline) {
  const std::vector<int64_t> sizes(comm->world(), bytes);
  std::vector<int64_t> offsets;
  for (int r = 0; r < comm->world(); ++r) offsets.push_back(r * bytes);
  const TensorView send = memory->Make(DType::kU8, bytes * comm->world());
  const TensorView recv = memory->Make(DType::kU8, bytes * comm->world());
  return comm->AllToAllSized({.stream = memory->stream(), .deadline = deadline}, {send, offsets, sizes},
                             {recv, offsets, sizes});
}

comm::WorkOr StartSum(comm::Communicator* comm, DeviceMemory* memory, absl::Time deadline) {
  return comm->AllReduceSum(
      {.stream = memory->stream(), .comm_class = comm::CommClass::kAllReduce, .deadline = deadline},
      memory->Make(DType::kF32, 8));
}

}  // namespace switchyard::test
